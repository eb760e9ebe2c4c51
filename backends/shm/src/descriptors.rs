//! The descriptors that a device may have, and their use by several threads.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::*};

/// Descriptors that the device gives back to a program that is short of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveBack {
    /// The wake descriptors of peers; from then on those are woken through their connection managers.
    Wakes,
    /// All. No stream may be on a link, and the device connects no more.
    All,
}

/// The descriptors of the device, and the threads that use some of them just now.
#[derive(Default)]
pub(crate) struct Descriptors {
    /// One of the below.
    state: AtomicU32,
    /// Threads that have read the number of a completion queue's channel and are about to use the descriptor.
    uses: AtomicU32,
}

impl Descriptors {
    /// No restriction.
    const ALL: u32 = 0;
    /// None of peers.
    const OWN: u32 = 1;
    const NONE: u32 = 2;
    /// A use is one system call that does not block. Looks at a yield each; arbitrary.
    const USE_CHECKS: u32 = 100_000;

    /// Gives up descriptors of peers.
    pub(crate) fn give_up_wakes(&self) {
        let _ = self.state.compare_exchange(Descriptors::ALL, Descriptors::OWN, SeqCst, SeqCst);
    }

    /// Gives up all descriptors.
    pub(crate) fn give_up_all(&self) {
        self.state.store(Descriptors::NONE, SeqCst);
    }

    pub(crate) fn may_have_wakes(&self) -> bool {
        self.state.load(SeqCst) == Descriptors::ALL
    }

    pub(crate) fn are_gone(&self) -> bool {
        self.state.load(SeqCst) == Descriptors::NONE
    }

    /// Runs `f` on the number in `fd`, if there is one, which is not closed meanwhile.
    pub(crate) fn with(&self, fd: &AtomicI32, f: impl FnOnce(RawFd)) {
        self.uses.fetch_add(1, SeqCst);
        let number = fd.load(SeqCst);
        if number >= 0 {
            f(number);
        }
        self.uses.fetch_sub(1, SeqCst);
    }

    /// Takes a number out, and waits until no thread uses it any more. `None`: there is none, or a use takes too long.
    pub(crate) fn take(&self, fd: &AtomicI32) -> Option<RawFd> {
        let number = fd.swap(-1, SeqCst);
        let unused = (0..Descriptors::USE_CHECKS).any(|_| {
            let unused = self.uses.load(SeqCst) == 0;
            if !unused {
                std::thread::yield_now();
            }
            unused
        });
        (number >= 0 && unused).then_some(number)
    }
}
