//! Measurements of a run.

use std::time::Duration;

use netacc_device::Instant;
use netacc_driver::StreamCounters;

/// A request that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The conversation.
    pub conversation: u32,
    /// When it was made; of an open loop, when it was due.
    pub begun: Instant,
    /// When the last byte of its response was read.
    pub end: Instant,
    /// Bytes of the request.
    pub request_bytes: u32,
    /// Bytes of the response.
    pub response_bytes: u32,
}

/// A short connection that its client has used and closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortConnection {
    /// The conversation.
    pub conversation: u32,
    /// When its client began to connect; of an open loop, when it was due.
    pub begun: Instant,
    /// When its client could write. `None` if it could not be made.
    pub connected: Option<Instant>,
    /// When its client closed it, which is when the last answer was there.
    pub end: Instant,
    /// Requests that were answered on it: all, unless it has failed.
    pub answered: u32,
    /// Whether it could not be made, or broke before all was answered.
    pub failed: bool,
    /// Whether it has been on a link.
    pub promoted: bool,
}

/// The latencies of a conversation: from when a request was made until the last byte of its response was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// In nanoseconds, in order.
    pub latencies_ns: Vec<u64>,
}

/// Bytes that processes have read, by path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// From links.
    pub link_bytes: u64,
    /// From TCP.
    pub tcp_bytes: u64,
}

impl Carried {
    pub(crate) fn add(&mut self, counters: &StreamCounters) {
        self.link_bytes += counters.rx_bytes_link;
        self.tcp_bytes += counters.rx_bytes_tcp;
    }
}

/// Counts and times of promotions, at all hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetUp {
    /// Links that were connected: a queue pair and its rings at both ends.
    pub links_made: u64,
    /// Times that a connection went onto a link that another one had left.
    pub links_reused: u64,
    /// Links that died.
    pub links_failed: u64,
    /// Times that a connection asked for a link.
    pub asked: u64,
    /// Times that one went onto a link.
    pub promoted: u64,
    /// Times that one was called off, by either side.
    pub voided: u64,
}

/// How long it took from one time to another, in nanoseconds.
pub(crate) fn ns(from: Instant, to: Instant) -> u64 {
    let taken: Duration = to.saturating_since(from);
    u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX)
}
