//! The resolved form of a scenario, as JSON. Unknown keys are errors.

use std::num::NonZeroU32;

use netacc_host::ProcessorConfig;
use serde::{Deserialize, Serialize};

use crate::parameters::{Device, Switch};

/// Version of the format.
const FORMAT: u32 = 6;

/// An error in a resolved scenario.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// Not JSON, or not of this form.
    #[error("the scenario cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// Written for another version.
    #[error("the scenario has format {0}, this simulator reads {FORMAT}")]
    Format(u32),
    /// A value that is not valid.
    #[error("the scenario is not valid: {0}")]
    Invalid(String),
    /// The hosts cannot be made.
    #[error("a host cannot be made: {0}")]
    Device(#[from] netacc_device::DeviceError),
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Version of this format.
    pub format: u32,
    /// For people.
    pub name: String,
    /// Decides everything that is random.
    pub seed: u64,
    /// Hosts, switches, links.
    pub network: Network,
    /// Every host's.
    pub device: Device,
    /// Every host's.
    pub stack: Stack,
    /// Every host's; `None`: calls take no time.
    pub processors: Option<Processors>,
    /// Clients, servers and their requests.
    pub groups: Vec<Group>,
    /// Faults of the network, and their times.
    #[serde(default)]
    pub faults: Vec<Fault>,
    /// The measured span, and the end of the run.
    pub measure: Measure,
}

/// Hosts are nodes `0..hosts`, switches the `switches` nodes after them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Hosts; each has one link.
    pub hosts: u32,
    /// Switches.
    pub switches: u32,
    /// The links. Packets take a shortest path; flows are spread over all that are.
    pub links: Vec<Link>,
    /// Every switch's.
    pub switch: Switch,
}

/// A link, the same both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// One end.
    pub a: u32,
    /// The other.
    pub b: u32,
    /// Bits per second.
    pub rate_bps: u64,
    /// From the last bit sent to the last bit received.
    pub delay_ns: u64,
    /// Packets lost of a million.
    pub loss_ppm: u32,
}

/// The production core, and the TCP under it and beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stack {
    /// Buffer of a TCP socket; 0: TCP's bytes take no time, and connections talk on their links only.
    pub tcp_buffer_bytes: u32,
    /// Bytes of a TCP packet at most, with the headers of IP and TCP.
    pub tcp_mtu_bytes: u16,
    /// `NACC_RING_SIZE`.
    pub ring_bytes: u32,
    /// `NACC_SOR_MSG_SIZE`.
    pub message_bytes: u32,
    /// `NACC_SOR_CONN_PER_QP`.
    pub streams_per_link: u16,
    /// `NACC_PROMOTE_AFTER`.
    pub promote_after: u32,
}

/// Every host's processors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Processors {
    /// Cores of a host; 0 for as many as there are threads.
    pub cores: u32,
    /// Threads of the process on a host that has a server.
    pub server_threads: u32,
    /// Threads of the process on any other host.
    pub client_threads: u32,
    /// The order in which a thread of a server's process serves its connections.
    pub server_loop: Loop,
    /// The order in which a thread of any other process serves its connections.
    pub client_loop: Loop,
    /// Costs of calls.
    pub costs: ProcessorConfig,
}

/// The order in which a thread serves its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loop {
    /// It asks, reads and writes for one after the other.
    Turns,
    /// It asks for all that are ready, then reads and writes one after the other.
    Rounds,
    /// It reads all that are ready, then writes all.
    Batches,
    /// It reads from those that are ready, and writes to them when it has asked again.
    Deferred,
}

