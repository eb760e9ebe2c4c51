//! The problem of a setting, in one line that a person can act on.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::key::KEYS;

/// Where a setting was found. The order is that of precedence: a greater origin wins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Origin {
    /// A line of a configuration file; line 0 is the file as a whole.
    File {
        /// The path as given.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// The environment variable of the key's own name.
    Environment,
    /// A flag of `netacc_run`.
    Flag(char),
}

impl Origin {
    /// Precedence without the place: 0 is left for defaults.
    pub(crate) fn rank(&self) -> u8 {
        match self {
            Self::File { .. } => 1,
            Self::Environment => 2,
            Self::Flag(_) => 3,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line: 0 } => write!(f, "{}", Printable(&path.to_string_lossy())),
            Self::File { path, line } => {
                write!(f, "{}:{line}", Printable(&path.to_string_lossy()))
            }
            Self::Environment => f.write_str("environment"),
            Self::Flag(flag) => write!(f, "-{flag}"),
        }
    }
}

/// One setting that could not be used, or not as it stands. [`fmt::Display`] gives one line with the place, the key,
/// the value and the allowed values; it never contains a control character.
#[derive(Debug)]
pub struct Problem {
    /// Where.
    pub origin: Origin,
    /// The key, known or unknown, if the line has one.
    pub key: Option<String>,
    /// The value as given, or the line that is no setting.
    pub value: Option<String>,
    /// What is wrong.
    pub kind: ProblemKind,
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProblemKind {
    /// The value is not one the key takes.
    #[error("not allowed, ignored; allowed: {allowed}")]
    BadValue {
        /// The key's allowed values, in words.
        allowed: String,
    },
    /// Each value is allowed, but not together with another key's.
    #[error("breaks a rule, {used} is used; allowed: {rule}")]
    BrokenRule {
        /// The rule, with the other key's value.
        rule: String,
        /// The value that is used instead.
        used: usize,
    },
    /// The value is allowed, and changes nothing.
    #[error("without effect: {why}")]
    NoEffect {
        /// Why.
        why: &'static str,
    },
    /// There is no such key.
    #[error("unknown key, ignored; {}", match suggestion {
        Some(name) => format!("did you mean {name}?"),
        None => format!("allowed: {}", all_keys()),
    })]
    UnknownKey {
        /// The key that it resembles.
        suggestion: Option<&'static str>,
    },
    /// The section is not `[netacc]`; its lines are ignored.
    #[error("unknown section, ignored with its lines; allowed: [netacc]")]
    UnknownSection,
    /// The setting stands before any section.
    #[error("is outside a section, ignored; allowed: after the line [netacc]")]
    OutsideSection,
    /// The line is not a section, a setting, a comment or empty.
    #[error("not a setting, ignored; allowed: KEY=value, [netacc], # comment")]
    NotASetting,
    /// A quoted value does not end, or more than a comment follows it.
    #[error("badly quoted, ignored; allowed: \"value\" with nothing but a comment after it")]
    BadQuotes,
    /// The line is not UTF-8 text.
    #[error("not UTF-8 text, ignored; allowed: UTF-8")]
    NotUtf8,
    /// The key was set before in the same file.
    #[error("set again: this one counts, not line {first_line}; allowed: once")]
    Repeated {
        /// The line where it was set before.
        first_line: usize,
    },
    /// The file cannot be read.
    #[error("cannot be read ({0}); allowed: a readable text file")]
    Unreadable(#[source] io::Error),
    /// The file is not a regular file, and might never end.
    #[error("not a regular file, ignored; allowed: a readable text file")]
    NotAFile,
    /// The file is longer than any configuration can be.
    #[error("longer than {limit} bytes, ignored; allowed: up to that")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// There are more problems than are reported.
    #[error("{more} more problems are not shown")]
    TooMany {
        /// How many.
        more: usize,
    },
}

impl Problem {
    /// Whether the setting may have been meant to keep the program on TCP, so that acceleration could be against the
    /// user's intent.
    pub fn keeps_on_tcp(&self) -> bool {
        match &self.kind {
            ProblemKind::Unreadable(_) | ProblemKind::NotAFile | ProblemKind::TooLong { .. } => true,
            ProblemKind::Repeated { .. } | ProblemKind::BrokenRule { .. } | ProblemKind::NoEffect { .. } => false,
            // An unknown key that resembles a switch counts as that switch with a bad value.
            ProblemKind::UnknownKey { suggestion } => is_guard(*suggestion),
            _ => is_guard(self.key.as_deref()),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        match (&self.key, &self.value) {
            (Some(key), Some(value)) if value.contains('"') => {
                write!(f, "{}={}: ", Printable(key), Printable(value))?;
            }
            (Some(key), Some(value)) => write!(f, "{}=\"{}\": ", Printable(key), Printable(value))?,
            (Some(text), None) | (None, Some(text)) => write!(f, "{}: ", Printable(text))?,
            (None, None) => {}
        }
        write!(f, "{}", self.kind)?;
        if self.keeps_on_tcp() {
            f.write_str(" (the program stays on TCP)")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problem {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            ProblemKind::Unreadable(error) => Some(error),
            _ => None,
        }
    }
}

fn is_guard(name: Option<&str>) -> bool {
    KEYS.iter().any(|key| key.guards && Some(key.name) == name)
}

fn all_keys() -> String {
    KEYS.iter().map(|key| key.name).collect::<Vec<_>>().join(", ")
}

/// Text from outside in a form that is safe to show: control characters escaped, and cut at a length that keeps one
/// problem on one line.
struct Printable<'a>(&'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LIMIT: usize = 256;
        for c in self.0.chars().take(LIMIT) {
            if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
                write!(f, "{}", c.escape_default())?;
            } else {
                write!(f, "{c}")?;
            }
        }
        if self.0.chars().nth(LIMIT).is_some() {
            f.write_str("...")?;
        }
        Ok(())
    }
}
