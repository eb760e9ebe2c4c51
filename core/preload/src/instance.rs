//! The interface of epoll instances to the table of descriptors: for duplicating and closing descriptors of an
//! instance, for forks, and for observers. [`epoll`](crate::epoll) implements it.

use std::any::Any;
use std::ffi::c_int;
use std::sync::Arc;

use netacc_device::CompletionQueueId;
use netacc_driver::Endpoint;

use crate::watchers::{Sleeper, Subscriber};

/// An epoll instance that a descriptor names.
pub trait Instance: Any + Send + Sync {
    /// `fd` names the instance, too.
    fn named(&self, fd: c_int);

    /// `fd` is about to be closed.
    fn closed(&self, fd: c_int);

    /// The same instance, named by `fd`, in a forked child: the kernel's part is shared with the parent, the data must be kept
    /// to translate events; streams are kernel sockets here. Waits for no lock.
    fn after_fork(&self, fd: c_int) -> Box<dyn Instance>;

    /// A child is about to inherit it.
    fn before_fork(&self);

    /// From now on only the kernel's instance counts: its events go to the program unchanged. All connections are plain
    /// sockets.
    fn return_to_kernel(&self);

    /// The instance is about to be sent to another process.
    fn give_away(&self);

    /// Closes the descriptors that the library has of the instance. By the helper, when nothing is on a link any more.
    fn give_back(&self);

    /// The program's calls of `epoll_wait` and its relatives so far.
    fn waits(&self) -> u64;

    /// Whether the program watches `fd` by it.
    fn has_interest(&self, fd: c_int) -> bool;

    /// Observers that see the kernel's view only observe the instance. No thread can be relied on to wait on it, so the
    /// helper polls for it.
    fn nest(&self);

    /// A thread is about to check the instance in `poll`. Returns whether the library has a part in that.
    fn observe_by_poll(&self) -> bool;

    /// Whether the instance is readable according to the kernel.
    fn confirm(&self) -> bool;

    /// Whether a wait would find something on the ready list.
    fn has_ready(&self) -> bool;

    /// Handles completions of the instance's queue.
    fn poll(&self, endpoint: &Endpoint);

    /// The instance's completion queue, if it has one of its own.
    fn own_queue(&self) -> Option<CompletionQueueId>;

    /// A thread in `poll` sleeps on the instance, too.
    fn add_sleeper(&self, sleeper: &Arc<dyn Sleeper>);

    /// Undoes [`add_sleeper`](Instance::add_sleeper).
    fn remove_sleeper(&self, sleeper: &Arc<dyn Sleeper>);

    /// The interface of the instance to the sockets that it watches.
    fn subscriber(&self) -> Arc<dyn Subscriber>;
}