/// Connections that do the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Names its results.
    pub name: String,
    /// Where its connections are.
    pub clients: Vec<Client>,
    /// They are promoted. If not, they stay on TCP.
    pub promote: bool,
    /// What each of its calls moves, where connections carry requests.
    #[serde(default)]
    pub calls: Calls,
    /// The costs of its calls, if they are others than the hosts': it is on another stack.
    pub costs: Option<ProcessorConfig>,
    /// Lengths of requests.
    pub request: Vec<SizeBin>,
    /// Lengths of responses.
    pub response: Vec<SizeBin>,
    /// Requests of a connection, which is then closed: the arrival, `start_ns` and `count` are of connections. `None`: connections
    /// last.
    pub requests_per_connection: Option<NonZeroU32>,
    /// Requests are UDP datagrams, and whether each is answered with one. `None`: connections carry them.
    pub datagrams: Option<Datagrams>,
    /// Requests are messages of RDMA verbs, without the core. `None`: connections or datagrams carry them.
    pub verbs: Option<Verbs>,
    /// When requests come.
    pub arrival: Arrival,
    /// First requests are due from then on.
    pub start_ns: u64,
    /// First requests are spread over so long.
    pub start_spread_ns: u64,
    /// Requests of each connection at most.
    pub count: Option<u64>,
    /// The application's work for a request, at the server.
    pub service_ns: u64,
    /// The application's work for an answer, at the client.
    pub client_service_ns: u64,
    /// The client's work after it has written, in nanoseconds.
    pub client_after_write_ns: u64,
    /// The server's work in each round of its event loop, in nanoseconds.
    pub round_service_ns: u64,
    /// The same of the client's.
    pub client_round_service_ns: u64,
    /// More of the server's work, in nanoseconds, for a turn whose connection's state is displaced from the caches.
    pub cold_service_ns: u64,
    /// The same of the client's.
    pub client_cold_service_ns: u64,
}

/// What one call moves on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Calls {
    /// All that there is.
    #[default]
    Joined,
    /// One message.
    Single,
}

/// How a server treats datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Datagrams {
    /// It answers each.
    Answered,
    /// It takes each.
    Taken,
}

/// Messages of RDMA verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verbs {
    /// How they are sent.
    pub verb: Verb,
    /// The server answers each with one of its own.
    pub answered: bool,
}

/// How messages of RDMA verbs are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verb {
    /// By RDMA writes; the receiver polls memory.
    Write,
    /// By SENDs; the receiver polls its completion queue.
    Send,
}

/// Connections from one host to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    /// Host of the clients.
    pub client: u32,
    /// Host of the server.
    pub server: u32,
    /// How many; of short ones, how many clients make them.
    pub connections: u32,
}

/// Equally likely lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SizeBin {
    /// Relative to the others'.
    pub weight: u32,
    /// Shortest.
    pub min_bytes: u32,
    /// Longest.
    pub max_bytes: u32,
}

/// A span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pause {
    /// Mean.
    pub mean_ns: u64,
    /// Exponentially distributed; else always the same.
    pub exponential: bool,
}

/// A request that waits for others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dependent {
    /// Its length.
    pub bytes: u32,
    /// What is to be received before: the number of a connection in the group, and how many of its requests.
    pub after: Vec<(u32, u64)>,
}

/// When requests of a connection come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Arrival {
    /// When earlier ones were answered.
    Closed {
        /// Unanswered at a time.
        depth: u32,
        /// Between an answer and the next request.
        think: Pause,
    },
    /// At their times, whether or not earlier ones are answered.
    Open {
        /// Between requests.
        interval: Pause,
    },
    /// Recorded: time, bytes of request, bytes of response.
    Trace {
        /// In order of time.
        requests: Vec<(u64, u32, u32)>,
    },
    /// Requests of each connection, in their order, which wait for others. Responses are one byte.
    After {
        /// As many lists as there are connections.
        requests: Vec<Vec<Dependent>>,
    },
    /// One request of each connection, in their order: its time and its bytes. The response is one byte.
    Flows {
        /// As many as there are connections.
        flows: Vec<(u64, u32)>,
    },
}

/// A link changes, both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// When.
    pub at_ns: u64,
    /// Its number.
    pub link: u32,
    /// Bits per second from then on.
    pub rate_bps: u64,
    /// Packets lost of a million from then on; a million is a cut.
    pub loss_ppm: u32,
    /// Switches go around links that are cut, from then on.
    pub reroute: bool,
}

/// The measured span, and the end of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measure {
    /// Requests made before do not count.
    pub warmup_ns: u64,
    /// Requests made in so long after that count; none are made after.
    pub duration_ns: u64,
    /// How long the last ones may take to be answered.
    pub drain_ns: u64,
    /// A run that makes no progress for so long has failed.
    pub stall_ns: u64,
    /// The time between progress reports.
    pub progress_ns: u64,
    /// Whether each request is written down.
    pub samples: bool,
    /// Whether the stages of each message are written down.
    #[serde(default)]
    pub stages: bool,
    /// Whether the state of each port is written down with each progress report.
    pub ports: bool,
}

