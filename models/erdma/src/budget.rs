//! Limits on the memory that a guest can make this process take: copies of page lists, and payload in flight.
//!
//! A guest needs little memory of its own to name much: it can register one table again and again.

use std::collections::BTreeSet;

/// Entries of all page lists of a function. Arbitrary: 64 GiB in pages of 4 KiB.
const MAX_PAGES: usize = 1 << 24;

/// Payload of a function in flight; one message more is begun below it. Arbitrary.
const MAX_PAYLOAD: u64 = 512 << 20;

/// Page lists beyond the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

#[derive(Debug, Default)]
pub(crate) struct Budget {
    pages: usize,
    payload: u64,
    /// Queue pairs that found no room for payload.
    starved: BTreeSet<u32>,
}

impl Budget {
    pub(crate) fn take_pages(&mut self, count: usize) -> Result<(), Exhausted> {
        if count > MAX_PAGES - self.pages {
            return Err(Exhausted);
        }
        self.pages += count;
        Ok(())
    }

    pub(crate) fn give_pages(&mut self, count: usize) {
        self.pages -= count;
    }

    /// Whether a queue pair may begin a message. If not, [`take_fed`](Budget::take_fed) returns it later.
    pub(crate) fn has_room(&mut self, qpn: u32) -> bool {
        let room = self.payload < MAX_PAYLOAD;
        if !room {
            self.starved.insert(qpn);
        }
        room
    }

    pub(crate) fn take_payload(&mut self, bytes: u64) {
        self.payload += bytes;
    }

    pub(crate) fn give_payload(&mut self, bytes: u64) {
        self.payload -= bytes;
    }

    /// The queue pairs that found no room, if there is some now.
    pub(crate) fn take_fed(&mut self) -> BTreeSet<u32> {
        if self.payload < MAX_PAYLOAD {
            std::mem::take(&mut self.starved)
        } else {
            BTreeSet::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if a guest can make the process keep more, or a queue pair waits for ever.
    #[test]
    fn bounds() {
        let mut budget = Budget::default();
        assert_eq!(budget.take_pages(MAX_PAGES), Ok(()));
        assert_eq!(budget.take_pages(1), Err(Exhausted));
        budget.give_pages(1);
        assert_eq!(budget.take_pages(1), Ok(()));

        assert!(budget.has_room(1));
        budget.take_payload(MAX_PAYLOAD);
        assert!(!budget.has_room(2) && !budget.has_room(3));
        assert_eq!(budget.take_fed(), BTreeSet::new());
        budget.give_payload(1);
        assert_eq!(budget.take_fed(), BTreeSet::from([2, 3]));
        assert_eq!(budget.take_fed(), BTreeSet::new());
    }
}
