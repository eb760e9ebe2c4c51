//! The events of a simulation that are still to happen.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use netacc_device::Instant;

/// Events by their time; those of one instant in the order in which they were scheduled.
pub struct Events<E> {
    heap: BinaryHeap<Reverse<Scheduled<E>>>,
    scheduled: u64,
}

struct Scheduled<E> {
    at: Instant,
    number: u64,
    event: E,
}

impl<E> Events<E> {
    /// `event` happens at `at`.
    pub fn schedule(&mut self, at: Instant, event: E) {
        self.heap.push(Reverse(Scheduled { at, number: self.scheduled, event }));
        self.scheduled += 1;
    }

    /// The time of the next event.
    pub fn next_at(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse(next)| next.at)
    }

    /// Takes the next event, with its time.
    pub fn pop(&mut self) -> Option<(Instant, E)> {
        self.heap.pop().map(|Reverse(next)| (next.at, next.event))
    }
}

impl<E> Default for Events<E> {
    fn default() -> Events<E> {
        Events { heap: BinaryHeap::new(), scheduled: 0 }
    }
}

impl<E> Ord for Scheduled<E> {
    fn cmp(&self, other: &Scheduled<E>) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl<E> PartialOrd for Scheduled<E> {
    fn partial_cmp(&self, other: &Scheduled<E>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Scheduled<E> {
    fn eq(&self, other: &Scheduled<E>) -> bool {
        self.number == other.number
    }
}

impl<E> Eq for Scheduled<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks if the order of events of one instant depends on the heap: runs of one seed would differ.
    #[test]
    fn events_of_one_instant_happen_in_the_order_in_which_they_were_scheduled() {
        let mut events = Events::default();
        for number in 0..100u64 {
            events.schedule(Instant::from_nanos(number % 3), number);
        }
        assert_eq!(events.next_at(), Some(Instant::ZERO));
        let order: Vec<_> = std::iter::from_fn(|| events.pop()).map(|(at, number)| (at.as_nanos(), number)).collect();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!((order.len(), order), (100, sorted));
    }
}
