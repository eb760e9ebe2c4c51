//! A seeded generator for faults and for tests of them. Not for anything that must be unpredictable.

/// SplitMix64: 64 bits of state, every seed is good, the same on every machine.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound` (0 if `bound` is 0). Biased by less than `bound / 2^64`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next_u64() % (bound.max(1) as u64)) as usize
    }

    /// True in `per_mille` of 1000 cases. Takes nothing from the sequence when that is 0.
    pub fn chance(&mut self, per_mille: u16) -> bool {
        per_mille > 0 && self.below(1000) < usize::from(per_mille)
    }
}
