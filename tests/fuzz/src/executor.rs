//! `netacc-exec` as a process that answers programs with traces.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use netacc_program::{Program, Trace};

/// The reason for which a program was not judged.
#[derive(Debug)]
#[non_exhaustive]
pub enum DifferentialError {
    /// The oracle could not be started, or ended.
    Oracle(io::Error),
    /// The oracle's answer is no trace.
    Answer(serde_json::Error),
    /// The counters of the library's code could not be read.
    Coverage(io::Error),
}

/// A running `netacc-exec`. It ends when this is dropped.
pub(crate) struct Executor {
    _child: Child,
    programs: ChildStdin,
    traces: BufReader<ChildStdout>,
}

impl Executor {
    pub(crate) fn start(mut command: Command) -> Result<Executor, DifferentialError> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(DifferentialError::Oracle)?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(programs), Some(traces)) => Ok(Executor { _child: child, programs, traces: BufReader::new(traces) }),
            _ => Err(DifferentialError::Oracle(io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// The program's trace. `expect`: the oracle's, so that bytes which had come there at once are waited for.
    pub(crate) fn run(&mut self, program: &Program, expect: Option<&Trace>) -> Result<Trace, DifferentialError> {
        let program = serde_json::to_string(program).map_err(DifferentialError::Answer)?;
        let expect = serde_json::to_string(&expect).map_err(DifferentialError::Answer)?;
        writeln!(self.programs, r#"{{"program":{program},"expect":{expect}}}"#).map_err(DifferentialError::Oracle)?;
        let mut line = String::new();
        if self.traces.read_line(&mut line).map_err(DifferentialError::Oracle)? == 0 {
            return Err(DifferentialError::Oracle(io::ErrorKind::UnexpectedEof.into()));
        }
        serde_json::from_str(&line).map_err(DifferentialError::Answer)
    }
}
