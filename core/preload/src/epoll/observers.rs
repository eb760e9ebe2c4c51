//! The users that check an instance without waiting on it: threads in `poll` and `select`, other instances, rings.
//!
//! The kernel reports to them whether the instance is readable. So the kernel's part of an observed instance is
//! readable for the program's own events only: records on anchors are left to the helper, which watches all anchors
//! anyway. Where only the kernel wakes the observer (another instance, a ring), the kick stands for the ready list,
//! each arrival is written to it, and the links report to the helper's queue, because no thread can be relied on to
//! poll another queue.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Epoll, Shared};
use crate::os::{poll, uses};
use crate::queues;
use crate::runtime::{self, Runtime};
use crate::watchers::{unwatch, Registration, Sleeper, Watchers};

/// The observers of one instance.
#[derive(Default)]
pub(super) struct Observers {
    /// A [`Kind`]. Only grows: the library does not always see that an observer is gone.
    most: AtomicU8,
    /// Threads that sleep in `poll`.
    sleepers: Mutex<Vec<Arc<dyn Sleeper>>>,
    /// Instances that watch this one, and the descriptors under which they do.
    pub(super) instances: Watchers,
    /// Descriptors under which they did and which are closed, and the duplicates that are watched now.
    pub(super) outliving: Mutex<Vec<(c_int, c_int)>>,
    /// Some interest has been of another instance.
    watches_instances: AtomicBool,
}

/// The kinds of observers that an instance has had.
#[repr(u8)]
#[derive(Clone, Copy)]
enum Kind {
    /// Threads in `poll`, which also wait for the library's wake-ups.
    Poll = 1,
    /// Observers that see the kernel's view only.
    Kernel = 2,
}

impl Observers {
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.most.load(Ordering::SeqCst) >= Kind::Poll as u8
    }

    #[inline]
    pub(super) fn include_kernel(&self) -> bool {
        self.most.load(Ordering::SeqCst) >= Kind::Kernel as u8
    }

    /// A thread in `poll` sleeps on the instance, too.
    pub(super) fn add(&self, sleeper: &Arc<dyn Sleeper>) {
        self.sleepers.lock().push(sleeper.clone());
    }

    /// Undoes [`add`](Observers::add).
    pub(super) fn remove(&self, sleeper: &Arc<dyn Sleeper>) {
        self.sleepers.lock().retain(|other| !std::ptr::addr_eq(Arc::as_ptr(other), Arc::as_ptr(sleeper)));
    }

    /// Wakes threads that sleep in `poll`.
    #[inline]
    pub(super) fn wake(&self) {
        if self.any() {
            self.sleepers.lock().iter().for_each(|sleeper| sleeper.wake());
        }
    }
}

impl Shared {
    /// From now on `kind` observes the instance.
    fn observe(&self, kind: Kind) {
        if self.observers.most.fetch_max(kind as u8, Ordering::SeqCst) >= kind as u8 {
            return;
        }
        self.leave_datagrams_to_kernel();
        let mut state = self.state.lock();
        let kernel = self.kernel();
        for (fd, i) in state.interests.iter_mut() {
            if let Some(now) = i.stream.as_ref().map(|s| s.readiness()) {
                i.register(kernel, fd, now, false);
            }
        }
    }

    /// Makes the kernel's view of the instance, and of those that it watches, agree with the library's. Returns whether
    /// the library has something to report.
    fn agree(&self) -> bool {
        if self.is_ready() {
            return true;
        }
        self.take_kick();
        let queue = runtime::get().and_then(Runtime::endpoint).zip(self.own_queue());
        if let Some((endpoint, cq)) = queue {
            endpoint.device().drain(cq);
            // The wake-up may have been another thread's.
            endpoint.poll(cq);
        }
        if self.observers.watches_instances.load(Ordering::Relaxed) {
            let state = self.state.lock();
            let inner = state.interests.iter().filter_map(|(_, i)| i.instance.as_ref()?.upgrade());
            let inner: Vec<_> = inner.collect();
            drop(state);
            for instance in inner {
                instance.agree();
            }
        }
        self.is_ready()
    }

    /// Whether the library has something to report, also for watched instances without a kick.
    pub(super) fn has_ready(&self) -> bool {
        self.is_ready() || self.instances_without_kick().iter().any(|(_, inner)| inner.has_ready())
    }

    /// The watched instances and their descriptors, if the library has given back all its descriptors. Streams that
    /// had ended by then are still on ready lists, and the kernel does not see these without a kick.
    pub(super) fn instances_without_kick(&self) -> Vec<(c_int, Arc<Shared>)> {
        if !uses::is_over() || !self.observers.watches_instances.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let state = self.state.lock();
        state.interests.iter().filter_map(|(fd, i)| Some((fd, i.instance.as_ref()?.upgrade()?))).collect()
    }

    /// The kernel reports that the instance is readable, perhaps for an event that has been taken since.
    /// Returns whether it is still readable.
    pub(super) fn confirm(&self) -> bool {
        if self.agree() {
            return true;
        }
        let state = self.state.lock();
        let readable = poll::ready_events(self.kernel().epfd, libc::POLLIN) != 0;
        drop(state);
        readable || self.is_ready()
    }
}

impl Epoll {
    /// A thread is about to check the instance in `poll`. Returns whether the library has a part in that.
    pub(super) fn observe_by_poll(&self) -> bool {
        self.shared.reclaim();
        match runtime::get() {
            _ if self.shared.is_given() => false,
            Some(rt) if rt.endpoint().is_none() => false,
            Some(_) => {
                self.shared.observe(Kind::Poll);
                true
            }
            None => {
                // Nothing is on a link. A change before the thread wakes must be visible to the kernel, because only
                // the kernel wakes it.
                self.shared.observe(Kind::Kernel);
                false
            }
        }
    }

    /// Observers that see the kernel's view only observe the instance. No thread can be relied on to wait on it, so the
    /// helper polls for it.
    pub(super) fn nest(&self) {
        let shared = &self.shared;
        shared.reclaim();
        shared.observe(Kind::Kernel);
        if runtime::get().is_none() {
            // No stream yet: with the first one it gets its kick.
            return;
        }
        shared.ensure_kick();
        let streams: Vec<_> = {
            let state = shared.state.lock();
            let endpoint = runtime::get().and_then(Runtime::endpoint);
            if let Some(channel) = endpoint.zip(shared.own_queue()).and_then(|(e, cq)| e.device().channel_fd(cq)) {
                super::deregister(shared.kernel().epfd, channel);
            }
            state.interests.iter().filter_map(|(_, i)| i.stream.clone()).collect()
        };
        streams.iter().for_each(queues::reassign_stream);
        if shared.is_ready() {
            shared.lower(&mut shared.state.lock());
        }
    }

    /// The instance is watched by `outer`, under `fd`.
    pub(super) fn watch(&self, outer: &Arc<Shared>, fd: c_int) {
        unwatch(&self.shared.observers.instances, outer, fd);
        self.shared.observers.instances.lock().push(Registration::of(outer, fd));
        outer.observers.watches_instances.store(true, Ordering::Relaxed);
        self.nest();
    }

    /// `outer` watches it no more.
    pub(super) fn unwatch(&self, outer: &Arc<Shared>, fd: c_int) {
        unwatch(&self.shared.observers.instances, outer, fd);
    }
}
