//! Batches: an event loop that was given several events reads several requests, and then writes as many answers. The
//! peers that wait for those answers are woken when the last is written, not by each of them, because a wake-up costs
//! more than an answer. Correctness does not depend on it: a peer that sleeps while its wake-up is deferred polls again
//! by itself after a short time (see
//! [`CompletionEvents::arm_moderated`](netacc_device::CompletionEvents::arm_moderated)).

use netacc_driver::Endpoint;

use crate::os::thread_variable::{self, BATCH};

/// Number of answers after which deferred wake-ups are sent although more answers are expected, so that the peer
/// works at the same time. Arbitrary: makes the cost of a wake-up small against that of the answers.
const MOST: u32 = 32;

/// The calls of a thread since it was last given events.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Batch {
    reads: u32,
    writes: u32,
    /// It was given several.
    several: bool,
    /// The device is deferring wake-ups.
    defers: bool,
}

impl Batch {
    /// Counts one more write. Returns whether others are expected soon.
    fn count_write(&mut self) -> bool {
        self.writes = self.writes.wrapping_add(1);
        self.several && self.writes < self.reads && !self.writes.is_multiple_of(MOST)
    }
}

/// Runs `change` with the thread's variable of `calls.c`, which begins as zeros.
#[inline]
fn with<T>(change: impl FnOnce(&mut Batch) -> T) -> T {
    let batch: *mut Batch = thread_variable::part(BATCH);
    // SAFETY: of this thread, and a change here makes no other.
    change(unsafe { &mut *batch })
}

/// The thread was given so many events.
pub(crate) fn begin(events: usize) {
    with(|batch| *batch = Batch { several: events > 1, ..Batch::default() });
}

/// The thread has read something.
#[inline]
pub(crate) fn count_read() {
    with(|batch| batch.reads = batch.reads.wrapping_add(1));
}

/// The thread is about to write something.
#[inline(always)]
pub(crate) fn count_write(endpoint: &Endpoint) {
    // Both are loaded: one branch.
    if with(|batch| batch.several | batch.defers) {
        return choose(endpoint);
    }
    with(|batch| batch.writes = batch.writes.wrapping_add(1));
}

/// Counts a write, and defers wake-ups, or sends those that were deferred.
#[inline(never)]
fn choose(endpoint: &Endpoint) {
    let (defer, before) = with(|batch| {
        let defer = batch.count_write();
        (defer, std::mem::replace(&mut batch.defers, defer))
    });
    match (before, defer) {
        (false, true) => endpoint.device().defer_wakes(),
        (true, false) => endpoint.device().release_wakes(),
        _ => {}
    }
}

/// The write that was counted last was not made, and will be counted again.
#[cold]
pub(crate) fn take_back_write() {
    with(|batch| batch.writes = batch.writes.wrapping_sub(1));
}

/// The thread is about to wait, or does something else.
pub(crate) fn end(endpoint: &Endpoint) {
    if with(std::mem::take).defers {
        endpoint.device().release_wakes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count_deferred(batch: &mut Batch, writes: usize) -> usize {
        (0..writes).filter(|_| batch.count_write()).count()
    }

    #[test]
    fn all_but_the_last_answer_keep_wake_ups_back() {
        let mut batch = Batch { several: true, reads: 10, ..Batch::default() };
        assert_eq!(count_deferred(&mut batch, 9), 9);
        assert!(!batch.count_write());
        // More than was read, so the number of further writes is unknown.
        assert_eq!(count_deferred(&mut batch, 5), 0);
    }

    #[test]
    fn one_event_or_one_answer_at_a_time_keeps_nothing_back() {
        assert_eq!(count_deferred(&mut Batch { reads: 10, ..Batch::default() }, 10), 0);
        let mut batch = Batch { several: true, ..Batch::default() };
        for _ in 0..10 {
            batch.reads += 1;
            assert!(!batch.count_write());
        }
    }

    // Breaks if a write that took the long way were counted twice: then the last answer but one would wake the peer.
    #[test]
    fn a_write_that_was_not_made_is_counted_once() {
        begin(4);
        (0..4).for_each(|_| count_read());
        let count = || with(Batch::count_write);
        assert!(count());
        take_back_write();
        assert_eq!([count(), count(), count(), count()], [true, true, true, false]);
        // As many as were read by then: a single event begins anew.
        begin(1);
        count_read();
        assert!(!count());
    }

    #[test]
    fn long_batches_release_wake_ups_at_intervals() {
        let mut batch = Batch { several: true, reads: 100, ..Batch::default() };
        let pauses: Vec<_> = (1..=100).filter(|_| !batch.count_write()).collect();
        assert_eq!(pauses, [32, 64, 96, 100]);
    }
}
