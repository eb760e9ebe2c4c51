//! Which completion queue a link reports to.
//!
//! A link belongs to the one epoll instance that watches its streams, so that the thread which waits there finds what
//! has arrived without anybody's help. A link that nobody watches belongs to the common queue: who waits for it in
//! `poll` or a blocking call looks there, or at the link itself. A link with several watchers belongs to the helper's
//! queue, because no single one of them can be relied on to look for the others; so does a link whose streams the
//! program has closed: what its peers still send must be answered, with a reset above all. And one on which a stream is
//! being opened: its peer may want to give that up, whatever this program does meanwhile. And one that nobody watches and that
//! has room for further streams, which must be answered although nobody waits on those that it has; unless peers can knock.
//!
//! The rule is applied when a stream gets onto a link or leaves it, when an attempt begins or ends, and when an instance
//! begins to watch it, by different threads. Each looks again after moving the link: whoever changes a watcher does so
//! before looking for a link, so the last to move it has seen everything.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use netacc_device::CompletionQueueId;
use netacc_driver::{Endpoint, LinkCell, Readiness, StreamCell};
use netacc_proto::Phase;
use parking_lot::Mutex;

use crate::epoll::Registration;
use crate::runtime::{self, Runtime, NO_FD};
use crate::socket::Socket;
use crate::table::{self, Entry};

/// The queues of epoll instances.
pub struct Queues {
    /// Of instances that are gone.
    free: Mutex<Vec<CompletionQueueId>>,
    /// Instances that have a queue.
    waited_at: AtomicU32,
    /// What the process may run on.
    processors: u32,
}

impl Queues {
    /// None is used, in a process that may run on so many processors.
    pub fn new(processors: u32) -> Queues {
        Queues { free: Mutex::default(), waited_at: AtomicU32::new(0), processors }
    }

    /// Whether the threads that wait on instances with links leave no processor to their peers.
    pub fn outnumber_processors(&self) -> bool {
        self.waited_at.load(Ordering::Relaxed) >= self.processors
    }
}

/// A completion queue for an epoll instance: one of an instance that is gone, a new one, or the common one. (A device
/// has few, and they cannot be destroyed.)
pub fn take(rt: &Runtime, endpoint: &Endpoint) -> CompletionQueueId {
    rt.queues.waited_at.fetch_add(1, Ordering::Relaxed);
    let free = rt.queues.free.lock().pop();
    free.or_else(|| endpoint.device().create_cq().ok()).unwrap_or(endpoint.default_cq())
}

/// The instance is gone; the next one takes its queue.
pub fn give_back(rt: &Runtime, cq: CompletionQueueId) {
    rt.queues.waited_at.fetch_sub(1, Ordering::Relaxed);
    if rt.endpoint().is_some_and(|e| e.default_cq() != cq) {
        rt.queues.free.lock().push(cq);
    }
}

/// Moves a link to the queue where it belongs.
pub fn settle(endpoint: &Endpoint, link: &Arc<LinkCell>) {
    let mut home = home_of(endpoint, link);
    loop {
        endpoint.rebind(link, home);
        let again = home_of(endpoint, link);
        if again == home {
            break;
        }
        home = again;
    }
    // Threads asleep in `poll` sleep on the queues that their streams had then.
    for cell in endpoint.streams_on(link) {
        with_socket(&cell, |sock| sock.watchers.lock().iter().for_each(Registration::wake));
    }
}

/// As [`settle`], for the link of a stream that has a new watcher. Nothing to do as long as there is no link.
pub fn settle_stream(cell: &Arc<StreamCell>) {
    let Some(endpoint) = runtime::get().and_then(Runtime::endpoint) else { return };
    let link = {
        let guard = cell.lock(endpoint);
        // Also while bytes from before its promotion are unread: nothing more is going to say that it is on its link.
        guard.link().filter(|_| guard.proto().phase() == Phase::Linked).cloned()
    };
    if let Some(link) = link {
        settle(endpoint, &link);
    }
}

fn home_of(endpoint: &Endpoint, link: &LinkCell) -> CompletionQueueId {
    let cells = endpoint.streams_on(link);
    if cells.iter().any(|cell| cell.is_opening()) {
        return endpoint.control_cq();
    }
    let mut home = None;
    let mut open = false;
    // What has left the link, and only waits for the peer to let go of it, is looked at by nobody.
    let on_kernel = Readiness::KERNEL_RX | Readiness::KERNEL_TX;
    for cell in cells.into_iter().filter(|cell| !cell.readiness().contains(on_kernel)) {
        open |= cell.tag().load(Ordering::Relaxed) != NO_FD;
        let mut instances = Vec::new();
        with_socket(&cell, |sock| {
            instances.extend(sock.watchers.lock().iter().filter_map(Registration::instance));
        });
        for instance in instances {
            let queue = instance.queue(endpoint);
            if *home.get_or_insert(queue) != queue {
                return endpoint.control_cq();
            }
        }
    }
    let looked_at = open && !link.awaits_streams();
    home.unwrap_or(if looked_at { endpoint.default_cq() } else { endpoint.control_cq() })
}

/// Runs `f` on the socket of a stream, if the stream has a descriptor.
fn with_socket(cell: &Arc<StreamCell>, f: impl FnOnce(&Socket)) {
    let fd = cell.tag().load(Ordering::Relaxed);
    if fd == NO_FD {
        return;
    }
    if let Some(Entry::Stream(sock)) = table::get_full(fd as c_int).as_deref() {
        if sock.stream.as_ref().is_some_and(|s| Arc::ptr_eq(s, cell)) {
            f(sock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_waiting_threads_as_processors_leave_none() {
        let queues = Queues::new(2);
        assert!(!queues.outnumber_processors());
        queues.waited_at.store(1, Ordering::Relaxed);
        assert!(!queues.outnumber_processors());
        queues.waited_at.store(2, Ordering::Relaxed);
        assert!(queues.outnumber_processors());
    }
}
