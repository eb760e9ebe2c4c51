//! Registered memory that a link keeps for its next streams.
//!
//! Registering and deregistering are commands of a device, which executes them one by one. The streams that come and go
//! on a link need regions of the same few lengths, so a region that one stream has given back serves the next. A peer
//! that goes on using the region of an earlier stream reaches only its own data: another stream of the same link.

use netacc_device::Region;

/// Bytes that a link keeps at most. Arbitrary: the rings, and their copies, of a few dozen streams.
const MAX_BYTES: usize = 4 << 20;

/// The unused regions of a link, the one that was given back first at the front.
#[derive(Default)]
pub(super) struct Spare {
    regions: Vec<Region>,
    bytes: usize,
}

impl Spare {
    /// A region of `len` zeroed bytes.
    pub(super) fn take(&mut self, len: usize) -> Option<Region> {
        let at = self.regions.iter().position(|region| region.memory.len() == len)?;
        let region = self.regions.remove(at);
        self.bytes -= len;
        region.memory.zero(0, len).then_some(region)
    }

    /// The number of regions.
    pub(super) fn len(&self) -> usize {
        self.regions.len()
    }

    /// All regions.
    pub(super) fn into_regions(self) -> impl Iterator<Item = Region> {
        self.regions.into_iter()
    }

    /// Keeps the region, or returns it if there are enough.
    pub(super) fn keep(&mut self, region: Region) -> Option<Region> {
        let bytes = self.bytes + region.memory.len();
        if bytes > MAX_BYTES {
            return Some(region);
        }
        self.bytes = bytes;
        self.regions.push(region);
        None
    }
}

#[cfg(test)]
mod tests {
    use netacc_device::{Memory, RemoteKey, RemoteRegion};

    use super::*;

    fn region(rkey: u32, len: usize) -> Region {
        let remote = RemoteRegion { rkey: RemoteKey(rkey), base: 0, len: len as u32 };
        Region { memory: Memory::heap(len), remote }
    }

    // Breaks if a stream gets memory of another length, or with another stream's bytes in it.
    #[test]
    fn returned_regions_are_used_again() {
        let mut spare = Spare::default();
        let used = region(1, 9000);
        assert!(used.memory.write(0, &[7; 9000]));
        for region in [region(0, 64), used, region(2, 9000)] {
            assert!(spare.keep(region).is_none());
        }
        assert!(spare.take(65).is_none());
        let again = spare.take(9000).expect("one is kept");
        assert_eq!(again.remote.rkey, RemoteKey(1), "not the one that was given back first");
        let mut bytes = [1; 9000];
        assert!(again.memory.read(0, &mut bytes));
        assert_eq!(bytes, [0; 9000]);
        assert!(spare.take(9000).is_some() && spare.take(9000).is_none());
        assert!(spare.take(64).is_some() && spare.take(64).is_none());
    }

    // Breaks if a link keeps memory without bound, or offers a region again that is in use.
    #[test]
    fn no_more_is_kept_than_the_bound() {
        let mut spare = Spare::default();
        for _ in 0..3 {
            assert!(spare.keep(region(0, MAX_BYTES - 64)).is_none());
            assert!(spare.keep(region(1, 65)).is_some());
            assert!(spare.keep(region(2, 64)).is_none() && spare.keep(region(3, 1)).is_some());
            assert!(spare.take(MAX_BYTES - 64).is_some() && spare.take(64).is_some());
        }
    }
}
