//! The interface of epoll instances and threads in `poll` to the sockets that they watch. [`epoll`](crate::epoll) and
//! [`wait`](crate::wait) implement the traits.

use std::ffi::c_int;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use netacc_device::CompletionQueueId;
use netacc_driver::{Endpoint, Readiness, StreamCell};
use parking_lot::{Mutex, MutexGuard};

/// The interface of an epoll instance to the sockets that it watches. It names each of them by a descriptor.
pub trait Subscriber: Send + Sync {
    /// The stream of `fd` has changed: its readiness is `now`. `arrived`: bytes, an end or an error have come. Called with the
    /// stream locked.
    fn changed(&self, fd: c_int, now: Readiness, arrived: bool);

    /// `fd`, which is watched already, has become a connection, with a stream perhaps. `false`: it is not watched.
    fn attach(&self, fd: c_int, stream: Option<&Arc<StreamCell>>) -> bool;

    /// Drops `fd`; with `deregister` also from the kernel's instance.
    fn remove(&self, fd: c_int, deregister: bool);

    /// The file of `fd` is the kernel's alone from now on.
    fn leave_to_kernel(&self, fd: c_int);

    /// Moves the registration of `fd` to `kept`, another descriptor of the same socket. `false`: `fd` is not watched.
    fn rename(&self, fd: c_int, kept: c_int) -> bool;

    /// Whether a process besides this one may wait on it, because a fork has copied it.
    fn was_forked(&self) -> bool;

    /// The completion queue to which links of watched streams are to report. Call it without holding a lock.
    fn queue(self: Arc<Self>, endpoint: &Endpoint) -> CompletionQueueId;
}

/// A thread that sleeps in `poll`, as other threads see it.
pub trait Sleeper: Send + Sync {
    /// An event that the thread waits for may have happened.
    fn wake(&self);

    /// The place where it wants to be woken for links, if that matters: see [`Watcher::Sleeper`].
    fn queue(&self) -> Option<Option<CompletionQueueId>>;
}

/// A watcher of a socket.
pub enum Registration {
    /// An epoll instance, and the descriptor under which it watches the socket.
    Epoll(Weak<dyn Subscriber>, c_int),
    /// A thread in `poll`.
    Sleeper(Arc<dyn Sleeper>),
}

/// The watchers of a socket.
#[derive(Default)]
pub struct Watchers {
    list: Mutex<Vec<Registration>>,
    /// The length of the list when it was last unlocked.
    count: AtomicUsize,
}

/// The list of the watchers of a socket, locked.
pub struct LockedWatchers<'a> {
    list: MutexGuard<'a, Vec<Registration>>,
    count: &'a AtomicUsize,
}

impl Watchers {
    /// Locks the list.
    #[inline]
    pub fn lock(&self) -> LockedWatchers<'_> {
        LockedWatchers { list: self.list.lock(), count: &self.count }
    }

    /// Whether there is none. Takes no lock: a thread that has added itself, and then looks for what it waits for, may find
    /// that another thread, which did not see it, has taken that.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }
}

impl Deref for LockedWatchers<'_> {
    type Target = Vec<Registration>;

    #[inline]
    fn deref(&self) -> &Vec<Registration> {
        &self.list
    }
}

impl DerefMut for LockedWatchers<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Vec<Registration> {
        &mut self.list
    }
}

impl Drop for LockedWatchers<'_> {
    fn drop(&mut self) {
        self.count.store(self.list.len(), Ordering::Release);
    }
}

/// The place where a watcher of a stream is woken.
pub enum Watcher {
    /// At the instance's completion queue.
    Instance(Arc<dyn Subscriber>),
    /// A thread in `poll`: at its own queue, or by the helper if it has none.
    Sleeper(Option<CompletionQueueId>),
}

impl Registration {
    /// Of the instance, which watches the socket under `fd`.
    pub fn of<S: Subscriber + 'static>(instance: &Arc<S>, fd: c_int) -> Registration {
        let weak: Weak<S> = Arc::downgrade(instance);
        Registration::Epoll(weak, fd)
    }

    /// The stream's readiness may have gained something.
    #[inline]
    pub fn ready(&self, now: Readiness, arrived: bool) {
        match self {
            Registration::Epoll(instance, fd) => {
                if let Some(instance) = instance.upgrade() {
                    instance.changed(*fd, now, arrived);
                }
            }
            Registration::Sleeper(sleeper) => sleeper.wake(),
        }
    }

    /// The place where the watcher is to be woken for the stream's link, if that matters to the watcher and it still
    /// exists.
    pub fn watcher(&self) -> Option<Watcher> {
        match self {
            Registration::Epoll(instance, _) => instance.upgrade().map(Watcher::Instance),
            Registration::Sleeper(sleeper) => sleeper.queue().map(Watcher::Sleeper),
        }
    }

    /// Whether it is that of an instance which watches the socket under `fd`.
    pub fn is_under(&self, fd: c_int) -> bool {
        matches!(self, Registration::Epoll(_, number) if *number == fd)
    }

    /// The instance, if the watcher is one that still exists.
    pub fn instance(&self) -> Option<Arc<dyn Subscriber>> {
        match self {
            Registration::Epoll(instance, _) => instance.upgrade(),
            Registration::Sleeper(_) => None,
        }
    }
}

/// Removes an instance's registration from a socket that is closed or deregistered.
pub fn unwatch<S: Subscriber + ?Sized>(watchers: &Watchers, instance: &Arc<S>, fd: c_int) {
    let is_of = |other: &Weak<dyn Subscriber>| std::ptr::addr_eq(other.as_ptr(), Arc::as_ptr(instance));
    watchers.lock().retain(|r| !matches!(r, Registration::Epoll(other, number) if *number == fd && is_of(other)));
}

/// Removes a thread from a socket that it has waited for. Returns whether others watch the socket.
pub fn remove_sleeper<S: Sleeper + ?Sized>(watchers: &Watchers, sleeper: &Arc<S>) -> bool {
    let is_it = |other: &Arc<dyn Sleeper>| std::ptr::addr_eq(Arc::as_ptr(other), Arc::as_ptr(sleeper));
    let mut watchers = watchers.lock();
    watchers.retain(|r| !matches!(r, Registration::Sleeper(other) if is_it(other)));
    !watchers.is_empty()
}
