//! `netacc sim`: what-if studies. The tools are in Python (`netacc_lab.sim`), where statistics, schedulers and plots are;
//! this finds an interpreter that has them and becomes it.
//!
//! The interpreter is `NETACC_PYTHON`, or that of the `.venv` of the checkout this program was built in or that the working
//! folder is in, or `python3`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::Args;

/// Arguments, which the tools parse.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct SimArgs {
    /// run | sweep | report | list | schema, and their arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    args: Vec<OsString>,
}

/// No interpreter has the tools, or it could not be started.
const UNAVAILABLE: u8 = 69;

/// Becomes the tools. Returns only if no interpreter has them.
pub fn run(args: &SimArgs) -> ExitCode {
    let found = interpreters().into_iter().find(|python| has_tools(python));
    let Some(python) = found else {
        eprintln!(
            "netacc sim: no Python has the package netacc_lab. In a checkout `ci/run.sh sim-tools` makes one, in .venv, \
             and the simulator; then start netacc in the checkout. NETACC_PYTHON names another one."
        );
        return ExitCode::from(UNAVAILABLE);
    };
    let error = Command::new(&python).args(["-m", "netacc_lab.sim"]).args(&args.args).exec();
    eprintln!("netacc sim: {}: {error}", python.display());
    ExitCode::from(UNAVAILABLE)
}

/// The possible interpreters, the most preferred first. One that is named is the only one.
fn interpreters() -> Vec<PathBuf> {
    if let Some(named) = std::env::var_os("NETACC_PYTHON") {
        return vec![named.into()];
    }
    let program = std::env::current_exe().unwrap_or_default();
    let here = std::env::current_dir().unwrap_or_default();
    let environments = program.ancestors().chain(here.ancestors()).map(|folder| folder.join(".venv/bin/python"));
    let mut found: Vec<PathBuf> = environments.filter(|python| python.exists()).collect();
    found.push("python3".into());
    found
}

/// Whether the package is installed; missing dependencies give their own errors.
fn has_tools(python: &Path) -> bool {
    let script = "import importlib.util as u, sys; sys.exit(u.find_spec('netacc_lab.sim') is None)";
    let exit = Command::new(python).args(["-c", script]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    exit.is_ok_and(|status| status.success())
}
