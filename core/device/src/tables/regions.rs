//! Registered memory.

use super::NumberMap;
use crate::{Memory, QueuePairId, Region, RemoteKey, RemoteRegion};

/// The regions of a device, by key.
#[derive(Debug)]
pub struct Regions {
    entries: NumberMap<u32, Entry>,
    registered_bytes: usize,
    limit_bytes: usize,
    last_key: u32,
}

#[derive(Debug)]
struct Entry {
    qp: QueuePairId,
    region: Region,
}

impl Regions {
    /// An empty table that holds at most `limit_bytes`. Keys count up from `first_key`. Different devices use different keys,
    /// so that a test notices one on the wrong device.
    pub fn new(first_key: u32, limit_bytes: usize) -> Regions {
        Regions { entries: NumberMap::default(), registered_bytes: 0, limit_bytes, last_key: first_key }
    }

    /// `len`, if a region of that length may be registered now; `None`: it would exceed the limit.
    pub fn checked_len(&self, len: usize) -> Option<u32> {
        let free = self.limit_bytes.saturating_sub(self.registered_bytes);
        u32::try_from(len).ok().filter(|_| len <= free)
    }

    /// A new name, under which to [add](Regions::add) a region.
    pub fn name(&mut self, len: u32) -> RemoteRegion {
        self.last_key = self.last_key.wrapping_add(1);
        let key = self.last_key;
        // Far apart and never 0: an offset mistaken for an address, or the reverse, misses every region.
        RemoteRegion { rkey: RemoteKey(key), base: u64::from(key) << 32, len }
    }

    /// Registers zeroed memory under a name, for the peer of `qp`.
    pub fn add(&mut self, qp: QueuePairId, remote: RemoteRegion) -> Region {
        let region = Region { memory: Memory::heap(remote.len as usize), remote };
        self.registered_bytes += region.memory.len();
        self.entries.insert(remote.rkey.0, Entry { qp, region: region.clone() });
        region
    }

    /// Removes a region of `qp`. Returns whether there was one.
    pub fn remove(&mut self, qp: QueuePairId, rkey: RemoteKey) -> bool {
        if self.entries.get(&rkey.0).is_none_or(|entry| entry.qp != qp) {
            return false;
        }
        if let Some(entry) = self.entries.remove(&rkey.0) {
            self.registered_bytes -= entry.region.memory.len();
        }
        true
    }

    /// Keys of the regions of `qp`, in order.
    pub fn keys_of(&self, qp: QueuePairId) -> Vec<RemoteKey> {
        let regions = self.entries.values().filter(|entry| entry.qp == qp);
        let mut keys: Vec<RemoteKey> = regions.map(|entry| entry.region.remote.rkey).collect();
        keys.sort_unstable_by_key(|key| key.0);
        keys
    }

    /// The region of a key.
    pub fn get(&self, rkey: RemoteKey) -> Option<&Region> {
        self.entries.get(&rkey.0).map(|entry| &entry.region)
    }

    /// The memory that the peer of `qp` addresses by these; `None`: the peer may not write there.
    pub fn target(&self, qp: QueuePairId, rkey: RemoteKey, offset: u64, len: u32) -> Option<(Memory, usize)> {
        let Entry { qp: owner, region } = self.entries.get(&rkey.0)?;
        let position = usize::try_from(offset.checked_sub(region.remote.base)?).ok()?;
        let fits = position.checked_add(len as usize)? <= region.memory.len();
        (fits && *owner == qp).then(|| (region.memory.clone(), position))
    }

    /// The number of regions.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks if the order in which a queue pair's regions are freed, which a run's trace shows, were that of a hash.
    #[test]
    fn keys_of_a_queue_pair_are_in_order() {
        let mut regions = Regions::new(7 << 16, usize::MAX);
        for number in 0..200 {
            let name = regions.name(8);
            regions.add(QueuePairId(number % 2), name);
        }
        let keys: Vec<u32> = regions.keys_of(QueuePairId(1)).iter().map(|key| key.0).collect();
        let expected: Vec<u32> = (1..=100).map(|number| (7 << 16) + 2 * number).collect();
        assert_eq!(keys, expected);
    }
}
