//! Threads that sleep on an instance.
//!
//! A peer rings the channel of a completion queue only while that is armed, so whenever a thread sleeps on an instance
//! that has a queue, one of them must have armed it. A thread that fell asleep before the instance had a queue has not
//! armed it: the instance wakes those threads when it gets one.

use std::sync::atomic::{AtomicU32, Ordering};

use netacc_device::{Armed, CompletionQueueId};
use netacc_driver::Endpoint;

use super::Shared;
use crate::os::errno::{errno, set_errno};
use crate::wait;

#[derive(Default)]
pub(super) struct Sleepers {
    /// Threads that sleep in the real wait, or are about to.
    all: AtomicU32,
    /// Those of them that have not armed a queue.
    unarmed: AtomicU32,
}

impl Sleepers {
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.all.load(Ordering::SeqCst) > 0
    }

    /// A thread is about to sleep.
    pub(super) fn begin(&self) {
        self.all.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether some thread sleeps that should have armed the queue.
    pub(super) fn must_arm(&self, queue: Option<CompletionQueueId>) -> bool {
        queue.is_some() && self.unarmed.load(Ordering::SeqCst) > 0
    }
}

/// A thread that sleeps on the instance. The sleep ends on drop, also if the thread is cancelled while it sleeps.
pub(super) struct Announced<'a> {
    shared: &'a Shared,
    /// The queue that it has armed.
    armed: Option<(&'a Endpoint, CompletionQueueId)>,
    /// The queue has something already.
    pub(super) pending: bool,
}

impl<'a> Announced<'a> {
    /// `endpoint` is none in a process that has none yet; `moderated` as for [`wait::arm`].
    pub(super) fn new(shared: &'a Shared, endpoint: Option<&'a Endpoint>, moderated: bool) -> Announced<'a> {
        shared.sleepers.begin();
        let mut cq = endpoint.and(shared.own_queue());
        if cq.is_none() {
            shared.sleepers.unarmed.fetch_add(1, Ordering::SeqCst);
            // Counted before another check: the thread that assigns a queue reads the count afterwards.
            cq = endpoint.and(shared.own_queue());
            if cq.is_some() {
                shared.sleepers.unarmed.fetch_sub(1, Ordering::SeqCst);
            }
        }
        let armed = endpoint.zip(cq);
        let pending = armed.is_some_and(|(endpoint, cq)| wait::arm(endpoint, cq, moderated) == Armed::Pending);
        Announced { shared, armed, pending }
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        let saved = errno();
        self.shared.sleepers.all.fetch_sub(1, Ordering::SeqCst);
        match self.armed {
            Some((endpoint, cq)) => wait::disarm(endpoint, cq),
            None => drop(self.shared.sleepers.unarmed.fetch_sub(1, Ordering::SeqCst)),
        }
        set_errno(saved);
    }
}
