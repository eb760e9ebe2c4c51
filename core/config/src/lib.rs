//! netacc.conf, `NACC_*` environment and netacc_run flags as one typed [`Config`].
//!
//! The file is NetACC's own (`/etc/netacc.conf`, section `[netacc]`, its fourteen keys, units and defaults) with a few
//! additional keys of this project; [`KEYS`] lists them all, and `netacc.conf` beside this crate's manifest is the
//! commented sample. A setting is taken from the first of these that has it:
//!
//! 1. a flag of `netacc_run`, which travels to the preloaded library as the environment variable
//!    named after its key (`-t 2` becomes `NACC_SOR_IO_THREADS=2`);
//! 2. the environment: every key of the file is also a variable, and [`CONFIG_PATH_VARIABLE`]
//!    (`netacc_run -f`) names the file;
//! 3. the file; 4. the default.
//!
//! Loading never fails. A setting that cannot be used is left out and reported as a [`Problem`], one line each: its
//! place, key, value, and the allowed values. If a problem may hide a setting that switches acceleration off (an
//! unreadable file, a misspelt value of a switch), [`Config::accelerate`] is false and the program runs on TCP.
//!
//! # Choices that the original leaves open
//! - Ranges of plain integers: chosen so that every value in them works; see [`KEYS`].
//! - `NACC_SOR_IO_THREADS` is 1 in the file, while the help of `netacc_run -t` says "default 4". The
//!   help keeps its wording; without `-t` nothing is set and the file's value, or 1, applies.
//! - `-s` alone would break the rule that the regions are `NACC_SOR_MSG_SIZE` x 2^N, because the sample file sets all
//!   three. So a size from a weaker source (default < file < environment < flag) is silently adapted to the one that it
//!   is derived from; in the same source it is a [`Problem`].
//! - A key set twice: the last one counts, and a [`Problem`] reports it.
//!
//! The crate reads one file on request, with `std::fs`, and [the one of the key](read_secret). It does not write, watch
//! or log anything, and has no list of devices: the registry finds whether a backend exists.

mod config;
mod file;
mod key;
mod load;
mod problem;
mod render;
mod secret;
pub mod stats;
pub mod trace;
mod value;

pub use config::{Config, IoConfig, LinkConfig, LogConfig, MemoryConfig, PromotionConfig, ShmConfig};
pub use key::{find_key, Key, KEYS};
pub use load::Loader;
pub use problem::{Origin, Problem, ProblemKind};
pub use render::render_lines;
pub use secret::{read_secret, SecretError, MIN_SECRET_BYTES};
pub use value::{
    Backend, ConfigValue, CpuList, Expiry, Group, LogLevel, PathPolicy, PollBudget, RdmaProfile, UnseenIoPolicy,
};

/// The default path of the configuration file.
pub const DEFAULT_CONFIG_PATH: &str = "/etc/netacc.conf";

/// The environment variable that names another configuration file (`netacc_run -f`).
pub const CONFIG_PATH_VARIABLE: &str = "NETACC_CONF";

/// Set by `netacc_run` once it has printed the configuration's problems: a process that finds it set writes them to the
/// log only, so that each problem is printed once and not by every child.
pub const REPORTED_VARIABLE: &str = "NETACC_TOLD";

/// Names a file to which each process with the library appends its counters, as one line of JSON, when it exits in good
/// order. For test runs whose processes end too soon to be queried.
pub const EXIT_STATS_VARIABLE: &str = "NETACC_EXIT_STATS";

/// Every key, and so every environment variable that is a setting, starts with this.
pub const KEY_PREFIX: &str = "NACC_";
