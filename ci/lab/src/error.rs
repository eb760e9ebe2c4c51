//! Errors of a lab, as opposed to those of the command that runs in it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Failures of the lab itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// A part that the lab needs is missing, and could not be installed or downloaded.
    #[error("{what}: {fix}")]
    Missing {
        /// What.
        what: String,
        /// The user's options.
        fix: String,
    },
    /// A tool failed.
    #[error("{program} failed ({status}){detail}")]
    Tool {
        /// The command line.
        program: String,
        /// How it ended.
        status: String,
        /// The end of its output.
        detail: String,
    },
    /// A virtual machine did not come up, or went away.
    #[error("host {host}: {why}\n{console}")]
    Machine {
        /// Its number.
        host: u8,
        /// What happened.
        why: String,
        /// The last lines of its console.
        console: String,
    },
    /// The process with the emulated eRDMA functions did not come up, or went away.
    #[error("netacc-erdma: {why}{log}")]
    Functions {
        /// What happened.
        why: String,
        /// The last lines of its log.
        log: String,
    },
    /// The process with the emulated eRDMA functions refused a command.
    #[error("netacc-erdma refused '{command}': {answer}")]
    Refused {
        /// The command.
        command: String,
        /// The answer.
        answer: String,
    },
    /// No lab of that name is running.
    #[error("no lab named '{0}' is running (start one with: netacc lab up)")]
    NotRunning(String),
    /// A lab of that name is running.
    #[error("a lab named '{0}' is running already (stop it with: netacc lab down --name {0})")]
    Running(String),
    /// The command line contradicts itself.
    #[error("{0}")]
    Usage(String),
    /// The time limit has passed.
    #[error("stopped after {0} s")]
    TimedOut(u64),
    /// A file or system call.
    #[error("{operation}: {source}")]
    Io {
        /// The operation.
        operation: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

impl LabError {
    /// For `map_err`: names the operation.
    pub(crate) fn io(operation: impl Into<String>) -> impl FnOnce(std::io::Error) -> LabError {
        let operation = operation.into();
        move |source| LabError::Io { operation, source }
    }

    /// For `map_err`: a file.
    pub(crate) fn file(path: &Path) -> impl FnOnce(std::io::Error) -> LabError {
        LabError::io(path.display().to_string())
    }

    /// The exit status of the process that gives up for this reason. The command's own statuses are passed on, so these
    /// are the same as those of `timeout` and container tools.
    pub fn status(&self) -> u8 {
        match self {
            LabError::TimedOut(_) => 124,
            LabError::Usage(_) => 2,
            _ => 125,
        }
    }
}

/// Runs a tool to its end and returns what it wrote to stdout.
///
/// # Errors
/// It cannot be started, or fails; with the end of its stderr.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>, LabError> {
    let program = format!("{command:?}");
    let output = command.output().map_err(LabError::io(program.clone()))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let mut last: Vec<&str> = stderr.trim_end().lines().rev().take(TOOL_LINES).collect();
    last.reverse();
    let detail = if last.is_empty() { String::new() } else { format!(":\n{}", last.join("\n")) };
    Err(LabError::Tool { program, status: output.status.to_string(), detail })
}

/// How much of a tool's error output is passed on.
const TOOL_LINES: usize = 20;

/// The last lines of a text for the user, each on a line of its own.
pub(crate) fn last_lines(text: &[u8]) -> String {
    const SHOWN: usize = 12;
    let text = String::from_utf8_lossy(text);
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(SHOWN)..].iter().map(|line| format!("\n  {line}")).collect()
}

/// The first of `names` that is an executable in PATH or in the system folders that users often lack there.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|folder| folder.join(name)).find(|file| file.is_file())
}
