//! `netacc_ss -p PID`: shows the state of an accelerated process; see [`netacc_cli::ss`].

use std::process::ExitCode;

fn main() -> ExitCode {
    netacc_cli::ss::run(std::env::args_os()).into()
}
