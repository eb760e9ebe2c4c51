//! The descriptors that name an instance.
//!
//! A program may duplicate the descriptor of an instance, use one and close the other, and reuse the closed number for
//! another file; threads may wait meanwhile. So an instance has a list of all its numbers. The library opens no number
//! of its own, unless a thread waits on the instance when the program closes the last one: in the kernel that wait
//! continues.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use parking_lot::Mutex;

use super::{Epoll, Shared};
use crate::os::lingering;
use crate::watched::{
    come_back, end_outliving, forget_fd, leave_to_kernel, outlive_as_duplicate, watched_under, Watched,
};

/// The descriptors that name one instance. Changed only by threads that hold the instance's lock.
pub(super) struct Numbers {
    /// One of `all`, or the duplicate that is kept for threads that wait; -1 for none.
    any: AtomicI32,
    all: Mutex<Vec<c_int>>,
    /// The duplicate that is used by waits that had begun when the last number was closed; -1 for none.
    kept: AtomicI32,
    /// Threads in a wait that may take long.
    waits: AtomicU32,
}

impl Numbers {
    pub(super) fn new(fd: c_int) -> Numbers {
        Numbers {
            any: AtomicI32::new(fd),
            all: Mutex::new(vec![fd]),
            kept: AtomicI32::new(-1),
            waits: AtomicU32::new(0),
        }
    }

    /// A number of the instance. It may be closed at any time unless the caller holds the instance's lock.
    pub(super) fn any(&self) -> c_int {
        self.any.load(Ordering::Relaxed)
    }

    /// The number with which a call on `fd` continues: `fd`, as long as it is the instance's.
    pub(super) fn of_call(&self, fd: c_int) -> c_int {
        let any = self.any();
        if any == fd || self.all.lock().contains(&fd) {
            fd
        } else {
            any
        }
    }

    fn add(&self, fd: c_int) {
        let mut all = self.all.lock();
        if !all.contains(&fd) {
            all.push(fd);
        }
        self.any.store(fd, Ordering::Relaxed);
    }

    /// `fd` is about to be closed. Whether another one is left.
    fn remove(&self, fd: c_int) -> bool {
        let mut all = self.all.lock();
        all.retain(|number| *number != fd);
        if let Some(other) = all.first() {
            self.any.store(*other, Ordering::Relaxed);
            return true;
        }
        let kept = if self.waits.load(Ordering::SeqCst) > 0 { lingering::duplicate(fd) } else { None };
        self.any.store(kept.unwrap_or(-1), Ordering::Relaxed);
        self.kept.store(kept.unwrap_or(-1), Ordering::SeqCst);
        drop(all);
        self.close_kept();
        false
    }

    /// Closes the duplicate that was kept for waits, once these are over.
    fn close_kept(&self) {
        if self.kept.load(Ordering::SeqCst) < 0 || self.waits.load(Ordering::SeqCst) > 0 {
            return;
        }
        let kept = self.kept.swap(-1, Ordering::SeqCst);
        if kept >= 0 {
            let _ = self.any.compare_exchange(kept, -1, Ordering::Relaxed, Ordering::Relaxed);
            lingering::close(kept);
        }
    }
}

/// A wait that may take long. Over once dropped, also if its thread is cancelled.
pub(super) struct Wait<'a>(&'a Shared);

impl<'a> Wait<'a> {
    pub(super) fn begin(shared: &'a Shared) -> Wait<'a> {
        shared.numbers.waits.fetch_add(1, Ordering::SeqCst);
        Wait(shared)
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.0.numbers.waits.fetch_sub(1, Ordering::SeqCst);
        self.0.numbers.close_kept();
    }
}

impl Epoll {
    /// `fd` names the instance, too.
    pub(super) fn named(&self, fd: c_int) {
        let observers = &self.shared.observers;
        come_back(&observers.instances, &observers.outliving, fd);
        let _locked = self.shared.state.lock();
        self.shared.numbers.add(fd);
    }

    /// `fd` is about to be closed.
    pub(super) fn closed(&self, fd: c_int) {
        let observers = &self.shared.observers;
        let others_left = {
            let _locked = self.shared.state.lock();
            self.shared.numbers.remove(fd)
        };
        if !others_left {
            forget_fd(&observers.instances, fd, false);
            end_outliving(&observers.instances, &observers.outliving, false);
            return;
        }
        match watched_under(&observers.instances, fd) {
            Watched::No => {}
            Watched::Here => outlive_as_duplicate(&observers.instances, &observers.outliving, fd),
            // As for a connection: see `watched::outlive`. The helper polls for those that see the kernel's view.
            Watched::Elsewhere => {
                leave_to_kernel(&observers.instances, fd);
                self.nest();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::os::real;
    use crate::table::{self, Entry};

    #[test]
    fn calls_continue_by_a_remaining_descriptor() {
        let numbers = Numbers::new(5);
        assert_eq!((numbers.any(), numbers.of_call(5)), (5, 5));
        numbers.add(9);
        numbers.add(9);
        assert_eq!((numbers.of_call(5), numbers.of_call(9)), (5, 9));
        assert!(numbers.remove(9));
        assert_eq!((numbers.any(), numbers.of_call(9)), (5, 5));
        numbers.add(9);
        assert!(numbers.remove(5));
        assert_eq!((numbers.any(), numbers.of_call(5)), (9, 9));
        // No thread waits.
        assert!(!numbers.remove(9));
        assert_eq!(numbers.any(), -1);
    }

    #[test]
    fn a_wait_keeps_the_last_number_open() {
        let entry = instance();
        let epoll = Epoll::of(&entry).expect("just made");
        let number = epoll.shared.numbers.any();
        let first = Wait::begin(&epoll.shared);
        let second = Wait::begin(&epoll.shared);
        assert_eq!(crate::ops::ending::close(number), 0);
        let kept = epoll.shared.numbers.of_call(number);
        assert!(kept >= 0 && kept != number && is_open(kept));
        drop(first);
        assert!(is_open(kept));
        drop(second);
        assert_eq!(epoll.shared.numbers.any(), -1);
    }

    fn instance() -> Arc<Entry> {
        let fd = crate::ops::readiness::epoll_create1(0);
        table::get_full(fd).expect("it was made here")
    }

    fn is_open(fd: c_int) -> bool {
        // SAFETY: no pointers.
        unsafe { real::fcntl(fd, libc::F_GETFD, 0) >= 0 }
    }
}
