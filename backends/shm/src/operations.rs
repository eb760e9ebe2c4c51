//! The times of a process's operations in the kernel, for its peers. With them the peers read in the order in which it
//! wrote, whichever path the bytes took.
//!
//! Writer: raise `begun`; make the system call; store the times at which it began and ended; raise `last` to its
//! number. Posts carry the lower half of `last` from then on. Reader: take a message; look up the times of the
//! operation with its number. Numbers and times come from the peer: false ones cost a system call, or an order that the
//! peer itself has spoilt.
//!
//! A check of the kernel between the beginning and the end of an operation may or may not have found it. If nothing
//! newer has begun, the kernel's data is of that operation. Otherwise it is assumed to be newer: a process that writes
//! again has mostly been answered before.

use std::sync::atomic::{self, Ordering::*};

use netacc_device::{Instant, KernelOperation};

use crate::layout::{KernelOperations, OPERATIONS};
use crate::sync::{fence, AtomicU32};
use crate::sys;

/// Gives the numbers of this process's operations.
pub(crate) struct Numbers(AtomicU32);

impl Numbers {
    pub(crate) fn new() -> Numbers {
        Numbers(AtomicU32::new(0))
    }

    /// Announces an operation that has ended to peers, and gives it a number.
    pub(crate) fn publish(&self, published: &KernelOperations, operation: KernelOperation) {
        let number = self.0.fetch_add(1, Relaxed).wrapping_add(1);
        let [begun, ended] = &published.times[number as usize % OPERATIONS];
        begun.store(operation.begun.as_nanos(), Relaxed);
        ended.store(operation.ended.as_nanos(), Relaxed);
        // If threads publish at once, the last number counts; a thread with a lower one has announced it to no peer
        // yet.
        let later = |last: u32| (number.wrapping_sub(last) as i32 > 0).then_some(number);
        let _ = published.last.fetch_update(Release, Relaxed, later);
    }
}

/// The times of the operation whose number has `half` as its lower half; `None` if it is not remembered any more.
pub(crate) fn find(published: &KernelOperations, half: u32) -> Option<KernelOperation> {
    let age = || published.last.load(Acquire).wrapping_sub(half) & 0xffff;
    // Another operation may be about to take the place: it has ended by the time its number is announced.
    let is_recent = |age: u32| (age as usize) < OPERATIONS / 2;
    if !is_recent(age()) {
        return None;
    }
    let [begun, ended] = &published.times[half as usize % OPERATIONS];
    let [mut begun, ended] = [begun, ended].map(|time| Instant::from_nanos(time.load(Relaxed)));
    if published.begun.load(Acquire) & 0xffff == half {
        begun = ended;
    }
    fence(SeqCst);
    is_recent(age()).then_some(KernelOperation { begun, ended })
}

/// See [`KernelOrder::kernel_news`](netacc_device::KernelOrder::kernel_news): the times at which it began and ended, in
/// nanoseconds.
#[derive(Default)]
pub(crate) struct News([atomic::AtomicU64; 2]);

impl News {
    /// A message came whose sender had done the operation of that number in the kernel.
    #[cold]
    pub(crate) fn record(&self, published: &KernelOperations, half: u32) {
        let now = sys::now();
        // No operation is later than now, and one that is not remembered may have been at any time.
        let found = find(published, half);
        let KernelOperation { begun, ended } = found.unwrap_or(KernelOperation { begun: now, ended: now });
        for (news, at) in self.0.iter().zip([begun, ended]) {
            news.fetch_max(at.min(now).as_nanos(), AcqRel);
        }
    }

    pub(crate) fn latest(&self) -> KernelOperation {
        let [begun, ended] = &self.0;
        // In this order: the beginning of an operation is stored before its end.
        let ended = Instant::from_nanos(ended.load(Acquire));
        KernelOperation { begun: Instant::from_nanos(begun.load(Acquire)), ended }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::AtomicU64;

    fn operation(at: u64) -> KernelOperation {
        KernelOperation { begun: Instant::from_nanos(at), ended: Instant::from_nanos(at + 1) }
    }

    // Breaks if a number were looked up in another's place, or an old one taken for a new one.
    #[test]
    fn recent_operations_are_found_by_half_their_number() {
        let word = || AtomicU64::new(0);
        let published = KernelOperations {
            begun: AtomicU32::new(0x1_0003),
            last: AtomicU32::new(0xfffe),
            times: std::array::from_fn(|_| [word(), word()]),
        };
        let numbers = Numbers(AtomicU32::new(0xfffe));
        (0..4).for_each(|i| numbers.publish(&published, operation(i * 10)));
        assert_eq!(published.last.load(Relaxed), 0x1_0002);
        assert_eq!(find(&published, 0xffff), Some(operation(0)));
        assert_eq!(find(&published, 2), Some(operation(30)));
        assert_eq!(find(&published, 3), None, "not yet");
        published.begun.store(0x1_0002, Relaxed);
        let ended = Instant::from_nanos(31);
        assert_eq!(find(&published, 2), Some(KernelOperation { begun: ended, ended }), "nothing newer has begun");
        (0..OPERATIONS as u64).for_each(|i| numbers.publish(&published, operation(100 + i)));
        assert_eq!(find(&published, 2), None, "too long ago");
    }
}
