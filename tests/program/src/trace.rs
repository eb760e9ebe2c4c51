//! The results of a program.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A byte that is not the one sent at its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wrong {
    /// The position in the direction.
    pub position: u64,
    /// The byte that should be there.
    pub expected: u8,
    /// The byte that is there.
    pub found: u8,
}

/// The result of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    /// The call's result: bytes, a value, 0; -1 with `errno`. For a step of several calls, their sum.
    pub ret: i64,
    /// The errno's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errno: Option<String>,
    /// The stream ended after those bytes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub end: bool,
    /// Bytes were lost, doubled, reordered or changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wrong: Option<Wrong>,
    /// Readiness by slot: of `poll` and `epoll_wait`, as the names of the bits joined by `|`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub events: BTreeMap<u32, String>,
    /// For an epoll instance: the result of `poll` for all its slots at that time.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub level: BTreeMap<u32, String>,
    /// SIGPIPE was raised.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sigpipe: bool,
    /// It did not return in time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stuck: bool,
    /// The slot is not open, the process has gone, or the executor cannot do this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// The number of calls that it took, for human readers only.
    #[serde(skip_serializing_if = "is_zero")]
    pub calls: u32,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl Outcome {
    /// A call that returned a value.
    pub fn value(ret: i64) -> Outcome {
        Outcome { ret, ..Outcome::default() }
    }

    /// A call that failed.
    pub fn error(name: impl Into<String>) -> Outcome {
        Outcome { ret: -1, errno: Some(name.into()), ..Outcome::default() }
    }

    /// A step that was not taken.
    pub fn skipped(why: impl Into<String>) -> Outcome {
        Outcome { skipped: Some(why.into()), ..Outcome::default() }
    }

    /// A step that did not return.
    pub fn stuck() -> Outcome {
        Outcome { stuck: true, ..Outcome::default() }
    }
}

/// The results of a program's steps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Trace {
    /// One for each step.
    pub outcomes: Vec<Outcome>,
    /// Bytes that the steps received.
    pub app_bytes: u64,
    /// Bytes that the kernel's TCP delivered for them, read from the kernel itself. Fewer than `app_bytes`: the rest
    /// went over something else.
    pub kernel_bytes: u64,
    /// The executor's own failure: the trace is meaningless.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}
