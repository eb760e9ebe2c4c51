//! Telemetry of a packet's path (INT): what each switch's port adds when it begins to send the packet.
//!
//! A real switch adds time, sent bytes, queued bytes and rate. Here the port divides by its rate: the time for which it has
//! sent, and the time that its queue will take. So a hop is 64 bits, as in the HPCC authors' simulator.

use std::time::Duration;

use netacc_device::Instant;

/// Switches whose telemetry a packet has room for. Further ones add nothing.
pub const MAX_HOPS: usize = 5;

/// Bytes that telemetry takes in a frame: a header of 2 bytes and 8 for each of 5 hops (HPCC, SIGCOMM 2019, section 4.1).
pub(crate) const TELEMETRY_BYTES: u32 = 42;

/// Bits of the times of a hop; they wrap after 4.2 ms.
const BITS: u32 = 22;
const MASK: u64 = (1 << BITS) - 1;
/// Nanoseconds in a unit of a queue's time, of 20 bits.
const QUEUE_UNIT_NS: u64 = 16;

/// The telemetry of one port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hop(pub u64);

impl Hop {
    /// Of a port that has sent for so long until now, and whose queue takes so long.
    pub fn new(now: Instant, sent_ns: u64, queue_ns: u64) -> Hop {
        let queue = (queue_ns / QUEUE_UNIT_NS).min((1 << (64 - 2 * BITS)) - 1);
        Hop(now.as_nanos() & MASK | (sent_ns & MASK) << BITS | queue << (2 * BITS))
    }

    /// The time that the queue takes.
    pub fn queue_ns(self) -> u64 {
        (self.0 >> (2 * BITS)) * QUEUE_UNIT_NS
    }

    /// Nanoseconds since an earlier hop of the same port, and for how many of them it has sent. Right if the packets are at
    /// most [`Hop::WRAP`] apart.
    pub fn since(self, before: Hop) -> (u64, u64) {
        let passed = |shift: u32| (self.0 >> shift).wrapping_sub(before.0 >> shift) & MASK;
        (passed(0), passed(BITS))
    }

    /// The time after which the times of hops repeat.
    pub const WRAP: Duration = Duration::from_nanos(MASK + 1);
}

/// The telemetry of a packet, or of the one that an acknowledgement answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Telemetry {
    hops: [Hop; MAX_HOPS],
    count: u8,
}

impl Telemetry {
    /// A port begins to send the packet.
    pub fn add(&mut self, hop: Hop) {
        if let Some(place) = self.hops.get_mut(usize::from(self.count)) {
            *place = hop;
            self.count += 1;
        }
    }

    /// Hops in the order of the path.
    pub fn hops(&self) -> &[Hop] {
        &self.hops[..usize::from(self.count).min(MAX_HOPS)]
    }

    /// From hops, of which more than [`MAX_HOPS`] are left out.
    pub fn of(hops: impl IntoIterator<Item = Hop>) -> Telemetry {
        let mut telemetry = Telemetry::default();
        hops.into_iter().for_each(|hop| telemetry.add(hop));
        telemetry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if a field of a hop runs into another one, or times do not survive their wrap.
    #[test]
    fn hops_keep_their_times() {
        let at = |ns| Instant::from_nanos(ns);
        let first = Hop::new(at(MASK - 10), MASK - 5, 1_600);
        let second = Hop::new(at(MASK + 90), MASK + 45, u64::MAX);
        assert_eq!((first.queue_ns(), second.queue_ns()), (1_600, ((1 << 20) - 1) * 16));
        assert_eq!(second.since(first), (100, 50));
        let telemetry = Telemetry::of((0..7).map(Hop));
        assert_eq!(telemetry.hops(), [0, 1, 2, 3, 4].map(Hop));
    }
}
