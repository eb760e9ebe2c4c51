//! `netacc_ss -p PID`: what an accelerated process is doing; see [`netacc_cli::ss`].

use std::process::ExitCode;

fn main() -> ExitCode {
    netacc_cli::ss::run(std::env::args_os()).into()
}
