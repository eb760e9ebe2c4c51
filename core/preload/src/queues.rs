//! Which completion queue a link reports to.
//!
//! A link belongs to the one epoll instance that watches its streams, so that the thread which waits there finds what
//! has arrived without anybody's help. A link that nobody watches belongs to the common queue: who waits for it in
//! `poll` or a blocking call looks there, or at the link itself. A link with several watchers belongs to the helper's
//! queue, because no single one of them can be relied on to look for the others; so does a link whose streams the
//! program has closed: what its peers still send must be answered, with a reset above all.
//!
//! The rule is applied when a stream gets onto a link and when an instance begins to watch it, by different threads.
//! Each looks again after moving the link: whoever changes a watcher does so before looking for a link, so the last
//! to move it has seen everything.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use netacc_device::CompletionQueueId;
use netacc_driver::{Endpoint, LinkCell, StreamCell};
use netacc_proto::Phase;

use crate::epoll::Registration;
use crate::runtime::{self, Runtime, NO_FD};
use crate::socket::Socket;
use crate::table::{self, Entry};

/// A completion queue for an epoll instance: one of an instance that is gone, a new one, or the common one. (A device
/// has few, and they cannot be destroyed.)
pub fn take(rt: &Runtime, endpoint: &Endpoint) -> CompletionQueueId {
    let free = rt.free_queues.lock().pop();
    free.or_else(|| endpoint.device().create_cq().ok()).unwrap_or(endpoint.default_cq())
}

/// The instance is gone; the next one takes its queue.
pub fn give_back(rt: &Runtime, cq: CompletionQueueId) {
    if rt.endpoint().is_some_and(|e| e.default_cq() != cq) {
        rt.free_queues.lock().push(cq);
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
    let mut home = None;
    let mut open = false;
    for cell in endpoint.streams_on(link) {
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
    home.unwrap_or(if open { endpoint.default_cq() } else { endpoint.control_cq() })
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
