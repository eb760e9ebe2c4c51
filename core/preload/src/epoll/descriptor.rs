//! The interface of an instance to the table of descriptors.

use std::any::Any;
use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use netacc_device::CompletionQueueId;
use netacc_driver::Endpoint;

use super::interest::Interest;
use super::shared::Holders;
use super::{deregister, kernel_ctl, Epoll};
use crate::instance::Instance;
use crate::os::own;
use crate::runtime::{self, Runtime};
use crate::table::Entry;
use crate::watchers::{Sleeper, Subscriber};

impl Epoll {
    /// The instance that `entry` is; `None` if it is something else.
    #[inline]
    pub fn of(entry: &Entry) -> Option<&Epoll> {
        match entry {
            Entry::Epoll(instance) => (&**instance as &dyn Any).downcast_ref(),
            _ => None,
        }
    }
}

impl Instance for Epoll {
    fn named(&self, fd: c_int) {
        self.named(fd);
    }

    fn closed(&self, fd: c_int) {
        self.closed(fd);
    }

    fn after_fork(&self, fd: c_int) -> Box<dyn Instance> {
        let fresh = Epoll::with_holders(fd, Holders::inherited(&self.shared));
        if let Some(state) = self.shared.state.try_lock() {
            let mut copy = fresh.shared.state.lock();
            for (fd, i) in state.interests.iter().filter(|(_, i)| !i.parked) {
                copy.interests.insert(fd, Interest { disabled: i.disabled, ..Interest::kernels(i.events, i.data) });
            }
        }
        Box::new(fresh)
    }

    fn before_fork(&self) {
        self.shared.before_fork();
    }

    fn waits(&self) -> u64 {
        self.shared.waits.load(Ordering::Relaxed)
    }

    fn has_interest(&self, fd: c_int) -> bool {
        self.shared.state.lock().interests.get(&fd).is_some()
    }

    fn return_to_kernel(&self) {
        // An instance that came with a fork, and was not used since, belongs to the parent, which translates its
        // events.
        if self.shared.is_others() {
            return;
        }
        let state = self.shared.state.lock();
        let epfd = self.shared.kernel().epfd;
        state.interests.iter().for_each(|(fd, interest)| interest.return_to_kernel(epfd, fd));
        self.shared.forget_streams();
        self.shared.kick.deregister(epfd);
        let endpoint = runtime::get().and_then(Runtime::endpoint);
        if let Some(channel) = endpoint.zip(self.shared.own_queue()).and_then(|(e, cq)| e.device().channel_fd(cq)) {
            kernel_ctl(epfd, libc::EPOLL_CTL_DEL, channel, 0);
        }
    }

    fn give_away(&self) {
        self.give_away();
    }

    fn give_back(&self) {
        let shared = &self.shared;
        if shared.kick.is_borrowed() {
            let _locked = shared.state.lock();
            shared.kick.deregister(shared.kernel().epfd);
        }
        if let Some(kick) = shared.kick.give_up() {
            let _locked = shared.state.lock();
            deregister(shared.kernel().epfd, kick);
            own::discard(kick);
        }
    }

    fn nest(&self) {
        self.nest();
    }

    fn observe_by_poll(&self) -> bool {
        self.observe_by_poll()
    }

    fn confirm(&self) -> bool {
        self.shared.confirm()
    }

    fn has_ready(&self) -> bool {
        self.shared.has_ready()
    }

    fn poll(&self, endpoint: &Endpoint) {
        self.shared.poll(endpoint);
    }

    fn own_queue(&self) -> Option<CompletionQueueId> {
        self.shared.own_queue()
    }

    fn add_sleeper(&self, sleeper: &Arc<dyn Sleeper>) {
        self.shared.observers.add(sleeper);
    }

    fn remove_sleeper(&self, sleeper: &Arc<dyn Sleeper>) {
        self.shared.observers.remove(sleeper);
    }

    fn subscriber(&self) -> Arc<dyn Subscriber> {
        self.shared.clone()
    }
}
