//! Registered memory that a link keeps for its next stream.
//!
//! Registering and deregistering are commands of a device, which takes them one by one. The streams that come and go on a link
//! want regions of the same few lengths, so what one has given back serves the next. A peer that goes on using what an earlier
//! stream had told it reaches what is its own: another stream of the same link.

use netacc_device::Region;

/// Bytes that a link keeps at most. Arbitrary: the rings, and their copies, of a few dozen streams.
const MAX_BYTES: usize = 4 << 20;

/// Regions of a link that nobody uses, the one that was given back first at the front.
#[derive(Default)]
pub(super) struct Spare {
    regions: Vec<Region>,
    bytes: usize,
}

impl Spare {
    /// One of `len` zeroed bytes.
    pub(super) fn take(&mut self, len: usize) -> Option<Region> {
        let at = self.regions.iter().position(|region| region.memory.len() == len)?;
        let region = self.regions.remove(at);
        self.bytes -= len;
        region.memory.zero(0, len).then_some(region)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.regions.len()
    }

    /// All of them.
    pub(super) fn into_regions(self) -> impl Iterator<Item = Region> {
        self.regions.into_iter()
    }

    /// Keeps it, or gives it back: there is enough.
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

    // Breaks if a stream is given memory of another length, or with what another one has left there.
    #[test]
    fn what_is_given_back_serves_again() {
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

    // Breaks if a link keeps memory without bound, or forgets what it has given out again.
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
