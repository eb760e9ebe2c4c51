//! `netacc sim`, `netacc calibrate`, `netacc report` and `netacc record`: what-if studies, profiles of this machine for them,
//! tables and plots of records, and the conversion of older results. The tools are in Python (`netacc_lab.sim`,
//! `netacc_lab.calibration`, `netacc_lab.analysis`, `netacc_lab.records`), where statistics, schedulers and plots are; this finds an interpreter that has them and becomes it.
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
    /// The tool's arguments; --help shows them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    args: Vec<OsString>,
}

/// No interpreter has the tools, or it could not be started.
const UNAVAILABLE: u8 = 69;

/// The tools.
#[derive(Debug, Clone, Copy)]
pub enum Tool {
    /// `netacc sim`.
    Studies,
    /// `netacc calibrate`.
    Calibration,
    /// `netacc report`.
    Report,
    /// `netacc record`.
    Records,
}

/// Becomes a tool. Returns only if no interpreter has it.
pub fn run(tool: Tool, args: &SimArgs) -> ExitCode {
    let (name, module) = match tool {
        Tool::Studies => ("sim", "netacc_lab.sim"),
        Tool::Calibration => ("calibrate", "netacc_lab.calibration"),
        Tool::Report => ("report", "netacc_lab.analysis"),
        Tool::Records => ("record", "netacc_lab.records"),
    };
    let found = interpreters().into_iter().find(|python| has_tools(python, module));
    let Some(python) = found else {
        eprintln!(
            "netacc {name}: no Python has the package netacc_lab. In a checkout `ci/run.sh sim-tools` makes one, in .venv, \
             and the simulator; then start netacc in the checkout. NETACC_PYTHON names another one."
        );
        return ExitCode::from(UNAVAILABLE);
    };
    let mut command = Command::new(&python);
    if let Ok(program) = std::env::current_exe() {
        command.env("NETACC_PROGRAM", program);
    }
    let error = command.args(["-m", module]).args(&args.args).exec();
    eprintln!("netacc {name}: {}: {error}", python.display());
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
fn has_tools(python: &Path, module: &str) -> bool {
    let script = "import importlib.util as u, sys; sys.exit(u.find_spec(sys.argv[1]) is None)";
    let exit = Command::new(python).args(["-c", script, module]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    exit.is_ok_and(|status| status.success())
}
