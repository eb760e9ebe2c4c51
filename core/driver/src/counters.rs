//! Counters. Plain relaxed atomics for the process, plain integers per stream (under its lock).

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

use netacc_proto::Reason;

/// Bytes and messages of one stream, by path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounters {
    /// Payload bytes sent on the link.
    pub tx_bytes_link: u64,
    /// Payload bytes read by the program from the link.
    pub rx_bytes_link: u64,
    /// DATA messages sent.
    pub tx_msgs_link: u64,
    /// DATA messages received.
    pub rx_msgs_link: u64,
    /// Payload bytes written to the anchor, replays included.
    pub tx_bytes_tcp: u64,
    /// Payload bytes read from the anchor.
    pub rx_bytes_tcp: u64,
}

impl AddAssign for StreamCounters {
    fn add_assign(&mut self, other: StreamCounters) {
        self.tx_bytes_link += other.tx_bytes_link;
        self.rx_bytes_link += other.rx_bytes_link;
        self.tx_msgs_link += other.tx_msgs_link;
        self.rx_msgs_link += other.rx_msgs_link;
        self.tx_bytes_tcp += other.tx_bytes_tcp;
        self.rx_bytes_tcp += other.rx_bytes_tcp;
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Process-wide counters, by name in `netacc_ss -s cnt`.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[$doc])* pub $name: AtomicU64,)* reasons: Reasons }

        impl Counters {
            /// All of them by name.
            pub fn snapshot(&self) -> BTreeMap<String, u64> {
                [$((stringify!($name).to_string(), self.$name.load(Ordering::Relaxed))),*].into()
            }
        }
    };
}

counters! {
    /// Streams that have gone onto a link.
    streams_promoted,
    /// Streams that have come back from one.
    streams_demoted,
    /// OPENs sent.
    opens_sent,
    /// OPENs granted to peers.
    opens_accepted,
    /// OPENs refused to peers.
    opens_refused,
    /// Pledges voided, by either side.
    pledges_voided,
    /// Links connected.
    links_established,
    /// Links that died.
    links_failed,
    /// The links among them that ended because of a silent peer, while the device reported no error.
    links_silent,
    /// Links that were refused, by either side, for the pre-shared key.
    links_refused,
    /// Peers' requests for links that were refused: malformed, too many at a time, or while streams are held back.
    requests_refused,
    /// Streams taken from the cache of empty links.
    links_reused,
    /// Streams that ran out of byte credit.
    byte_credit_stalls,
    /// Streams that ran out of message credit or queue space.
    message_credit_stalls,
    /// Protocol violations of peers.
    violations,
    /// Links that ended because a message was missing or had come before: their device has lost one, or executed one twice.
    links_out_of_turn,
    /// 1 once a message out of turn has shown that the device's links must not be shared automatically any more.
    sharing_stopped,
    /// Payload bytes of closed streams, sent on links.
    tx_bytes_link,
    /// Payload bytes of closed streams, read from links.
    rx_bytes_link,
    /// DATA messages of closed streams, sent.
    tx_msgs_link,
    /// DATA messages of closed streams, received.
    rx_msgs_link,
    /// Payload bytes of closed streams, written to anchors.
    tx_bytes_tcp,
    /// Payload bytes of closed streams, read from anchors.
    rx_bytes_tcp,
}

impl Counters {
    /// Adds the counters of a stream that is gone.
    pub fn absorb(&self, s: &StreamCounters) {
        let pairs = [
            (&self.tx_bytes_link, s.tx_bytes_link),
            (&self.rx_bytes_link, s.rx_bytes_link),
            (&self.tx_msgs_link, s.tx_msgs_link),
            (&self.rx_msgs_link, s.rx_msgs_link),
            (&self.tx_bytes_tcp, s.tx_bytes_tcp),
            (&self.rx_bytes_tcp, s.rx_bytes_tcp),
        ];
        // A short connection has moved bytes on one path only.
        for (counter, n) in pairs.into_iter().filter(|(_, n)| *n > 0) {
            counter.fetch_add(n, Ordering::Relaxed);
        }
    }

    /// Counts one event.
    pub fn bump(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a reason why a connection is, or went, back to TCP.
    pub fn reason(&self, reason: Reason) {
        if let Some(i) = Reason::ALL.iter().position(|r| *r == reason) {
            self.reasons.0[i].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reasons counted so far, by text.
    pub fn reasons(&self) -> BTreeMap<String, u64> {
        Reason::ALL
            .iter()
            .zip(&self.reasons.0)
            .map(|(r, n)| (r.as_str().to_string(), n.load(Ordering::Relaxed)))
            .filter(|(_, n)| *n > 0)
            .collect()
    }
}

const REASONS: usize = Reason::ALL.len();

#[derive(Debug)]
struct Reasons([AtomicU64; REASONS]);

impl Default for Reasons {
    fn default() -> Self {
        Reasons(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}
