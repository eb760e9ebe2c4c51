//! An output port of the switch: a queue of bounded bytes, and marking.

use std::collections::VecDeque;

use netacc_device::middleware::SplitMix64;

use super::link::{chance, port_rng};
use crate::{Body, Packet};

/// Properties of the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Bytes that wait at one port; what does not fit is dropped.
    pub buffer_bytes: u64,
    /// When data is marked.
    pub marking: Option<Marking>,
}

/// Random early marking by the length of the queue that a packet finds (as DCQCN configures switches).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marking {
    /// Below so many bytes nothing is marked.
    pub min_bytes: u64,
    /// From so many bytes on everything is.
    pub max_bytes: u64,
    /// Of a million packets, how many are marked just below `max_bytes`; in between in proportion.
    pub max_ppm: u32,
}

impl Marking {
    /// Marked packets of a million, with that many bytes in the queue.
    pub fn ppm(&self, queued_bytes: u64) -> u32 {
        if queued_bytes < self.min_bytes {
            return 0;
        }
        if queued_bytes >= self.max_bytes {
            return 1_000_000;
        }
        let share = u128::from(self.max_ppm) * u128::from(queued_bytes - self.min_bytes);
        (share / u128::from((self.max_bytes - self.min_bytes).max(1))) as u32
    }
}

/// Invariant: `bytes` is the sum of the packets' and at most `buffer_bytes`.
pub(super) struct Queue {
    pub(super) dropped: u64,
    pub(super) marked: u64,
    config: SwitchConfig,
    packets: VecDeque<Packet>,
    pub(super) bytes: u64,
    rng: SplitMix64,
}

impl Queue {
    pub(super) fn new(config: SwitchConfig, seed: u64, port: u64) -> Queue {
        Queue { dropped: 0, marked: 0, config, packets: VecDeque::new(), bytes: 0, rng: port_rng(seed, port, 1) }
    }

    /// A packet for this port: returned if it can be sent at once.
    pub(super) fn offer(&mut self, mut packet: Packet, busy: bool) -> Option<Packet> {
        if !busy {
            return Some(packet);
        }
        let bytes = self.bytes + u64::from(packet.wire_bytes);
        if bytes > self.config.buffer_bytes {
            self.dropped += 1;
            return None;
        }
        if let (Some(marking), Body::Data { .. }) = (self.config.marking, packet.body) {
            if chance(&mut self.rng, marking.ppm(self.bytes)) {
                packet.congestion = true;
                self.marked += 1;
            }
        }
        self.bytes = bytes;
        self.packets.push_back(packet);
        None
    }

    pub(super) fn pop(&mut self) -> Option<Packet> {
        let packet = self.packets.pop_front()?;
        self.bytes -= u64::from(packet.wire_bytes);
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if marking is not a ramp between its two ends.
    #[test]
    fn marking_is_a_ramp() {
        let marking = Marking { min_bytes: 5_000, max_bytes: 205_000, max_ppm: 10_000 };
        let ppm = [0, 4_999, 5_000, 105_000, 204_999, 205_000, u64::MAX].map(|bytes| marking.ppm(bytes));
        assert_eq!(ppm, [0, 0, 0, 5_000, 9_999, 1_000_000, 1_000_000]);
    }
}
