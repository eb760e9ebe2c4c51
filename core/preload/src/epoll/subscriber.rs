//! The interface of an instance to the sockets that it watches.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use netacc_device::CompletionQueueId;
use netacc_driver::{Endpoint, Readiness, StreamCell};

use super::interest::BOTH_KERNEL;
use super::{kernel_ctl, Change, Shared, State};
use crate::watchers::Subscriber;

impl Subscriber for Shared {
    fn was_forked(&self) -> bool {
        self.was_forked()
    }

    #[inline]
    fn changed(&self, fd: c_int, now: Readiness, arrived: bool) {
        self.handle_change(fd, now, if arrived { Change::Arrival } else { Change::Readiness });
    }

    fn attach(&self, fd: c_int, stream: Option<&Arc<StreamCell>>) -> bool {
        let mut state = self.state.lock();
        let Some(i) = state.interests.get_mut(&fd) else { return false };
        i.stream = stream.cloned();
        drop(state);
        if stream.is_some() {
            self.streams.fetch_add(1, Ordering::Relaxed);
            self.ensure_kick();
        }
        true
    }

    fn remove(&self, fd: c_int, deregister: bool) {
        let mut state = self.state.lock();
        if deregister {
            kernel_ctl(self.kernel().epfd, libc::EPOLL_CTL_DEL, fd, 0);
        }
        self.forget(state.interests.remove(&fd));
    }

    fn leave_to_kernel(&self, fd: c_int) {
        let mut state = self.state.lock();
        let Some(i) = state.interests.get_mut(&fd) else { return };
        if i.stream.take().is_some() {
            self.streams.fetch_sub(1, Ordering::Relaxed);
        }
        if i.parked {
            kernel_ctl(self.kernel().epfd, libc::EPOLL_CTL_DEL, fd, 0);
            self.forget(state.interests.remove(&fd));
            return;
        }
        let away = self.returns(i);
        i.register(self.kernel(), fd, BOTH_KERNEL, away);
        // No record comes any more, and no call can name a closed descriptor.
        i.travelled = false;
    }

    fn rename(&self, fd: c_int, kept: c_int) -> bool {
        let mut state = self.state.lock();
        let State { interests, ready, .. } = &mut *state;
        let Some(interest) = interests.remove(&fd) else { return false };
        let epfd = self.kernel().epfd;
        kernel_ctl(epfd, libc::EPOLL_CTL_DEL, fd, 0);
        if interest.parked {
            self.forget(Some(interest));
            return false;
        }
        if let Some(events) = interest.kernel_events() {
            kernel_ctl(epfd, libc::EPOLL_CTL_ADD, kept, events);
        }
        interests.insert(kept, interest);
        ready.iter_mut().filter(|queued| **queued == fd).for_each(|queued| *queued = kept);
        true
    }

    fn queue(self: Arc<Self>, endpoint: &Endpoint) -> CompletionQueueId {
        self.queue_of_links(endpoint)
    }
}
