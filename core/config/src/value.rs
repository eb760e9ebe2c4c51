//! The types of settings that are more than a number: each parses from and prints as the text in the file, so that
//! `parse(print(x)) == x` for every value.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Returned by the parsers here; the caller has the key and its allowed values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an allowed value")]
pub struct InvalidValue;

/// A setting for display: numbers and switches as integers, the rest as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ConfigValue {
    /// An integer key, or a switch as 0 or 1.
    Int(i64),
    /// Any other key.
    Text(String),
}

impl fmt::Display for ConfigValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(value) => write!(f, "{value}"),
            Self::Text(value) => f.write_str(value),
        }
    }
}

/// The device that carries the links (`NACC_BACKEND`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// The best one that works here.
    #[default]
    Auto,
    /// Shared memory between processes of this host.
    Shm,
    /// RDMA devices, through rdma-core.
    Verbs,
    /// None: everything stays on TCP.
    None,
}

/// The profile whose limits an RDMA device is narrowed to (`NACC_VERBS_PROFILE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RdmaProfile {
    /// Its own.
    #[default]
    Native,
    /// Alibaba Cloud's elastic RDMA interface.
    Erdma,
    /// SoftRoCE.
    Rxe,
    /// Soft-iWARP.
    Siw,
    /// NVIDIA ConnectX-4 and later.
    Mlx5,
    /// The common limits of all of them.
    Portable,
}

/// The policy for I/O on an accelerated descriptor that the library did not see (`NACC_POLICY`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnseenIoPolicy {
    /// Log it and continue.
    Log,
    /// Log it and put the connection back on TCP.
    // The default: the only choice that neither stops the program nor continues a stream that another program writes
    // to.
    #[default]
    Demote,
    /// Let the next call on the descriptor fail.
    Error,
    /// Abort the process.
    Abort,
}

/// How the path of a connection between hosts is chosen (`NACC_PATH_CHOICE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathPolicy {
    /// By the time of answers on each: where the link is slower, connections stay on TCP.
    #[default]
    Measured,
    /// The link, wherever there can be one.
    Link,
}

/// Gives an enum its words, both ways.
macro_rules! words {
    ($type:ty { $($word:literal => $variant:ident),+ $(,)? }) => {
        impl FromStr for $type {
            type Err = InvalidValue;
            fn from_str(text: &str) -> Result<Self, InvalidValue> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(InvalidValue),
                }
            }
        }
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $word,)+ })
            }
        }
    };
}
words!(Backend { "auto" => Auto, "shm" => Shm, "verbs" => Verbs, "none" => None });
words!(RdmaProfile { "native" => Native, "erdma" => Erdma, "rxe" => Rxe, "siw" => Siw, "mlx5" => Mlx5, "portable" => Portable });
words!(PathPolicy { "measured" => Measured, "link" => Link });
words!(UnseenIoPolicy { "log" => Log, "demote" => Demote, "error" => Error, "abort" => Abort });

/// The least severe message that is logged (`NACC_LOG_LEVEL`), with NetACC's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// 0
    Trace = 0,
    /// 1
    Debug = 1,
    /// 2
    Info = 2,
    /// 3
    Warn = 3,
    /// 4
    Error = 4,
    /// 5
    Fatal = 5,
}

impl LogLevel {
    /// The level with this number, if there is one.
    pub fn from_number(number: i64) -> Option<Self> {
        Some(match number {
            0 => Self::Trace,
            1 => Self::Debug,
            2 => Self::Info,
            3 => Self::Warn,
            4 => Self::Error,
            5 => Self::Fatal,
            _ => return None,
        })
    }
}

/// How long an empty link is kept for the next connection (`NACC_EMPTY_QP_EXPIRE_MS`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// -1
    Never,
    /// 0 (at once) or a number of milliseconds.
    After(Duration),
}

/// How long to spin for completions before sleeping (`NACC_POLL_MS`, `netacc_run -P`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollBudget {
    /// -1: a budget that shrinks when spinning does not pay.
    Adaptive,
    /// 0 (never spin) or a number of milliseconds.
    Fixed(Duration),
}

/// -1 is `None`; other numbers are milliseconds. The keys have checked the range.
pub(crate) fn millis_from_number(number: i64) -> Option<Duration> {
    u64::try_from(number).ok().map(Duration::from_millis)
}

/// The reverse of [`millis_from_number`]; a duration too long to write is shown as the longest.
pub(crate) fn number_from_millis(duration: Option<Duration>) -> i64 {
    duration.map_or(-1, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}

/// CPUs to which NetACC's threads are bound (`NACC_SOR_AFFINITY`, `-A`): `0`, `1-3`, `1,3,4` or a mix;
/// empty for no binding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuList {
    /// Invariant: ascending, without repetition, below [`CpuList::LIMIT`].
    cpus: Vec<u32>,
}

