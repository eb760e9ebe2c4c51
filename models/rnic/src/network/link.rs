//! One direction of a link: a port that serialises, and a wire that delays, loses, doubles and reorders.

use std::time::Duration;

use netacc_device::middleware::SplitMix64;
use netacc_device::Instant;

use crate::{Hop, Packet};

/// A longer queue counts as so long in telemetry: its time fits into 64 bits.
const MAX_QUEUE_BYTES: u64 = 1 << 30;

/// Properties of a link, the same in both directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Bits per second.
    pub rate_bps: u64,
    /// From the last bit sent to the last bit received.
    pub delay: Duration,
    /// Of a million packets, how many are lost.
    pub loss_ppm: u32,
    /// Of a million packets, how many arrive twice.
    pub duplicate_ppm: u32,
    /// Of a million packets, how many are late.
    pub reorder_ppm: u32,
    /// By how much those are late at most.
    pub reorder_delay: Duration,
}

impl LinkConfig {
    /// A link that loses and reorders nothing.
    pub fn clean(rate_bps: u64, delay: Duration) -> LinkConfig {
        let reorder_delay = Duration::ZERO;
        LinkConfig { rate_bps, delay, loss_ppm: 0, duplicate_ppm: 0, reorder_ppm: 0, reorder_delay }
    }
}

/// Times of packets on a port, in whole nanoseconds without an error that adds up: what rounding takes from one packet the
/// next one has more.
#[derive(Clone, Debug)]
pub struct Serializer {
    rate_bps: u64,
    /// Bit-nanoseconds times the rate that are still owed: below `rate_bps`.
    remainder: u64,
    /// The time that all packets so far have taken.
    sent_ns: u64,
}

impl Serializer {
    /// A port of that rate, at least 1 bit per second.
    pub fn new(rate_bps: u64) -> Serializer {
        Serializer { rate_bps: rate_bps.max(1), remainder: 0, sent_ns: 0 }
    }

    /// How long the port is busy with a packet.
    pub fn time(&mut self, wire_bytes: u32) -> Duration {
        let owed = u64::from(wire_bytes) * 8 * 1_000_000_000 + self.remainder;
        self.remainder = owed % self.rate_bps;
        self.sent_ns += owed / self.rate_bps;
        Duration::from_nanos(owed / self.rate_bps)
    }
}

/// One direction. Invariant: draws are taken from `rng` in the order loss, duplicate, lateness of each copy, and only where
/// the configuration has any.
pub(super) struct Link {
    pub(super) busy: bool,
    pub(super) cut: bool,
    serializer: Serializer,
    rng: SplitMix64,
    config: LinkConfig,
}

impl Link {
    pub(super) fn new(config: LinkConfig, seed: u64, port: u64) -> Link {
        let serializer = Serializer::new(config.rate_bps);
        Link { busy: false, cut: false, serializer, rng: port_rng(seed, port, 0), config }
    }

    /// What it adds to a packet that it begins to send now, with so many bytes behind it.
    pub(super) fn hop(&self, now: Instant, queued_bytes: u64) -> Hop {
        let queue_ns = queued_bytes.min(MAX_QUEUE_BYTES) * 8_000_000_000 / self.config.rate_bps.max(1);
        Hop::new(now, self.serializer.sent_ns, queue_ns)
    }

    /// Begins sending: how long the port is busy, and when each copy arrives.
    pub(super) fn send(&mut self, packet: &Packet) -> (Duration, [Option<Duration>; 2]) {
        self.busy = true;
        let busy_for = self.serializer.time(packet.wire_bytes);
        let lost = chance(&mut self.rng, self.config.loss_ppm);
        let twice = chance(&mut self.rng, self.config.duplicate_ppm);
        if self.cut || lost {
            return (busy_for, [None; 2]);
        }
        let mut copy = || {
            let late = chance(&mut self.rng, self.config.reorder_ppm);
            let most = self.config.reorder_delay.as_nanos() as u64;
            let by = if late { self.rng.next_u64() % (most + 1) } else { 0 };
            busy_for + self.config.delay + Duration::from_nanos(by)
        };
        let first = copy();
        (busy_for, [Some(first), twice.then(copy)])
    }
}

/// A generator of a port's own, so that what one port draws changes nothing for another.
pub(super) fn port_rng(seed: u64, port: u64, purpose: u64) -> SplitMix64 {
    let mut mix = SplitMix64::new(seed ^ (port << 8 | purpose));
    SplitMix64::new(mix.next_u64())
}

/// True in `ppm` of a million cases. Takes nothing from the sequence when that is 0.
pub(super) fn chance(rng: &mut SplitMix64, ppm: u32) -> bool {
    ppm > 0 && rng.below(1_000_000) < ppm as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if rounding adds up: 1000 packets of 84 bytes at 100 Gb/s take 6720 ns, and each one 6 or 7.
    #[test]
    fn rounding_does_not_add_up() {
        let mut port = Serializer::new(100_000_000_000);
        let times: Vec<u64> = (0..1000).map(|_| port.time(84).as_nanos() as u64).collect();
        assert_eq!(times.iter().sum::<u64>(), 6720);
        assert!(times.iter().all(|t| (6..=7).contains(t)));
    }
}
