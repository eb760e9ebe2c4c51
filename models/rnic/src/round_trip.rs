//! Round trips of a queue pair's packets, for the rate controls that need them.
//!
//! A packet that asks for an acknowledgement is timed from when the transmit engine takes it, as the transmit times of real
//! NICs are taken. So the wait for the port of the one packet that may be there counts, but not that in the send queue.
//!
//! Invariants: numbers rise from front to back, and all are of packets in flight, so `max_in_flight` bounds them; a packet
//! that was sent again has no time, because its acknowledgement could be of either (Karn and Partridge, SIGCOMM 1987).

use std::collections::VecDeque;
use std::time::Duration;

use netacc_device::Instant;

#[derive(Debug, Default)]
pub(crate) struct RoundTrips {
    sent: VecDeque<(u64, Instant)>,
}

impl RoundTrips {
    /// Packet `psn` was sent, for the first time or `again`, and asks for an acknowledgement.
    pub(crate) fn handle_sent(&mut self, psn: u64, now: Instant, again: bool) {
        if again {
            self.sent.truncate(self.sent.partition_point(|(number, _)| *number < psn));
        } else {
            self.sent.push_back((psn, now));
        }
    }

    /// Everything below `expected` has arrived: the round trip of the last packet below it.
    pub(crate) fn handle_acknowledged(&mut self, expected: u64, now: Instant) -> Option<Duration> {
        let mut last = None;
        while let Some((psn, sent_at)) = self.sent.front().copied().filter(|(psn, _)| *psn < expected) {
            last = (psn + 1 == expected).then(|| now.saturating_since(sent_at));
            self.sent.pop_front();
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if a packet gets another one's time, or one that was sent again gets any.
    #[test]
    fn each_packet_has_its_own_time() {
        let at = Instant::from_nanos;
        let mut trips = RoundTrips::default();
        for psn in 0..6 {
            trips.handle_sent(psn, at(psn * 10), false);
        }
        assert_eq!(trips.handle_acknowledged(1, at(100)), Some(Duration::from_nanos(100)));
        assert_eq!(trips.handle_acknowledged(3, at(100)), Some(Duration::from_nanos(80)));
        // Packet 4 was lost: it and its successors go again.
        trips.handle_sent(4, at(200), true);
        trips.handle_sent(5, at(210), true);
        assert_eq!(trips.handle_acknowledged(4, at(300)), Some(Duration::from_nanos(270)));
        assert_eq!(trips.handle_acknowledged(6, at(300)), None);
        trips.handle_sent(6, at(400), false);
        trips.handle_sent(8, at(410), false);
        // Packet 7 did not ask.
        assert_eq!(trips.handle_acknowledged(8, at(500)), None);
        assert_eq!(trips.handle_acknowledged(9, at(500)), Some(Duration::from_nanos(90)));
    }
}
