//! Generated programs of socket operations, on the core in simulation and on kernel TCP.
//!
//! The simulation is in this process, so a fuzzer sees which code of protocol and driver an input reaches; the oracle,
//! `netacc-exec` on kernel TCP, is not. Inputs that reach something new are kept by the fuzzer, and can be run on any other
//! executor afterwards (`python -m netacc_lab corpus`).

use std::path::Path;
use std::process::Command;

use netacc_harness::{run_program, Options, Preset};
use netacc_program::{compare, Drawn, Program, Trace};

use crate::executor::{DifferentialError, Executor};

/// Holds the oracle.
pub struct Differential {
    oracle: Executor,
}

impl Differential {
    /// Starts the oracle: `executable` is `netacc-exec`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(executable: &Path) -> Result<Differential, DifferentialError> {
        Ok(Differential { oracle: oracle(executable)? })
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
        let oracle = self.oracle.run(&program, None)?;
        let preset = if drawn.seed % 2 == 1 { Some(Preset::Nic) } else { None };
        let run = run_program(&program, drawn.seed, &Options { preset, ..Options::default() }, Some(&oracle));
        let text = || serde_json::to_string(&program).unwrap_or_default();
        if let Some(broken) = run.broken {
            panic!("broken promise: {broken}\nseed {}, program {}", drawn.seed, text());
        }
        let differences = compare(&program, &oracle, &run.trace);
        let Some(first) = differences.first() else { return Ok(()) };
        if agrees_with_itself(&mut self.oracle, &program, &oracle)? {
            panic!("step {} differs: {first:?}\nseed {}, program {}", first.step, drawn.seed, text());
        }
        Ok(())
    }
}

/// `executable`, which is `netacc-exec`, on kernel TCP.
pub(crate) fn oracle(executable: &Path) -> Result<Executor, DifferentialError> {
    let mut command = Command::new(executable);
    command.arg("--kernel-only");
    Executor::start(command)
}

/// Whether kernel TCP does the same again, twice. If not, nothing is known.
pub(crate) fn agrees_with_itself(
    oracle: &mut Executor,
    program: &Program,
    first: &Trace,
) -> Result<bool, DifferentialError> {
    for _ in 0..2 {
        if !compare(program, first, &oracle.run(program, None)?).is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}
