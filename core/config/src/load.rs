//! Merges the sources in their order, and checks the rules that relate several keys.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::config::{Config, MemoryConfig};
use crate::file;
use crate::key::{find_key, resembling, KEYS};
use crate::problem::{Origin, Problem, ProblemKind};
use crate::{CONFIG_PATH_VARIABLE, DEFAULT_CONFIG_PATH, KEY_PREFIX};

/// Collects the sources of a configuration; [`Config::load`] is the usual one, this is for netacc_run
/// and for tests.
///
/// ```
/// let (config, problems) = netacc_config::Loader::new().flag('p', "4").load();
/// assert_eq!(config.links.streams_per_link, 4);
/// assert!(problems.is_empty());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Loader {
    file: Option<PathBuf>,
    file_must_exist: bool,
    environment: Vec<(OsString, OsString)>,
    flags: Vec<(char, String)>,
}

impl Config {
    /// Reads the file that [`CONFIG_PATH_VARIABLE`] names, or the usual one if there is one, and the
    /// environment of this process. Flags of netacc_run are in the environment.
    ///
    /// Reads the environment, so no other thread may be changing it; call it once, at the start.
    pub fn load() -> (Self, Vec<Problem>) {
        Loader::new().default_file().environment(std::env::vars_os()).load()
    }
}

impl Loader {
    /// Without any source: gives the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the usual file, if it exists and no other is named.
    pub fn default_file(mut self) -> Self {
        self.file = Some(PathBuf::from(DEFAULT_CONFIG_PATH));
        self.file_must_exist = false;
        self
    }

    /// Reads this file, which must exist.
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.file = Some(path.into());
        self.file_must_exist = true;
        self
    }

    /// Takes the variables that begin with [`KEY_PREFIX`] as settings. A non-empty
    /// [`CONFIG_PATH_VARIABLE`] among them names the file, unless [`Loader::file`] is called after.
    pub fn environment<S: AsRef<OsStr> + Into<OsString>>(
        mut self,
        variables: impl IntoIterator<Item = (S, S)>,
    ) -> Self {
        for (name, value) in variables {
            if name.as_ref() == CONFIG_PATH_VARIABLE && !value.as_ref().is_empty() {
                self = self.file(value.into());
            } else if name.as_ref().as_encoded_bytes().starts_with(KEY_PREFIX.as_bytes()) {
                self.environment.push((name.into(), value.into()));
            }
        }
        self
    }

    /// Takes one flag of netacc_run. A flag that no key has is ignored.
    pub fn flag(mut self, flag: char, value: impl Into<String>) -> Self {
        self.flags.push((flag, value.into()));
        self
    }

    /// Reads and merges everything. Problems come in the order of the sources, at most
    /// a few hundred of them.
    pub fn load(self) -> (Config, Vec<Problem>) {
        let mut merge = Merge::default();
        if let Some(path) = &self.file {
            merge.file(path, self.file_must_exist);
        }
        // Sorted, so that the same environment gives the same problems in the same order.
        let mut environment = self.environment;
        environment.sort();
        for (name, value) in environment {
            merge.variable(&name.to_string_lossy(), &value.to_string_lossy());
        }
        for (flag, value) in self.flags {
            if let Some(key) = KEYS.iter().find(|key| key.flag == Some(flag)) {
                merge.set(Origin::Flag(flag), key.name, &value);
            }
        }
        merge.finish()
    }
}

/// A configuration in the making.
#[derive(Default)]
struct Merge {
    config: Config,
    /// The origin of the value in force of each key of [`KEYS`].
    origins: [Option<Origin>; KEYS.len()],
    problems: Vec<Problem>,
}

impl Merge {
    fn file(&mut self, path: &Path, must_exist: bool) {
        let origin = |line| Origin::File { path: path.to_owned(), line };
        let bytes = match file::read(path, must_exist) {
            Ok(bytes) => bytes,
            Err(kind) => {
                self.problems.push(Problem { origin: origin(0), key: None, value: None, kind });
                return;
            }
        };
        let (settings, problems) = file::parse(path, &bytes);
        self.problems.extend(problems);
        let mut first_lines = [None; KEYS.len()];
        for setting in settings {
            if let Some(index) = KEYS.iter().position(|key| key.name == setting.key) {
                match first_lines[index] {
                    None => first_lines[index] = Some(setting.line),
                    Some(first_line) => self.problems.push(Problem {
                        origin: origin(setting.line),
                        key: Some(setting.key.clone()),
                        value: Some(setting.value.clone()),
                        kind: ProblemKind::Repeated { first_line },
                    }),
                }
            }
            self.set(origin(setting.line), &setting.key, &setting.value);
        }
        // The problems of a file are reported from top to bottom, whichever step found them.
        self.problems.sort_by(|a, b| a.origin.cmp(&b.origin));
    }

    fn variable(&mut self, name: &str, value: &str) {
        self.set(Origin::Environment, name, value);
    }

