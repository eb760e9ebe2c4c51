//! How a run went, and how far it is.

use netacc_device::Instant;
use netacc_host::Usage;
use netacc_rnic::network::TraceHash;

use crate::measured::{Carried, Measured, Sample, SetUp, ShortConnection};
use crate::process::Broken;
use crate::run::Run;
use crate::stages::TracedMessage;

/// How a run went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// By conversation.
    pub measured: Vec<Measured>,
    /// Messages that were read, if the run is traced.
    pub messages: Vec<TracedMessage>,
    /// Short connections that were closed, if the run is sampled.
    pub connections: Vec<ShortConnection>,
    /// By conversation: bytes that its two processes have read, by path.
    pub carried: Vec<Carried>,
    /// By conversation: datagrams that were lost.
    pub lost: Vec<u64>,
    /// Counts and times of promotions.
    pub set_up: SetUp,
    /// Connections that processes or their kernels still have.
    pub connections_now: usize,
    /// Whether all requests were answered.
    pub complete: bool,
    /// Every packet that was delivered, and when.
    pub trace: TraceHash,
    /// When the last thing happened.
    pub end: Instant,
    /// How the processors of each host were used; `None` where calls take no time.
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
            measured: self.results.measured.clone(),
            messages: self.results.messages.clone(),
            connections: self.results.closed.clone(),
            carried: self.carried(),
            lost: (0..self.flows.len()).map(|number| self.lost(number)).collect(),
            set_up: self.set_up(),
            connections_now: self.connections_now(),
            complete: self.open == 0,
            trace: self.cluster.trace(),
            end: self.cluster.now(),
            usage: (0..self.hosts.len() as u32).map(|host| self.usage(host)).collect(),
        })
    }

    /// The latencies of a conversation so far.
    ///
    /// # Errors
    /// The first byte, of any conversation, that was not the one written.
    pub fn measured(&self, number: usize) -> Result<Option<&Measured>, Broken> {
        match &self.broken {
            Some(broken) => Err(broken.clone()),
            None => Ok(self.results.measured.get(number)),
        }
    }

    /// The requests answered since the last call, in order, if the run is sampled.
    pub fn take_samples(&mut self) -> Vec<Sample> {
        std::mem::take(&mut self.results.samples)
    }

    /// The messages that were read since the last call, in order, if the run is traced.
    pub fn take_messages(&mut self) -> Vec<TracedMessage> {
        std::mem::take(&mut self.results.messages)
    }

    /// The short connections that were closed since the last call, in order, if the run is sampled.
    pub fn take_connections(&mut self) -> Vec<ShortConnection> {
        std::mem::take(&mut self.results.closed)
    }

    /// By conversation: bytes that its two processes have read, by path.
    pub fn carried(&self) -> Vec<Carried> {
        let mut carried = self.results.carried.clone();
        for (_, connection) in &self.connections {
            for (side, socket) in connection.sockets.iter().enumerate() {
                let Some(socket) = socket else { continue };
                let counters = socket.cell.lock(&self.endpoints[connection.host(side)]).counters();
                carried[connection.conversation as usize].add(&counters);
            }
        }
        carried
    }

    /// Counts and times of promotions so far.
    pub fn set_up(&self) -> SetUp {
        let sum = |name: &str| -> u64 {
            self.endpoints.iter().map(|e| e.counters().snapshot().get(name).copied().unwrap_or_default()).sum()
        };
        SetUp {
            // Each end counts; only the opener of a stream takes a link again.
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
        self.connections.len()
    }

    /// Bytes that processes have read: while that stands still, there is no progress.
    pub fn bytes_read(&self) -> u64 {
        self.results.read
    }

    /// Datagrams of a conversation that were lost.
    pub fn lost(&self, conversation: usize) -> u64 {
        self.flows.get(conversation).and_then(Option::as_ref).map_or(0, |flow| flow.lost)
    }

    /// Requests that were answered.
    pub fn answered(&self) -> u64 {
        self.results.answered
    }

    /// Requests that were made and not answered.
    pub fn unanswered(&self) -> u64 {
        let of_connections = self.connections.iter().map(|(_, connection)| connection.exchanges.len() as u64);
        of_connections.chain(self.flows.iter().flatten().map(|flow| flow.unanswered())).sum::<u64>()
            + self.exchanges.unanswered()
    }

    /// Virtual time.
    pub fn now(&self) -> Instant {
        self.cluster.now()
    }

    /// Whether a client waits, for an answer or to be able to make a request.
    pub fn is_waiting(&self) -> bool {
        let now = self.cluster.now();
        let waits = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        self.connections.iter().any(|(_, t)| !t.exchanges.is_empty() || waits(t.source.due()))
            || self.flows.iter().flatten().any(|flow| flow.is_waiting(now))
            || self.exchanges.unanswered() > 0
    }

    /// Whether everything was asked and answered.
    pub fn is_complete(&self) -> bool {
        self.open == 0
    }

    /// The first byte that was not the one written.
    pub fn broken(&self) -> Option<&Broken> {
        self.broken.as_ref()
    }

    /// A hash over every packet that was delivered, everything that a simulator's TCP has brought, and when.
    pub fn trace(&self) -> TraceHash {
        self.cluster.trace()
    }
}
