//! Datagrams of the connection manager: few, small, and each repeated until it is acknowledged or given up.
//!
//! Real devices use DREQ/DREP and MADs for this, or a TCP connection. Datagrams are delivered at most once, in any order.
//!
//! Invariants: at most [`MAX_PENDING`] are in flight; the numbers kept of each peer are bounded by [`MAX_HOLES`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use netacc_device::{Instant, QueuePairId};

use crate::packet::{Body, Control, NodeId, Packet};

/// Datagrams under way from one NIC. Arbitrary: a disconnect for each of very many queue pairs.
pub(crate) const MAX_PENDING: usize = 1 << 20;

/// Numbers of one peer that are remembered beyond the first that is missing. A gap older than that counts as seen: its
/// sender has given up long ago.
const MAX_HOLES: usize = 1024;

/// A datagram that was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GivenUp {
    pub(crate) to: NodeId,
    pub(crate) content: Control,
}

struct Pending {
    to: NodeId,
    sequence: u64,
    content: Control,
    attempts: u8,
}

#[derive(Default)]
struct Seen {
    /// Everything up to here has come.
    floor: u64,
    above: BTreeSet<u64>,
}

pub(crate) struct ControlPlane {
    interval: Duration,
    max_attempts: u8,
    next: BTreeMap<NodeId, u64>,
    /// By the time they are sent (again): the interval is the same for all, so the oldest is always in front.
    pending: VecDeque<(Instant, Pending)>,
    seen: BTreeMap<NodeId, Seen>,
}

impl ControlPlane {
    pub(crate) fn new(interval: Duration, max_attempts: u8) -> ControlPlane {
        ControlPlane { interval, max_attempts, next: BTreeMap::new(), pending: VecDeque::new(), seen: BTreeMap::new() }
    }

    /// Queues a datagram. `false` if there are too many.
    pub(crate) fn send(&mut self, now: Instant, to: NodeId, content: Control) -> bool {
        if self.pending.len() >= MAX_PENDING {
            return false;
        }
        let next = self.next.entry(to).or_insert(0);
        *next += 1;
        let pending = Pending { to, sequence: *next, content, attempts: 0 };
        // Before those that wait for their next attempt.
        let at = self.pending.partition_point(|(due, _)| *due <= now);
        self.pending.insert(at, (now, pending));
        true
    }

    /// The datagram that is due, as a packet; or one that is given up.
    pub(crate) fn poll(&mut self, now: Instant, node: NodeId) -> Option<Result<Packet, GivenUp>> {
        let (due, _) = self.pending.front()?;
        if *due > now {
            return None;
        }
        let (_, mut pending) = self.pending.pop_front()?;
        let Pending { to, sequence, content, .. } = pending;
        if pending.attempts > self.max_attempts {
            return Some(Err(GivenUp { to, content }));
        }
        pending.attempts += 1;
        let nobody = QueuePairId(0);
        let body = Body::Control { sequence, content };
        self.pending.push_back((now + self.interval, pending));
        Some(Ok(Packet::new((node, nobody), (to, nobody), body, false)))
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.pending.front().map(|(due, _)| *due)
    }

    pub(crate) fn handle_ack(&mut self, from: NodeId, sequence: u64) {
        self.pending.retain(|(_, p)| p.to != from || p.sequence != sequence);
    }

    /// Whether a datagram is new.
    pub(crate) fn is_new(&mut self, from: NodeId, sequence: u64) -> bool {
        let seen = self.seen.entry(from).or_default();
        if sequence <= seen.floor || !seen.above.insert(sequence) {
            return false;
        }
        if seen.above.len() > MAX_HOLES {
            seen.floor = seen.above.first().copied().unwrap_or(seen.floor).max(seen.floor + 1) - 1;
        }
        while seen.above.remove(&(seen.floor + 1)) {
            seen.floor += 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plane() -> ControlPlane {
        ControlPlane::new(Duration::from_nanos(100), 2)
    }

    // Breaks if a lost datagram is not repeated, or is repeated for ever.
    #[test]
    fn repeated_then_given_up() {
        let mut plane = plane();
        let content = Control::User { token: 5 };
        assert!(plane.send(Instant::ZERO, NodeId(1), content));
        for attempt in 0..3u64 {
            let now = Instant::from_nanos(attempt * 100);
            assert!(matches!(plane.poll(now, NodeId(0)), Some(Ok(_))), "attempt {attempt}");
            assert!(plane.poll(now, NodeId(0)).is_none());
        }
        let end = plane.poll(Instant::from_nanos(300), NodeId(0));
        assert_eq!(end.map(|r| r.err()), Some(Some(GivenUp { to: NodeId(1), content })));
        assert_eq!(plane.next_due(), None);
    }

    // Breaks if an acknowledgement does not end the repetition, or ends another datagram's.
    #[test]
    fn acknowledged_is_done() {
        let mut plane = plane();
        for to in [1, 2] {
            assert!(plane.send(Instant::ZERO, NodeId(to), Control::User { token: 0 }));
        }
        plane.handle_ack(NodeId(1), 1);
        assert!(matches!(plane.poll(Instant::ZERO, NodeId(0)), Some(Ok(p)) if p.dst == NodeId(2)));
        plane.handle_ack(NodeId(2), 1);
        assert_eq!(plane.next_due(), None);
    }

    // Breaks if a repetition counts as new, or one after a gap as old, or the gap is remembered for ever.
    #[test]
    fn duplicates_are_reported() {
        let mut plane = plane();
        let mut new = |n| plane.is_new(NodeId(7), n);
        assert!(new(1) && !new(1) && new(3) && !new(3) && new(2) && !new(2) && new(4));
        assert!((6..6 + 2 * MAX_HOLES as u64).all(&mut new));
        assert!(!new(6) && !new(6 + MAX_HOLES as u64));
        assert!(plane.seen[&NodeId(7)].above.len() <= MAX_HOLES);
    }
}