    fn set(&mut self, origin: Origin, name: &str, value: &str) {
        let kind = match KEYS.iter().position(|key| key.name == name) {
            None => ProblemKind::UnknownKey { suggestion: resembling(name) },
            Some(index) if KEYS[index].set(&mut self.config, value) => {
                self.origins[index] = Some(origin);
                return;
            }
            Some(index) => ProblemKind::BadValue { allowed: KEYS[index].allowed() },
        };
        self.problems.push(Problem { origin, key: Some(name.to_owned()), value: Some(value.to_owned()), kind });
    }

    fn finish(mut self) -> (Config, Vec<Problem>) {
        self.check_regions();
        self.check_threads();
        self.config.accelerate = !self.problems.iter().any(Problem::keeps_on_tcp);
        // Arbitrary: more than anyone reads, and little enough for a log.
        const LIMIT: usize = 200;
        if self.problems.len() > LIMIT {
            let more = self.problems.len() - LIMIT;
            let origin = self.problems[LIMIT].origin.clone();
            self.problems.truncate(LIMIT);
            self.problems.push(Problem { origin, key: None, value: None, kind: ProblemKind::TooMany { more } });
        }
        (self.config, self.problems)
    }

    /// Message size, first region and largest region: each must be the one before it times a power of two. One that is
    /// not is adapted to the one before it. This is a problem unless a stronger source has set that.
    fn check_regions(&mut self) {
        const MSG: &str = "NACC_SOR_MSG_SIZE";
        const MIN: &str = "NACC_RDMA_MR_MIN_INC_SIZE";
        const MAX: &str = "NACC_RDMA_MR_MAX_INC_SIZE";
        let memory = self.config.memory.clone();
        let mut strongest = self.rank(MSG);
        if !is_power_multiple(memory.mr_min_bytes, memory.msg_bytes) {
            let used = MemoryConfig::mr_min_for(memory.msg_bytes);
            self.config.memory.mr_min_bytes = used;
            self.broken_rule(MIN, strongest, memory.mr_min_bytes, used, (MSG, memory.msg_bytes));
        } else {
            strongest = strongest.max(self.rank(MIN));
        }
        let min = self.config.memory.mr_min_bytes;
        if !is_power_multiple(memory.mr_max_bytes, min) {
            let used = MemoryConfig::mr_max_for(min);
            self.config.memory.mr_max_bytes = used;
            self.broken_rule(MAX, strongest, memory.mr_max_bytes, used, (MIN, min));
        }
    }

    /// Without a thread of its own the library could connect no link while the program waits elsewhere, so there is always one.
    fn check_threads(&mut self) {
        const NAME: &str = "NACC_SOR_IO_THREADS";
        let threads = self.config.io.threads;
        if let Some(origin) = self.origin(NAME).filter(|_| threads == 0).cloned() {
            self.problems.push(Problem {
                origin,
                key: Some(NAME.to_owned()),
                value: Some(threads.to_string()),
                kind: ProblemKind::NoEffect { why: "one NetACC thread connects links, as with 1" },
            });
        }
    }

    fn broken_rule(&mut self, name: &str, base_rank: u8, value: usize, used: usize, (base, base_value): (&str, usize)) {
        if self.rank(name) < base_rank {
            return;
        }
        let Some(origin) = self.origin(name).cloned() else {
            return;
        };
        self.problems.push(Problem {
            origin,
            key: Some(name.to_owned()),
            value: Some(value.to_string()),
            kind: ProblemKind::BrokenRule { rule: format!("{base} ({base_value}) x 2^N, N from 0"), used },
        });
    }

    fn origin(&self, name: &str) -> Option<&Origin> {
        let index = KEYS.iter().position(|key| key.name == name)?;
        self.origins[index].as_ref()
    }

    /// The precedence of a key's source; 0 is the default.
    fn rank(&self, name: &str) -> u8 {
        debug_assert!(find_key(name).is_some());
        self.origin(name).map_or(0, Origin::rank)
    }
}

impl MemoryConfig {
    /// The first region that goes with a message size: the default where the rule holds, otherwise
    /// one message.
    fn mr_min_for(msg_bytes: usize) -> usize {
        let usual = Self::default().mr_min_bytes;
        if is_power_multiple(usual, msg_bytes) {
            usual
        } else {
            msg_bytes
        }
    }

    /// The largest region that goes with a first one: as large as possible up to the default, and
    /// never less than the first. At least 1 MiB, as 8 MiB leaves more than one doubling below it.
    fn mr_max_for(mr_min_bytes: usize) -> usize {
        let usual = Self::default().mr_max_bytes;
        let mut bytes = mr_min_bytes;
        while bytes <= usual / 2 {
            bytes *= 2;
        }
        bytes
    }
}

/// Whether `bytes` is `base` times 1, 2, 4, ...
fn is_power_multiple(bytes: usize, base: usize) -> bool {
    bytes.is_multiple_of(base) && (bytes / base).is_power_of_two()
}
