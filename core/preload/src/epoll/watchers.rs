//! What a socket knows of those that watch it, and what becomes of them when it changes.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use netacc_device::CompletionQueueId;
use netacc_driver::Readiness;

use super::{Change, Shared};
use crate::socket::Socket;
use crate::wait::Waiter;

/// Somebody who watches a socket.
pub enum Registration {
    /// An epoll instance, and the descriptor under which it knows the socket.
    Epoll(Weak<Shared>, c_int),
    /// A thread in `poll`.
    Waiter(Arc<Waiter>),
}

/// Where a watcher of a stream is woken.
pub enum Watcher {
    /// At the instance's completion queue.
    Instance(Arc<Shared>),
    /// A thread in `poll`: at its own queue, or by the helper if it has none.
    Sleeper(Option<CompletionQueueId>),
}

impl Registration {
    /// The stream's readiness may have gained something.
    #[inline]
    pub fn ready(&self, now: Readiness, arrived: bool) {
        match self {
            Registration::Epoll(shared, fd) => {
                if let Some(shared) = shared.upgrade() {
                    shared.changed(*fd, now, if arrived { Change::Arrival } else { Change::Readiness });
                }
            }
            Registration::Waiter(waiter) => waiter.wake(),
        }
    }

    /// Who wants to be woken where for the stream's link, if that matters to the watcher, and it still exists.
    pub fn watcher(&self) -> Option<Watcher> {
        match self {
            Registration::Epoll(shared, _) => shared.upgrade().map(Watcher::Instance),
            Registration::Waiter(waiter) => waiter.watcher(),
        }
    }

    /// Whether it is an instance's, which knows what it watches as `fd`.
    pub(super) fn is_under(&self, fd: c_int) -> bool {
        matches!(self, Registration::Epoll(_, number) if *number == fd)
    }

    /// The instance, if the watcher is one that still exists.
    pub fn instance(&self) -> Option<Arc<Shared>> {
        match self {
            Registration::Epoll(shared, _) => shared.upgrade(),
            Registration::Waiter(_) => None,
        }
    }
}

/// Carries registrations over from a socket that was not connected to the connection it has become.
pub fn carry_over(watchers: Vec<Registration>, fd: c_int, sock: &Socket) {
    for watcher in watchers {
        if let Registration::Epoll(shared, _) = &watcher {
            if let Some(shared) = shared.upgrade() {
                attach(&shared, fd, sock);
            }
        }
    }
}

/// A connection is dissolved, and its descriptors stay open: interests in it are the kernel's alone again. Returns the
/// registrations for what becomes of it.
pub fn release(watchers: Vec<Registration>) -> Vec<Registration> {
    for watcher in &watchers {
        let Registration::Epoll(shared, fd) = watcher else { continue };
        if let Some(shared) = shared.upgrade() {
            shared.leave_to_kernel(*fd);
        }
    }
    watchers
}

pub(super) fn attach(shared: &Arc<Shared>, fd: c_int, sock: &Socket) {
    let mut state = shared.state.lock();
    let Some(i) = state.interests.get_mut(&fd) else { return };
    i.stream = sock.stream.clone();
    drop(state);
    if sock.stream.is_some() {
        shared.streams.fetch_add(1, Ordering::Relaxed);
        shared.ensure_kick();
    }
    let mut watchers = sock.watchers.lock();
    watchers.push(Registration::Epoll(Arc::downgrade(shared), fd));
}
