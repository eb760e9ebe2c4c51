//! The errors of a benchmark, and their exit codes.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::record::RecordError;

/// A benchmark that could not be run, or not to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The arguments contradict each other or name something that does not exist.
    #[error("{0}")]
    Usage(String),
    /// A program that the benchmark starts is not installed.
    #[error("{program} not found: {hint}")]
    MissingProgram {
        /// The missing program.
        program: String,
        /// How to get it.
        hint: String,
    },
    /// A requested path cannot be measured here.
    #[error("path {path} cannot be measured: {reason}")]
    PathUnavailable {
        /// The path's name.
        path: String,
        /// Why not.
        reason: String,
    },
    /// A child process ended early or wrote something unexpected.
    #[error("{name}: {what}{}", tail(.log))]
    Child {
        /// The child, and its path.
        name: String,
        /// What it did.
        what: String,
        /// The end of its stderr.
        log: String,
    },
    /// A child process did not answer in time.
    #[error("{name}: no answer within {} s{}", .after.as_secs_f64(), tail(.log))]
    Timeout {
        /// The child, and its path.
        name: String,
        /// The length of the wait.
        after: Duration,
        /// The end of its stderr.
        log: String,
    },
    /// Output of redis-benchmark in an unexpected form.
    #[error("cannot read the output of redis-benchmark: {0}")]
    RedisOutput(String),
    /// The record could not be written.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The plot could not be drawn.
    #[error("cannot draw {}: {what}", .file.display())]
    Plot {
        /// The plot's path.
        file: PathBuf,
        /// The plotting library's error.
        what: String,
    },
    /// An operating system call failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation.
        what: String,
        /// The error, with its errno.
        source: io::Error,
    },
}

impl BenchError {
    /// 2 for wrong usage, as in `clap`; 1 for everything else.
    pub fn exit_code(&self) -> u8 {
        match self {
            BenchError::Usage(_) => 2,
            BenchError::Record(error) => error.exit_code(),
            _ => 1,
        }
    }

    /// For `map_err`: keeps the error and names the operation.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> BenchError {
        let what = what.into();
        move |source| BenchError::Io { what, source }
    }
}

fn tail(log: &str) -> String {
    if log.trim().is_empty() {
        String::new()
    } else {
        format!("\n  its last output:\n    {}", log.trim_end().replace('\n', "\n    "))
    }
}
