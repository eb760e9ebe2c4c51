//! A hash over everything that was delivered: two runs with the same one went the same way.

use netacc_device::Instant;

use crate::{Packet, Telemetry};

/// FNV-1a over 64-bit words: the time of each delivery to a station, and the packet's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceHash {
    hash: u64,
    deliveries: u64,
}

impl Default for TraceHash {
    fn default() -> TraceHash {
        TraceHash { hash: OFFSET, deliveries: 0 }
    }
}

impl TraceHash {
    /// A packet reaches the station it is for.
    pub fn record(&mut self, now: Instant, packet: &Packet) {
        self.word(now.as_nanos());
        packet.to_words().into_iter().for_each(|word| self.word(word));
        packet.telemetry.iter().flat_map(Telemetry::hops).for_each(|hop| self.word(hop.0));
        self.deliveries += 1;
    }

    /// Something else that a run does is part of its trace: TCP's bytes, which a simulator carries.
    pub fn note_words(&mut self, now: Instant, words: &[u64]) {
        self.word(now.as_nanos());
        words.iter().for_each(|word| self.word(*word));
    }

    fn word(&mut self, word: u64) {
        self.hash = (self.hash ^ word).wrapping_mul(PRIME);
        // The product's low bits do not depend on the word's high ones.
        self.hash ^= self.hash >> 32;
    }

    /// The hash so far.
    pub fn value(&self) -> u64 {
        self.hash
    }

    /// How many packets were delivered to stations.
    pub fn deliveries(&self) -> u64 {
        self.deliveries
    }
}

/// Basis and prime of FNV-1a with 64 bits.
const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;
