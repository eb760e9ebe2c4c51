//! The content of `meta.json`.

use hdrhistogram::Histogram;
use netacc_rpc::SetUp;
use serde::Serialize;

use crate::scenario::Scenario;

/// The verdict on a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It goes on.
    Going,
    /// Everything was asked and answered.
    Complete,
    /// A process waits, and no byte was read for too long.
    Stalled,
    /// The time to answer the last requests is over.
    Unfinished,
    /// A byte was not the one written.
    Broken,
}

/// The counters of ports and switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NetworkCounts {
    /// Packets lost on links.
    pub lost: u64,
    /// Packets that found no room in a switch.
    pub dropped: u64,
    /// Packets that a switch has marked.
    pub marked: u64,
    /// Pauses that switches have sent.
    pub pauses: u64,
    /// The most bytes that ever waited at one port of a switch.
    pub max_queue_bytes: u64,
    /// TCP connections that could not be made, or broke.
    pub tcp_failed: u64,
}

/// Sums over all NICs.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct NicCounts {
    pub(crate) data_sent: u64,
    pub(crate) data_repeated: u64,
    pub(crate) data_delivered: u64,
    pub(crate) timeouts: u64,
    pub(crate) not_ready_sent: u64,
    pub(crate) notifications_sent: u64,
    pub(crate) context_misses: u64,
    pub(crate) region_misses: u64,
    pub(crate) receive_overflows: u64,
    pub(crate) failed: u64,
}

/// Sums over the processors of some hosts.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct ProcessorCounts {
    pub(crate) hosts: u32,
    /// Core time in calls and in the application.
    pub(crate) busy_ns: u64,
    /// Core time in polling for nothing.
    pub(crate) polling_ns: u64,
    /// How often a thread that slept was woken.
    pub(crate) wake_ups: u64,
    /// How often a thread asked for what is ready.
    pub(crate) asks: u64,
    /// Time for which work had to wait for interruptions of its core.
    pub(crate) interrupted_ns: u64,
}

/// Counts and times of promotions, at all hosts.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct LinkCounts {
    /// A queue pair and its rings at both ends.
    pub(crate) made: u64,
    /// Times that a connection went onto a link that another one had left.
    pub(crate) reused: u64,
    pub(crate) failed: u64,
    /// Times that a connection asked for a link.
    pub(crate) asked: u64,
    pub(crate) promoted: u64,
    /// Of `promoted`, those after the warm-up.
    pub(crate) promoted_late: u64,
    /// Promotions that were cancelled.
    pub(crate) voided: u64,
}

/// The entry of a group.
#[derive(Serialize)]
pub(crate) struct GroupMeta<'a> {
    pub(crate) name: &'a str,
    pub(crate) connections: usize,
    /// Requests made within the measured span and answered: those in the histogram.
    pub(crate) samples: u64,
    /// Datagrams that were lost in the whole run: on the network, or because too many waited for their program.
    pub(crate) lost: u64,
    /// Answers that came within the measured span, a second.
    pub(crate) answered_per_s: f64,
    /// Bytes of those requests and responses, a second.
    pub(crate) bytes_per_s: f64,
    /// The share of the bytes read in the whole run that came on links.
    pub(crate) link_share: f64,
    #[serde(flatten)]
    pub(crate) latency: Latency,
    /// `None` where connections last.
    pub(crate) short: Option<ShortMeta>,
}

/// Of a histogram.
#[derive(Serialize)]
pub(crate) struct Latency {
    pub(crate) mean_ns: f64,
    pub(crate) min_ns: u64,
    pub(crate) p50_ns: u64,
    pub(crate) p90_ns: u64,
    pub(crate) p95_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) p999_ns: u64,
    pub(crate) max_ns: u64,
}

/// Short connections of a group that were begun within the measured span.
#[derive(Serialize)]
pub(crate) struct ShortMeta {
    pub(crate) made: u64,
    /// Those that could not be made, or broke.
    pub(crate) failed: u64,
    /// Those that have been on a link.
    pub(crate) promoted: u64,
    pub(crate) made_per_s: f64,
    pub(crate) connect: Latency,
    pub(crate) whole: Latency,
}

/// `meta.json`.
#[derive(Serialize)]
pub(crate) struct Meta<'a> {
    pub(crate) format: u32,
    pub(crate) status: Verdict,
    pub(crate) scenario: &'a Scenario,
    pub(crate) code_version: &'a str,
    pub(crate) ns3_version: &'a str,
    /// The hash over everything that was delivered, TCP's bytes included: the same for the same scenario and code.
    pub(crate) trace_hash: String,
    pub(crate) deliveries: u64,
    pub(crate) simulated_ns: u64,
    pub(crate) events: u64,
    pub(crate) wall_s: f64,
    pub(crate) answered: u64,
    pub(crate) unanswered: u64,
    pub(crate) connections: usize,
    /// Connections that processes or their kernels had when the run ended: lasting ones, and short ones not closed yet.
    pub(crate) connections_left: usize,
    /// Connections that were on a link when the run ended.
    pub(crate) linked: usize,
    pub(crate) groups: Vec<GroupMeta<'a>>,
    pub(crate) network: NetworkCounts,
    pub(crate) nics: NicCounts,
    pub(crate) links: LinkCounts,
    /// Of hosts with servers; zeros where calls take no time.
    pub(crate) servers: ProcessorCounts,
    /// Of the others.
    pub(crate) clients: ProcessorCounts,
}

impl Latency {
    pub(crate) fn of(histogram: &Histogram<u64>) -> Latency {
        let quantile = |q| histogram.value_at_quantile(q);
        Latency {
            mean_ns: histogram.mean(),
            min_ns: if histogram.is_empty() { 0 } else { histogram.min() },
            p50_ns: quantile(0.5),
            p90_ns: quantile(0.9),
            p95_ns: quantile(0.95),
            p99_ns: quantile(0.99),
            p999_ns: quantile(0.999),
            max_ns: histogram.max(),
        }
    }
}

impl From<SetUp> for LinkCounts {
    fn from(set_up: SetUp) -> LinkCounts {
        let SetUp { links_made, links_reused, links_failed, asked, promoted, voided } = set_up;
        let (made, reused, failed) = (links_made, links_reused, links_failed);
        LinkCounts { made, reused, failed, asked, promoted, promoted_late: 0, voided }
    }
}

impl NicCounts {
    pub(crate) fn add(&mut self, c: &netacc_rnic::Counters) {
        self.data_sent += c.data_sent;
        self.data_repeated += c.data_repeated;
        self.data_delivered += c.data_delivered;
        self.timeouts += c.timeouts;
        self.not_ready_sent += c.not_ready_sent;
        self.notifications_sent += c.notifications_sent;
        self.context_misses += c.context_misses;
        self.region_misses += c.region_misses;
        self.receive_overflows += c.receive_overflows;
        self.failed += c.failed;
    }
}
