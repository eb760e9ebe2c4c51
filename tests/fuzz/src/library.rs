//! Generated programs of socket operations, on the library with shared memory and on kernel TCP.
//!
//! The programs' processes are real, and load a library whose code counts where it goes (`coverage.c`). The counters are in a
//! file that all of these processes map, children and replaced programs as well; the fuzzer reads them there after each
//! program. So the code of hooks, epoll, limits and bad addresses guides it, of which the simulation has no model.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use netacc_program::{compare, Config, Drawn, Program, Trace};

use crate::executor::{DifferentialError, Executor};
use crate::program::{agrees_with_itself, oracle};

/// Counters in the file, a byte each, as in `coverage.c`. The library has some 70,000 places that are counted.
pub const COUNTERS: usize = 1 << 18;

/// The library differed three times in a row: it depends on time, so once says little.
const ATTEMPTS: usize = 3;

/// Holds the oracle, and an executor under the library for each of its settings.
pub struct OnLibrary {
    /// Of `netacc_run`, `netacc-exec` and the library.
    binaries: PathBuf,
    oracle: Executor,
    others: BTreeMap<Config, Executor>,
    counters: File,
}

impl OnLibrary {
    /// Starts the oracle. `binaries` is the folder of `netacc_run`, `netacc-exec` and a library that counts, in which a file can
    /// be made.
    ///
    /// # Errors
    /// The file cannot be made, or the oracle not started.
    pub fn start(binaries: &Path) -> Result<OnLibrary, DifferentialError> {
        Ok(OnLibrary {
            binaries: binaries.to_owned(),
            oracle: oracle(&binaries.join("netacc-exec"))?,
            others: BTreeMap::new(),
            counters: nameless(binaries).map_err(DifferentialError::Coverage)?,
        })
    }

    /// Runs the program that the bytes describe on both sides, and adds the library's counters of that to `counted`.
    ///
    /// # Errors
    /// The oracle failed, or the counters cannot be read.
    ///
    /// # Panics
    /// If the traces differ each time, or the library ended the programs' processes, although the oracle agrees with itself.
    pub fn check(&mut self, bytes: &[u8], counted: &mut [u8; COUNTERS]) -> Result<(), DifferentialError> {
        let program = Drawn::from_bytes(bytes).program();
        let oracle = self.oracle.run(&program, None)?;
        self.counters.write_all_at(&[0; COUNTERS], 0).map_err(DifferentialError::Coverage)?;
        let first = self.attempt(&program, &oracle)?;
        self.counters.read_exact_at(counted, 0).map_err(DifferentialError::Coverage)?;
        let Some(mut last) = first else { return Ok(()) };
        for _ in 1..ATTEMPTS {
            if !agrees_with_itself(&mut self.oracle, &program, &oracle)? {
                return Ok(());
            }
            let Some(again) = self.attempt(&program, &oracle)? else { return Ok(()) };
            last = again;
        }
        panic!("{last}\nprogram {}", serde_json::to_string(&program).unwrap_or_default());
    }

    /// What differs under the library, in words.
    fn attempt(&mut self, program: &Program, oracle: &Trace) -> Result<Option<String>, DifferentialError> {
        if !self.others.contains_key(&program.config) {
            let other = Executor::start(self.command(program.config))?;
            self.others.insert(program.config, other);
        }
        let Some(other) = self.others.get_mut(&program.config) else { return Ok(None) };
        let Ok(trace) = other.run(program, Some(oracle)) else {
            // The next program gets new processes.
            self.others.remove(&program.config);
            return Ok(Some("the programs' processes have ended".into()));
        };
        let differences = compare(program, oracle, &trace);
        Ok(differences.first().map(|first| format!("step {} differs: {first:?}", first.step)))
    }

    fn command(&self, config: Config) -> Command {
        let mut command = Command::new(self.binaries.join("netacc_run"));
        command.arg(self.binaries.join("netacc-exec"));
        command.env("NACC_SOR_CONN_PER_QP", config.conn_per_qp.to_string());
        command.env("NACC_RING_SIZE", config.ring_bytes.to_string());
        command.env("NACC_PROMOTE_AFTER", config.promote_after.to_string());
        // The file has no name of its own any more.
        let counters = format!("/proc/{}/fd/{}", std::process::id(), self.counters.as_raw_fd());
        command.env("NETACC_COVERAGE", counters);
        command
    }
}

/// A file of [`COUNTERS`] zeros that is gone with its last user.
fn nameless(folder: &Path) -> io::Result<File> {
    let path = folder.join(format!("counters.{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    file.set_len(COUNTERS as u64)?;
    Ok(file)
}
