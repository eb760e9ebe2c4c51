//! Generated programs of socket operations, on the core in simulation and on kernel TCP.
//!
//! The simulation is in this process, so a fuzzer sees which code of protocol and driver an input reaches; the oracle,
//! `netacc-exec` on kernel TCP, is not. Inputs that reach something new are kept by the fuzzer, and can be run on any other
//! executor afterwards (`python -m netacc_lab corpus`).

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use netacc_harness::{run_program, Options, Preset};
use netacc_program::{compare, Drawn, Program, Trace};

/// The reason for which a program was not judged.
#[derive(Debug)]
#[non_exhaustive]
pub enum DifferentialError {
    /// The oracle could not be started, or ended.
    Oracle(io::Error),
    /// The oracle's answer is no trace.
    Answer(serde_json::Error),
}

/// Holds the oracle.
pub struct Differential {
    _child: Child,
    execute: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Differential {
    /// Starts the oracle: `executable` is `netacc-exec`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(executable: &Path) -> Result<Differential, DifferentialError> {
        let mut command = Command::new(executable);
        command.arg("--kernel-only").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(DifferentialError::Oracle)?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(execute), Some(answers)) => {
                Ok(Differential { _child: child, execute, answers: BufReader::new(answers) })
            }
            _ => Err(DifferentialError::Oracle(io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Runs the program that the bytes describe on both sides.
    ///
    /// # Errors
    /// The oracle failed.
    ///
    /// # Panics
    /// If the traces differ although the oracle agrees with itself, or the core broke a promise of its own.
    pub fn check(&mut self, bytes: &[u8]) -> Result<(), DifferentialError> {
        let drawn = Drawn::from_bytes(bytes);
        let program = drawn.program();
        let oracle = self.execute(&program)?;
        let preset = if drawn.seed % 2 == 1 { Some(Preset::Nic) } else { None };
        let run = run_program(&program, drawn.seed, &Options { preset, ..Options::default() }, Some(&oracle));
        let text = || serde_json::to_string(&program).unwrap_or_default();
        if let Some(broken) = run.broken {
            panic!("broken promise: {broken}\nseed {}, program {}", drawn.seed, text());
        }
        let differences = compare(&program, &oracle, &run.trace);
        let Some(first) = differences.first() else { return Ok(()) };
        for _ in 0..2 {
            if !compare(&program, &oracle, &self.execute(&program)?).is_empty() {
                // Kernel TCP does not agree with itself: nothing is known.
                return Ok(());
            }
        }
        panic!("step {} differs: {first:?}\nseed {}, program {}", first.step, drawn.seed, text());
    }

    fn execute(&mut self, program: &Program) -> Result<Trace, DifferentialError> {
        let program = serde_json::to_string(program).map_err(DifferentialError::Answer)?;
        writeln!(self.execute, r#"{{"program":{program},"expect":null}}"#).map_err(DifferentialError::Oracle)?;
        let mut line = String::new();
        if self.answers.read_line(&mut line).map_err(DifferentialError::Oracle)? == 0 {
            return Err(DifferentialError::Oracle(io::ErrorKind::UnexpectedEof.into()));
        }
        serde_json::from_str(&line).map_err(DifferentialError::Answer)
    }
}
