//! The resolved form of a scenario, as JSON. Unknown keys are errors.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

/// Version of the format: what `format` says.
const FORMAT: u32 = 1;

/// What is wrong with a resolved scenario.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// Not JSON, or not of this form.
    #[error("the scenario cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// Written for another version.
    #[error("the scenario has format {0}, this simulator reads {FORMAT}")]
    Format(u32),
    /// A value that makes no sense.
    #[error("the scenario makes no sense: {0}")]
    Senseless(String),
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
    pub nic: Nic,
    /// Every host's.
    pub stack: Stack,
    /// Every host's; `None`: calls take no time.
    pub processors: Option<Processors>,
    /// Who asks whom.
    pub groups: Vec<Group>,
    /// What goes wrong, and when.
    #[serde(default)]
    pub faults: Vec<Fault>,
    /// What is measured, and when it ends.
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

/// A switch that stores and forwards.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// Bytes that wait at a port at most.
    pub port_buffer_bytes: u64,
    /// Bytes that wait in a switch at most; 0 for no such bound.
    pub shared_buffer_bytes: u64,
    /// With a shared buffer a port gets at most this many times what is free.
    pub alpha: f64,
    /// Mark data that meets congestion.
    pub mark: bool,
    /// Kmin.
    pub mark_min_bytes: u64,
    /// Kmax.
    pub mark_max_bytes: u64,
    /// Pmax, of a million.
    pub mark_max_ppm: u32,
    /// Priority flow control.
    pub pfc: bool,
    /// Bytes of an ingress above which its peer is paused.
    pub pfc_xoff_bytes: u64,
    /// Bytes of an ingress down to which it stays paused.
    pub pfc_xon_bytes: u64,
}

/// A NIC. What each value means: `netacc_rnic::NicConfig`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the names are those of netacc_rnic::NicConfig, where they are explained")]
pub struct Nic {
    pub mtu_bytes: u32,
    pub selective_repeat: bool,
    pub ack_interval: u32,
    pub retry_timeout_ns: u64,
    pub retry_count: u8,
    pub rnr_pause_ns: u64,
    pub rnr_retry: Option<u8>,
    pub no_receive_is_fatal: bool,
    pub report_flushes: bool,
    pub rebind: bool,
    pub max_in_flight: u32,
    pub rate: Rate,
    pub notification_interval_ns: u64,
    pub max_qp: u32,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_inline_bytes: u32,
    pub context_cache_entries: u32,
    pub region_cache_entries: u32,
    pub receive_buffer_packets: u32,
    pub memory_limit_bytes: u64,
    pub costs: Costs,
    pub commands: Commands,
}

/// What keeps queue pairs from sending too fast.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Rate {
    /// Nothing.
    Unlimited {},
    /// So much unacknowledged.
    FixedWindow {
        /// Payload.
        bytes: u64,
    },
    /// DCQCN.
    Dcqcn(Dcqcn),
}

/// DCQCN's reaction point. What each value means: `netacc_rnic::DcqcnConfig`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the names are those of netacc_rnic::DcqcnConfig, where they are explained")]
pub struct Dcqcn {
    pub gain_shift: u32,
    pub alpha_interval_ns: u64,
    pub decrease_interval_ns: u64,
    pub increase_interval_ns: u64,
    pub increase_bytes: Option<u64>,
    pub fast_recovery_steps: u32,
    pub keeps_target: bool,
    pub additive_bps: u64,
    pub hyper_bps: u64,
    pub min_rate_bps: u64,
}

/// Times that NIC and bus take. What each value means: `netacc_rnic::Costs`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the names are those of netacc_rnic::Costs, where they are explained")]
pub struct Costs {
    pub doorbell_ns: u64,
    pub request_fetch_ns: u64,
    pub payload_fetch_ns: u64,
    pub transmit_packet_ns: u64,
    pub receive_packet_ns: u64,
    pub context_miss_ns: u64,
    pub region_miss_ns: u64,
    pub placement_ns: u64,
    pub completion_ns: u64,
    pub interrupt_ns: u64,
}

/// Times of a NIC's command queue. What each value means: `netacc_rnic::CommandTimes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the names are those of netacc_rnic::CommandTimes, where they are explained")]
pub struct Commands {
    pub create_qp_ns: u64,
    pub connect_qp_ns: u64,
    pub destroy_qp_ns: u64,
    pub register_ns: u64,
    pub register_mib_ns: u64,
    pub deregister_ns: u64,
}

/// The stack under test: the production core, on TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stack {
    /// Connections are promoted. If not, what runs is TCP alone.
    pub promote: bool,
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
    /// Receives posted on a queue pair at most.
    pub receive_depth: u32,
    /// `NACC_PROMOTE_AFTER`.
    pub promote_after: u32,
}

