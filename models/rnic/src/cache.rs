//! A cache of entries of the NIC's tables that live in host memory: least recently used goes first.
//!
//! Keys are dense small numbers (slots of a table), so lookups are an array access and nothing depends on hashing.
//!
//! Invariants: `place[key] = entry` exactly when `entries[entry].key = key`; the list from `newest` through `older`
//! visits each entry once and ends at `oldest`.

const NONE: u32 = u32::MAX;

/// The key, in a cache of regions, of one that a peer writes.
pub(crate) fn region_key(slot: u32) -> u32 {
    2 * slot
}

/// The key, in a cache of regions, of the one that a queue pair sends from. Both kinds count from 0, so that neither
/// makes the keys of the other sparse.
pub(crate) fn source_key(queue_pair_slot: u32) -> u32 {
    2 * queue_pair_slot + 1
}

#[derive(Debug)]
struct Entry {
    key: u32,
    newer: u32,
    older: u32,
}

/// The keys that are on chip. A capacity of 0 is a cache without limit: every lookup hits.
#[derive(Debug)]
pub(crate) struct Cache {
    capacity: usize,
    entries: Vec<Entry>,
    place: Vec<u32>,
    newest: u32,
    oldest: u32,
}

impl Cache {
    pub(crate) fn new(capacity: usize) -> Cache {
        Cache { capacity, entries: Vec::new(), place: Vec::new(), newest: NONE, oldest: NONE }
    }

    /// Uses `key`; whether it was there already.
    pub(crate) fn touch(&mut self, key: u32) -> bool {
        if self.capacity == 0 {
            return true;
        }
        if self.place.len() <= key as usize {
            self.place.resize(key as usize + 1, NONE);
        }
        let found = self.place[key as usize];
        if found != NONE {
            if found != self.newest {
                self.unlink(found);
                self.link(found);
            }
            return true;
        }
        let entry = if self.entries.len() < self.capacity {
            self.entries.push(Entry { key, newer: NONE, older: NONE });
            self.entries.len() as u32 - 1
        } else {
            let entry = self.oldest;
            self.unlink(entry);
            self.place[self.entries[entry as usize].key as usize] = NONE;
            self.entries[entry as usize].key = key;
            entry
        };
        self.place[key as usize] = entry;
        self.link(entry);
        false
    }

    fn unlink(&mut self, entry: u32) {
        let Entry { newer, older, .. } = self.entries[entry as usize];
        match newer {
            NONE => self.newest = older,
            n => self.entries[n as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            o => self.entries[o as usize].newer = newer,
        }
    }

    fn link(&mut self, entry: u32) {
        self.entries[entry as usize].newer = NONE;
        self.entries[entry as usize].older = self.newest;
        match self.newest {
            NONE => self.oldest = entry,
            n => self.entries[n as usize].newer = entry,
        }
        self.newest = entry;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // Breaks if anything but the least recently used entry is evicted.
    #[test]
    fn the_least_recently_used_goes() {
        let mut cache = Cache::new(2);
        let hits: Vec<bool> = [1, 2, 1, 3, 1, 2].into_iter().map(|k| cache.touch(k)).collect();
        assert_eq!(hits, [false, false, true, false, true, false]);
    }

    // Breaks if 0 stands for a cache that never hits.
    #[test]
    fn no_capacity_is_no_bound() {
        let mut cache = Cache::new(0);
        assert!((0..1000).all(|k| cache.touch(k)));
    }

    // Breaks if two regions shared an entry, or if the regions that a NIC may have made room for those that it has: each
    // NIC took a megabyte for its first packet.
    #[test]
    fn keys_of_regions_are_different_and_dense() {
        let keys = (0..500).map(region_key).chain((0..500).map(source_key));
        let mut cache = Cache::new(1000);
        assert_eq!(keys.filter(|key| cache.touch(*key)).count(), 0);
        assert_eq!(cache.place.len(), 1000);
    }

    proptest! {
        // Breaks if the linked list and the places disagree, in any order of uses.
        #[test]
        fn agrees_with_a_plain_list(capacity in 1usize..6, keys in prop::collection::vec(0u32..9, 0..200)) {
            let mut cache = Cache::new(capacity);
            let mut list: Vec<u32> = Vec::new();
            for key in keys {
                let expected = list.contains(&key);
                list.retain(|k| *k != key);
                list.insert(0, key);
                list.truncate(capacity);
                prop_assert_eq!(cache.touch(key), expected);
            }
        }
    }
}
