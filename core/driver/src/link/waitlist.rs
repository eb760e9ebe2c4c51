//! The queue of a link's streams that wait.

use std::collections::VecDeque;

/// Slots of a link in the order in which they came, each once. A slot whose stream has left is stale, but may be a
/// later stream's: that one is then served although it does not wait.
#[derive(Debug, Default)]
pub(crate) struct WaitList {
    slots: VecDeque<u16>,
    listed: Vec<bool>,
}

impl WaitList {
    /// Adds a slot at the end, unless it is there.
    pub(crate) fn push(&mut self, slot: u16) {
        let at = usize::from(slot);
        if self.listed.len() <= at {
            self.listed.resize(at + 1, false);
        }
        if !std::mem::replace(&mut self.listed[at], true) {
            self.slots.push_back(slot);
        }
    }

    /// Takes the slot that has waited longest.
    pub(crate) fn pop(&mut self) -> Option<u16> {
        let slot = self.slots.pop_front()?;
        self.listed[usize::from(slot)] = false;
        Some(slot)
    }

    pub(crate) fn contains(&self, slot: u16) -> bool {
        self.listed.get(usize::from(slot)).is_some_and(|listed| *listed)
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_waits_once_and_in_turn() {
        let mut list = WaitList::default();
        for slot in [7, 300, 7, 0] {
            list.push(slot);
        }
        assert_eq!(list.len(), 3);
        assert_eq!(list.pop(), Some(7));
        list.push(7);
        assert_eq!([(); 4].map(|()| list.pop()), [Some(300), Some(0), Some(7), None]);
        assert!(list.is_empty());
    }
}