/// Every host's processors. What each value means: `netacc_host::ProcessorConfig`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the names are those of netacc_host::ProcessorConfig, where they are explained")]
pub struct Processors {
    pub cores: u32,
    /// Of a host that some group asks.
    pub server_threads: u32,
    /// Of any other.
    pub client_threads: u32,
    pub spin_ns: u64,
    pub wake_up_ns: u64,
    pub library_call_ns: u64,
    pub system_call_ns: u64,
    pub copy_ps_per_byte: u32,
    pub connection_ns: u64,
    pub link_ns: u64,
    pub promotion_ns: u64,
    pub segment_ns: u64,
    pub segment_bytes: u32,
}

/// Connections that do the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Names its results.
    pub name: String,
    /// Where its connections are.
    pub clients: Vec<Client>,
    /// Lengths of requests.
    pub request: Vec<SizeBin>,
    /// Lengths of responses.
    pub response: Vec<SizeBin>,
    /// Requests of a connection, which is then closed: the arrival, `start_ns` and `count` are of connections. `None`: connections
    /// last.
    pub requests_per_connection: Option<NonZeroU32>,
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

/// When requests of a connection come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Arrival {
    /// When others were answered.
    Closed {
        /// Unanswered at a time.
        depth: u32,
        /// Between an answer and the next request.
        think: Pause,
    },
    /// Whatever becomes of others.
    Open {
        /// Between requests.
        interval: Pause,
    },
    /// Recorded: time, bytes of request, bytes of response.
    Trace {
        /// In order of time.
        requests: Vec<(u64, u32, u32)>,
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

/// What counts, and when it ends.
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
    /// How often progress is told.
    pub progress_ns: u64,
    /// Whether each request is written down.
    pub samples: bool,
}

impl Scenario {
    /// Reads and checks one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Scenario, ScenarioError> {
        let scenario: Scenario = serde_json::from_str(text)?;
        if scenario.format != FORMAT {
            return Err(ScenarioError::Format(scenario.format));
        }
        scenario.check().map_err(ScenarioError::Senseless)?;
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
        refuse(!switch.alpha.is_finite() || switch.alpha < 0.0, "alpha is a positive number")?;
        refuse(switch.mark_max_ppm > MILLION, "mark_max_ppm is a million at most")?;
        let nic = &self.nic;
        for (value, what) in [
            (u64::from(nic.mtu_bytes), "mtu_bytes is 0"),
            (nic.retry_timeout_ns, "retry_timeout_ns is 0"),
            (u64::from(nic.max_in_flight), "max_in_flight is 0"),
            (u64::from(nic.ack_interval), "ack_interval is 0"),
            (self.measure.duration_ns, "duration_ns is 0"),
            (self.measure.stall_ns, "stall_ns is 0"),
            (self.measure.progress_ns, "progress_ns is 0"),
        ] {
            refuse(value == 0, what)?;
        }
        let Stack { promote, tcp_buffer_bytes, tcp_mtu_bytes, .. } = self.stack;
        refuse(!promote && tcp_buffer_bytes == 0, "what is not promoted needs a TCP that takes time")?;
        refuse(tcp_buffer_bytes > 0 && tcp_mtu_bytes < 576, "tcp_mtu_bytes is at least 576")?;
        let Stack { ring_bytes, message_bytes, receive_depth, .. } = self.stack;
        refuse(receive_depth == 0, "receive_depth is 0")?;
        let threads = self.processors.map_or(1, |p| p.server_threads.min(p.client_threads).min(p.segment_bytes));
        refuse(threads == 0, "a host has no thread, or segments have no bytes")?;
        refuse(message_bytes == 0 || message_bytes > ring_bytes / 2, "a message is at most half a ring")?;
        let bad_fault = |f: &Fault| f.link as usize >= links.len() || f.rate_bps == 0 || f.loss_ppm > MILLION;
        refuse(self.faults.iter().any(bad_fault), "a fault of a link that does not exist, or to no rate")?;
        refuse(self.groups.is_empty(), "nobody asks anything")?;
        let mut names: Vec<&str> = self.groups.iter().map(|g| g.name.as_str()).collect();
        names.sort_unstable();
        refuse(names.windows(2).any(|w| w[0] == w[1]), "two groups have one name")?;
        let plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
        refuse(names.iter().any(|n| n.is_empty() || !plain(n)), "a group's name is letters, digits, - and _")
    }
}

/// Parts of which rates of loss and marking are said.
const MILLION: u32 = 1_000_000;