impl Scenario {
    /// Reads and checks one.
    ///
    /// # Errors
    /// The text is not a valid scenario.
    pub fn parse(text: &str) -> Result<Scenario, ScenarioError> {
        let scenario: Scenario = serde_json::from_str(text)?;
        if scenario.format != FORMAT {
            return Err(ScenarioError::Format(scenario.format));
        }
        scenario.check().map_err(ScenarioError::Invalid)?;
        Ok(scenario)
    }

    fn check(&self) -> Result<(), String> {
        let refuse = |bad: bool, what: &str| if bad { Err(what.to_owned()) } else { Ok(()) };
        let Network { hosts, switches, links, switch } = &self.network;
        let nodes = hosts.checked_add(*switches).ok_or("too many nodes")?;
        refuse(links.iter().any(|l| l.a.max(l.b) >= nodes || l.a == l.b), "a link joins a node that does not exist")?;
        refuse(links.iter().any(|l| l.rate_bps == 0 || l.loss_ppm > MILLION), "a link has no rate, or loses too much")?;
        let mut degrees = vec![0u32; *hosts as usize];
        links.iter().flat_map(|l| [l.a, l.b]).filter(|n| n < hosts).for_each(|n| degrees[n as usize] += 1);
        refuse(degrees.iter().any(|d| *d != 1), "a host has exactly one link")?;
        refuse(*switches == 0 && *hosts != 2, "without a switch there are two hosts")?;
        refuse(!switch.alpha.is_finite(), "alpha is not a number")?;
        for (value, what) in [
            (self.measure.duration_ns, "duration_ns is 0"),
            (self.measure.stall_ns, "stall_ns is 0"),
            (self.measure.progress_ns, "progress_ns is 0"),
        ] {
            refuse(value == 0, what)?;
        }
        let Stack { tcp_buffer_bytes, tcp_mtu_bytes, .. } = self.stack;
        let stay = self.groups.iter().any(|g| !g.promote);
        refuse(stay && tcp_buffer_bytes == 0, "connections that are not promoted need a TCP that takes time")?;
        refuse(tcp_buffer_bytes > 0 && tcp_mtu_bytes < 576, "tcp_mtu_bytes is at least 576")?;
        let Stack { ring_bytes, message_bytes, .. } = self.stack;
        let threads = self.processors.as_ref().map_or(1, |p| p.server_threads.min(p.client_threads));
        refuse(threads == 0, "a host has no thread")?;
        let of_host = self.processors.as_ref().map(|p| p.costs.stack_thread);
        let unlike = |g: &Group| g.costs.as_ref().is_some_and(|costs| Some(costs.stack_thread) != of_host);
        refuse(
            self.groups.iter().any(unlike),
            "a group has costs of a thread of the stack that its hosts do not have",
        )?;
        refuse(message_bytes == 0 || message_bytes > ring_bytes / 2, "a message is at most half a ring")?;
        let bad_fault = |f: &Fault| f.link as usize >= links.len() || f.rate_bps == 0 || f.loss_ppm > MILLION;
        refuse(
            self.faults.iter().any(bad_fault),
            "a fault names a link that does not exist, or sets an invalid rate or loss",
        )?;
        refuse(self.groups.is_empty(), "there is no group of connections")?;
        let connections = |g: &Group| g.clients.iter().map(|c| c.connections as usize).sum::<usize>();
        let unlike = |g: &Group| matches!(&g.arrival, Arrival::Flows { flows } if flows.len() != connections(g));
        refuse(self.groups.iter().any(unlike), "a group has as many flows as connections")?;
        let both = |g: &Group| g.verbs.is_some() && (g.datagrams.is_some() || g.requests_per_connection.is_some());
        refuse(self.groups.iter().any(both), "a group by verbs has no datagrams and no short connections")?;
        let bad_after = |g: &Group| {
            let Arrival::After { requests } = &g.arrival else { return false };
            let mut on = requests.iter().flatten().flat_map(|dependent| &dependent.after);
            requests.len() != connections(g) || on.any(|(connection, _)| *connection as usize >= requests.len())
        };
        refuse(self.groups.iter().any(bad_after), "a request waits for a connection that the group does not have")?;
        let mut names: Vec<&str> = self.groups.iter().map(|g| g.name.as_str()).collect();
        names.sort_unstable();
        refuse(names.windows(2).any(|w| w[0] == w[1]), "two groups have one name")?;
        let plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
        refuse(names.iter().any(|n| n.is_empty() || !plain(n)), "a group's name is letters, digits, - and _")
    }
}

/// The whole, of which shares are parts per million.
const MILLION: u32 = 1_000_000;
