//! Tables whose keys are numbers that the simulation gives out.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A table by numbers. Nobody outside chooses these, so their hash need not be secret, and is the same in each run.
pub type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// Half of the bits of a hash.
const HALF: u32 = 32;
/// 2^64 by the golden ratio, which is odd: multiplying by it loses nothing, and spreads numbers that follow one another.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Hashes numbers by multiplication.
#[derive(Clone, Copy, Debug, Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(HALF) ^ number).wrapping_mul(SPREAD);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::{BuildHasher, Hash};

    use super::*;
    use crate::QueuePairId;

    /// Of 2^16 keys, the most that have the same 16 low bits of their hash.
    fn crowd(keys: impl Iterator<Item = impl Hash>) -> usize {
        let mut counts = vec![0_usize; 1 << 16];
        let build = BuildHasherDefault::<NumberHasher>::default();
        keys.take(1 << 16).for_each(|key| counts[(build.hash_one(key) & 0xffff) as usize] += 1);
        counts.into_iter().max().unwrap_or(0)
    }

    /// Breaks if keys of a simulation shared places in a table, so that lookups compare many.
    #[test]
    fn keys_of_hosts_and_queue_pairs_have_places_of_their_own() {
        assert_eq!(crowd((0..).map(QueuePairId)), 1);
        let pairs = (0..64_u32).flat_map(|host| (0..1024).map(move |qp| (host, QueuePairId(qp))));
        let crowd = crowd(pairs);
        assert!(crowd <= 8, "{crowd} keys in one place");
    }

    #[test]
    fn different_keys_have_different_hashes() {
        let build = BuildHasherDefault::<NumberHasher>::default();
        let keys = (0..64_u32).flat_map(|host| (0..64).map(move |qp| (host, QueuePairId(qp))));
        let hashes: HashSet<u64> = keys.map(|key| build.hash_one(key)).collect();
        assert_eq!(hashes.len(), 64 * 64);
    }
}
