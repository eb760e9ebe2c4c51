//! The length of streams' incoming rings: shorter, the more streams a process has.
//!
//! Regions come from memory that all streams to a peer share: half a segment of 1 GiB on shared memory, and the limit
//! of locked memory on a device. Some hundreds of streams may have long rings. With thousands of them, each receives
//! little at a time. A ring that is too short costs a stream some stalls; without any ring it would not get the link.

/// The limits of a new stream's ring: up to so many streams, at most so many bytes. Arbitrary, except for their sum: a
/// region is rounded up to twice its ring, and all of 16,384 streams together take 344 MiB, of the 496 MiB of a
/// segment's half.
const LONGEST: [(u32, u32); 3] = [(1_024, 64 << 10), (4_096, 16 << 10), (u32::MAX, 4 << 10)];
/// The number of streams whose rings may have the configured length. Arbitrary.
const FEW: u32 = 256;

/// The length of a new stream's ring, given the configured length and the number of streams.
pub(super) fn ring_len(configured: u32, streams: u32) -> u32 {
    if streams < FEW {
        return configured;
    }
    let longest = LONGEST.iter().find(|(most, _)| streams < *most).map_or(4 << 10, |(_, bytes)| *bytes);
    configured.min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks if 20,000 streams of one pair of processes did not fit into the memory for the regions of a pair.
    #[test]
    fn the_rings_of_twenty_thousand_streams_fit_into_half_a_segment() {
        const HALF: u64 = (512 - 16) << 20;
        let block = |streams| 2 * u64::from(ring_len(256 << 10, streams));
        let taken: u64 = (0..20_000).map(block).sum();
        assert!(taken < HALF, "{} MiB", taken >> 20);
    }

    #[test]
    fn few_streams_have_the_rings_that_are_configured_and_none_has_a_longer_one() {
        assert_eq!(ring_len(256 << 10, 0), 256 << 10);
        assert_eq!(ring_len(256 << 10, FEW - 1), 256 << 10);
        assert_eq!(ring_len(256 << 10, FEW), 64 << 10);
        assert_eq!(ring_len(8 << 10, FEW), 8 << 10);
        assert_eq!(ring_len(64 << 20, 100_000), 4 << 10);
    }
}