impl CpuList {
    /// CPU numbers are below this: the size of glibc's `cpu_set_t`.
    pub const LIMIT: u32 = 1024;

    /// The CPUs, ascending.
    pub fn as_slice(&self) -> &[u32] {
        &self.cpus
    }

    /// Whether the kernel places the threads.
    pub fn is_empty(&self) -> bool {
        self.cpus.is_empty()
    }
}

impl FromStr for CpuList {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let cpu = |text: &str| match digits(text.trim()) {
            Some(cpu) if cpu < i64::from(Self::LIMIT) => Ok(cpu as u32),
            _ => Err(InvalidValue),
        };
        // A set first, so that a list with repetitions takes no more memory than one without.
        let mut chosen = [false; Self::LIMIT as usize];
        for part in text.split(',') {
            match part.split_once('-') {
                None => chosen[cpu(part)? as usize] = true,
                Some((first, last)) => {
                    let (first, last) = (cpu(first)?, cpu(last)?);
                    if first > last {
                        return Err(InvalidValue);
                    }
                    chosen[first as usize..=last as usize].fill(true);
                }
            }
        }
        let cpus = (0..).zip(chosen).filter(|(_, chosen)| *chosen);
        Ok(Self { cpus: cpus.map(|(cpu, _)| cpu).collect() })
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.cpus.chunk_by(|a, b| a + 1 == *b);
        for (index, run) in runs.enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match run {
                [one] => write!(f, "{comma}{one}")?,
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

/// A group whose members may share links besides the same user (`NACC_SHM_GROUP`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Group {
    /// By number.
    Id(u32),
    /// By name, looked up when [`Group::resolve`] is called.
    Name(String),
}

impl Group {
    /// The group's number, or `None` when `/etc/group` has no such name.
    ///
    /// Groups that only a directory service knows have to be given by number: querying one from inside a preloaded
    /// library would open sockets in the program that is being started.
    ///
    /// # Errors
    /// `/etc/group` cannot be read.
    pub fn resolve(&self) -> io::Result<Option<u32>> {
        match self {
            Self::Id(id) => Ok(Some(*id)),
            Self::Name(name) => {
                let groups = std::fs::read("/etc/group")?;
                Ok(group_id(&String::from_utf8_lossy(&groups), name))
            }
        }
    }
}

/// Finds `name` in a text with lines `name:password:gid:members`.
fn group_id(groups: &str, name: &str) -> Option<u32> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(name) {
            return None;
        }
        fields.nth(1)?.parse().ok()
    })
}

impl FromStr for Group {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        if let Some(id) = digits(text) {
            // (gid_t)-1 means "no group" to the kernel.
            return match u32::try_from(id) {
                Ok(id) if id != u32::MAX => Ok(Self::Id(id)),
                _ => Err(InvalidValue),
            };
        }
        let starts_well = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        let goes_on_well =
            text.strip_suffix('$').unwrap_or(text).chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c));
        if starts_well && goes_on_well && text.len() <= 32 {
            Ok(Self::Name(text.to_owned()))
        } else {
            Err(InvalidValue)
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "{id}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// Decimal digits and nothing else; `str::parse` alone would let a `+` through.
pub(crate) fn digits(text: &str) -> Option<i64> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_read_as_documented_and_print_canonically() {
        let printed = |text: &str| text.parse::<CpuList>().map(|list| list.to_string());
        assert_eq!(printed("0"), Ok("0".into()));
        assert_eq!(printed("1-3"), Ok("1-3".into()));
        assert_eq!(printed("1,3,4"), Ok("1,3-4".into()));
        assert_eq!(printed(" 7 , 0-2,2"), Ok("0-2,7".into()));
        assert_eq!(printed(""), Ok("".into()));
        for bad in ["3-1", "1,", "-1", "1-", "a", "1024", "0-1024", "1 2", "+1", "1--2"] {
            assert_eq!(printed(bad), Err(InvalidValue), "{bad:?}");
        }
    }

    #[test]
    fn groups_are_names_or_numbers() {
        assert_eq!("0".parse(), Ok(Group::Id(0)));
        assert_eq!("redis".parse(), Ok(Group::Name("redis".into())));
        assert_eq!("pc$".parse(), Ok(Group::Name("pc$".into())));
        for bad in ["", "4294967295", "a b", "a:b", "-1", "$", "1a", "a$b"] {
            assert_eq!(bad.parse::<Group>(), Err(InvalidValue), "{bad:?}");
        }
        let groups = "root:x:0:\nredis:x:114:alice\nbroken\n";
        assert_eq!(group_id(groups, "redis"), Some(114));
        assert_eq!(group_id(groups, "red"), None);
        assert_eq!(group_id(groups, "broken"), None);
    }
}
