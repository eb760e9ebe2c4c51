//! The interface of other threads to the first helper thread.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::assistants::Done;
use super::poller::Poller;
use crate::os::own;
use crate::os::work::Work;
use crate::os::{futex, uses};

/// True while the helper sleeps, or is about to: the thread that swaps it to false must kick it.
pub(crate) static ASLEEP: AtomicBool = AtomicBool::new(false);

/// The helper thread's descriptors.
pub(crate) struct Helper {
    pub(crate) poller: Poller,
    /// Each -1 where there is none, or it was given back.
    stats: AtomicI32,
    /// The list of the process's mappings.
    mappings: AtomicI32,
    /// The UDP socket for proofs of addresses. It is made for the first flow of datagrams to or from another host.
    proofs: AtomicI32,
    /// Counts kicks once the eventfd was given back; the helper sleeps on it then.
    pub(crate) kicks: AtomicU32,
    /// The thread is to end.
    pub(crate) ends: AtomicBool,
    pub(crate) thread: Mutex<Option<libc::pthread_t>>,
    /// The work of this thread, of the assistants, and of the threads that answer `netacc_ss`.
    pub(crate) work: Work,
    pub(crate) done: Done,
}

impl Helper {
    /// With the listener of `netacc_ss` and the list of the process's mappings, if these can be had.
    pub(crate) fn new(stats: Option<c_int>, mappings: Option<c_int>) -> Helper {
        Helper {
            poller: Poller::new(),
            stats: AtomicI32::new(stats.unwrap_or(-1)),
            mappings: AtomicI32::new(mappings.unwrap_or(-1)),
            ..Helper::none()
        }
    }

    /// Ends the thread, and waits for its end.
    pub(crate) fn end(&self) {
        self.ends.store(true, Ordering::SeqCst);
        self.kick();
        if let Some(thread) = self.thread.lock().take() {
            // SAFETY: started here, and waited for once.
            unsafe { libc::pthread_join(thread, std::ptr::null_mut()) };
        }
    }

    /// For a process without a helper thread, and without descriptors of the library.
    pub(crate) fn none() -> Helper {
        Helper {
            poller: Poller::none(),
            stats: AtomicI32::new(-1),
            mappings: AtomicI32::new(-1),
            proofs: AtomicI32::new(-1),
            kicks: AtomicU32::new(0),
            ends: AtomicBool::new(false),
            thread: Mutex::default(),
            work: Work::default(),
            done: Done::default(),
        }
    }

    /// The descriptor that wakes the helper, for a child to keep; -1 if there is none.
    pub(crate) fn kick_fd(&self) -> c_int {
        self.poller.kick_fd()
    }

    /// Wakes the helper. Safe in a signal handler.
    pub(crate) fn kick(&self) {
        let _use = uses::Use::begin();
        match self.kick_fd() {
            -1 => {
                self.kicks.fetch_add(1, Ordering::SeqCst);
                futex::wake_all(&self.kicks);
            }
            fd => own::kick(fd),
        }
    }

    fn all(&self) -> [&AtomicI32; 5] {
        [&self.poller.epoll, &self.poller.kick, &self.stats, &self.mappings, &self.proofs]
    }

    pub(crate) fn fds(&self) -> Vec<c_int> {
        let all = self.all().map(|fd| fd.load(Ordering::SeqCst));
        all.into_iter().filter(|fd| *fd >= 0).collect()
    }

    pub(crate) fn has_descriptors(&self) -> bool {
        !self.fds().is_empty()
    }

    /// Closes all of them. Called by the helper, or where there is none.
    pub(crate) fn give_back(&self) {
        let all = self.all().map(|fd| fd.swap(-1, Ordering::SeqCst));
        if !uses::await_uses() {
            // Another thread may be about to write to one of them: they stay open.
            return;
        }
        for fd in all.into_iter().filter(|fd| *fd >= 0) {
            own::discard(fd);
        }
    }

    /// The listener of `netacc_ss`.
    pub(crate) fn stats(&self) -> Option<c_int> {
        Some(self.stats.load(Ordering::Relaxed)).filter(|fd| *fd >= 0)
    }

    /// The list of the process's mappings; `None` where it cannot be opened, or was given back.
    pub(crate) fn mappings(&self) -> Option<c_int> {
        Some(self.mappings.load(Ordering::Relaxed)).filter(|fd| *fd >= 0)
    }

    /// The socket for proofs, which `make` makes if there is none yet. `None` where the library keeps no descriptors.
    pub(crate) fn proofs(&self, make: impl FnOnce() -> Option<c_int>) -> Option<c_int> {
        let _use = uses::Use::begin();
        let known = self.proofs.load(Ordering::SeqCst);
        if known >= 0 || self.poller.epoll.load(Ordering::SeqCst) < 0 {
            return Some(known).filter(|fd| *fd >= 0);
        }
        let fd = make()?;
        if let Err(other) = self.proofs.compare_exchange(-1, fd, Ordering::SeqCst, Ordering::SeqCst) {
            own::discard(fd);
            return Some(other);
        }
        if self.poller.add(fd, libc::EPOLLIN, PROOFS) {
            return Some(fd);
        }
        // The descriptors were given back meanwhile.
        if self.proofs.compare_exchange(fd, -1, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            own::discard(fd);
        }
        None
    }

    /// Sleeps until kicked after `seen` kicks, or for so many milliseconds (-1: for ever), without a descriptor.
    pub(crate) fn sleep(&self, seen: u32, timeout_ms: c_int) {
        futex::wait(&self.kicks, seen, u64::try_from(timeout_ms).ok().map(Duration::from_millis));
    }
}

pub(crate) const STATS: u64 = 1;
pub(crate) const DEVICE: u64 = 2;
pub(crate) const UNWATCHED: u64 = 3;
pub(crate) const PROOFS: u64 = 4;
