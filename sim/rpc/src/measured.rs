//! What a run measures.

use std::time::Duration;

use netacc_device::Instant;
use netacc_driver::StreamCounters;
use netacc_host::Usage;
use netacc_rnic::network::TraceHash;

use crate::process::Broken;
use crate::Run;

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

/// What a conversation has measured: from when a request was made until the last byte of its response was read.
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

/// What going onto links has taken, at all hosts.
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

/// How a run went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// By conversation.
    pub measured: Vec<Measured>,
    /// Short connections that were closed, if the run is sampled.
    pub connections: Vec<ShortConnection>,
    /// By conversation: bytes that its two processes have read, by path.
    pub carried: Vec<Carried>,
    /// What going onto links has taken.
    pub set_up: SetUp,
    /// Connections that processes or their kernels still have.
    pub connections_now: usize,
    /// Whether all requests were answered.
    pub complete: bool,
    /// Every packet that was delivered, and when.
    pub trace: TraceHash,
    /// When the last thing happened.
    pub end: Instant,
    /// What the processors of each host were used for; `None` where calls take no time.
    pub usage: Vec<Option<Usage>>,
}

impl Run {
    /// How it went so far.
    ///
    /// # Errors
    /// The first byte that was not the one written.
    pub fn outcome(&self) -> Result<Outcome, Broken> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        Ok(Outcome {
            measured: self.measured.clone(),
            connections: self.connections.clone(),
            carried: self.carried(),
            set_up: self.set_up(),
            connections_now: self.connections_now(),
            complete: self.open == 0,
            trace: self.cluster.trace(),
            end: self.cluster.now(),
            usage: (0..self.desks.len() as u32).map(|host| self.usage(host)).collect(),
        })
    }

    /// What a conversation has measured so far.
    ///
    /// # Errors
    /// The first byte, of any conversation, that was not the one written.
    pub fn measured(&self, number: usize) -> Result<Option<&Measured>, Broken> {
        match &self.broken {
            Some(broken) => Err(broken.clone()),
            None => Ok(self.measured.get(number)),
        }
    }

    /// The requests answered since the last call, in order, if the run is sampled.
    pub fn take_samples(&mut self) -> Vec<Sample> {
        std::mem::take(&mut self.samples)
    }

    /// The short connections that were closed since the last call, in order, if the run is sampled.
    pub fn take_connections(&mut self) -> Vec<ShortConnection> {
        std::mem::take(&mut self.connections)
    }

    /// By conversation: bytes that its two processes have read, by path.
    pub fn carried(&self) -> Vec<Carried> {
        let mut carried = self.carried.clone();
        for (_, talk) in &self.talks {
            for (side, socket) in talk.sockets.iter().enumerate() {
                let Some(socket) = socket else { continue };
                let counters = socket.cell.lock(&self.endpoints[talk.host(side)]).counters();
                carried[talk.conversation as usize].add(&counters);
            }
        }
        carried
    }

    /// What going onto links has taken so far.
    pub fn set_up(&self) -> SetUp {
        let sum = |name: &str| -> u64 {
            self.endpoints.iter().map(|e| e.counters().snapshot().get(name).copied().unwrap_or_default()).sum()
        };
        SetUp {
            // Each end counts; who opens a stream alone takes a link again.
            links_made: sum("links_established") / 2,
            links_reused: sum("links_reused"),
            links_failed: sum("links_failed") / 2,
            asked: sum("opens_sent"),
            promoted: sum("streams_promoted") / 2,
            voided: sum("pledges_voided"),
        }
    }

    /// Connections that processes or their kernels have now, those included that are being made or closed.
    pub fn connections_now(&self) -> usize {
        self.talks.len()
    }

    /// Bytes that processes have read: while that stands still, there is no progress.
    pub fn bytes_read(&self) -> u64 {
        self.read
    }

    /// Requests that were answered.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Requests that were made and not answered.
    pub fn unanswered(&self) -> u64 {
        self.talks.iter().map(|(_, talk)| talk.asked.len() as u64).sum()
    }

    /// Virtual time.
    pub fn now(&self) -> Instant {
        self.cluster.now()
    }

    /// Whether somebody waits, for an answer or to be able to ask.
    pub fn is_waiting(&self) -> bool {
        let now = self.cluster.now();
        self.talks.iter().any(|(_, t)| !t.asked.is_empty() || t.source.due().is_some_and(|due| due <= now))
    }

    /// Whether everything was asked and answered.
    pub fn is_complete(&self) -> bool {
        self.open == 0
    }

    /// The first byte that was not the one written.
    pub fn broken(&self) -> Option<&Broken> {
        self.broken.as_ref()
    }

    /// A hash over every packet that was delivered, and when.
    pub fn trace(&self) -> TraceHash {
        self.cluster.trace()
    }
}

/// How long it took from one time to another, in nanoseconds.
pub(crate) fn ns(from: Instant, to: Instant) -> u64 {
    let taken: Duration = to.saturating_since(from);
    u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX)
}
