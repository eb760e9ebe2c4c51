//! Fields of words, and words in bytes.

/// Bits `high..=low` of a word.
pub(crate) const fn bits(word: u64, high: u32, low: u32) -> u64 {
    (word >> low) & (u64::MAX >> (63 - (high - low)))
}

/// The little-endian word at `at`; 0 past the end.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_le_bytes)
}

/// The little-endian double word at `at`; 0 past the end.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if a field takes a neighbour's bit, or the whole word overflows the mask.
    #[test]
    fn fields() {
        assert_eq!(bits(0xf0, 7, 4), 0xf);
        assert_eq!(bits(1 << 63, 63, 63), 1);
        assert_eq!(bits(u64::MAX, 63, 0), u64::MAX);
        assert_eq!(u32_at(&[1, 0, 0, 0], 1), 0);
        assert_eq!(u64_at(&[0, 1, 0, 0, 0, 0, 0, 0, 0], 1), 1);
    }
}
