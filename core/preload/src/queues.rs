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
//!
//! That is a look at all streams of the link. If there are many, and each of them comes and goes, it would be what the process
//! does most of its time. The helper's queue is never wrong, though: so a link of many streams goes there at once if it must
//! leave where it is, and where else it may be is found out before long, by the helper, in a tenth of its time at most for
//! each such link.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use netacc_device::{CompletionQueueId, Instant};
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
    /// Links of many streams that may belong elsewhere, and when that is looked at.
    put_off: Mutex<Vec<(Arc<LinkCell>, Instant)>>,
    /// How long the last such look took, in nanoseconds.
    last_look: AtomicU64,
}

/// With so many streams on a link all are looked at whenever one of them changes. Arbitrary: that takes microseconds.
const FEW: u16 = 64;

/// Looks at a link of many streams are at least so many times as far apart as one of them takes.
const REST: u32 = 9;

impl Queues {
    /// None is used, in a process that may run on so many processors.
    pub fn new(processors: u32) -> Queues {
        Queues {
            free: Mutex::default(),
            waited_at: AtomicU32::new(0),
            processors,
            put_off: Mutex::default(),
            last_look: AtomicU64::new(0),
        }
    }

    /// Whether the threads that wait on instances with links leave no processor to their peers.
    pub fn outnumber_processors(&self) -> bool {
        self.waited_at.load(Ordering::Relaxed) >= self.processors
    }

    /// The helper is to look at the link.
    fn put_off(&self, endpoint: &Endpoint, link: &Arc<LinkCell>) {
        let rest = Duration::from_nanos(self.last_look.load(Ordering::Relaxed)) * REST;
        let due = runtime::now() + rest;
        let mut put_off = self.put_off.lock();
        if !put_off.iter().any(|(other, _)| Arc::ptr_eq(other, link)) {
            put_off.push((link.clone(), due));
            drop(put_off);
            endpoint.need_helper();
        }
    }

    /// Looks at links for which it is time. By the helper.
    pub fn look(&self, endpoint: &Endpoint) {
        let now = runtime::now();
        let due: Vec<_> = {
            let mut put_off = self.put_off.lock();
            let (due, later) = std::mem::take(&mut *put_off).into_iter().partition(|(_, at)| *at <= now);
            *put_off = later;
            due
        };
        for (link, _) in due.iter().filter(|(link, _)| !link.is_dead()) {
            let begun = runtime::now();
            settle_all(endpoint, link);
            let took = runtime::now().saturating_since(begun).as_nanos() as u64;
            self.last_look.store(took, Ordering::Relaxed);
        }
    }

    /// When the next look is due. Asked by the helper once those who need it wake it.
    pub fn next_look(&self) -> Option<Instant> {
        self.put_off.lock().iter().map(|(_, at)| *at).min()
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

/// Something has changed for a stream of the link: the link moves to the queue where it belongs, at once or before long.
pub fn settle(rt: &Runtime, endpoint: &Endpoint, link: &Arc<LinkCell>, cell: &Arc<StreamCell>) {
    if link.streams() <= FEW {
        return settle_all(endpoint, link);
    }
    let home = home_of_one(endpoint, cell);
    let helpers = endpoint.control_cq();
    if link.cq() != helpers && home.is_some_and(|home| home != link.cq()) {
        endpoint.rebind(link, helpers);
        wake_all(endpoint, link);
    } else {
        wake(cell);
    }
    rt.queues.put_off(endpoint, link);
}

/// As [`settle`], for the link of a stream that has a new watcher. Nothing to do as long as there is no link.
pub fn settle_stream(cell: &Arc<StreamCell>) {
    let Some(rt) = runtime::get() else { return };
    let Some(endpoint) = rt.endpoint() else { return };
    let link = {
        let guard = cell.lock(endpoint);
        // Also while bytes from before its promotion are unread: nothing more is going to say that it is on its link.
        guard.link().filter(|_| guard.proto().phase() == Phase::Linked).cloned()
    };
    if let Some(link) = link {
        settle(rt, endpoint, &link, cell);
    }
}

/// Looks at all streams of the link.
fn settle_all(endpoint: &Endpoint, link: &Arc<LinkCell>) {
    let mut home = home_of(endpoint, link);
    loop {
        endpoint.rebind(link, home);
        let again = home_of(endpoint, link);
        if again == home {
            break;
        }
        home = again;
    }
    wake_all(endpoint, link);
}

/// Threads asleep in `poll` sleep on the queues that their streams had then.
fn wake_all(endpoint: &Endpoint, link: &LinkCell) {
    endpoint.streams_on(link).iter().for_each(wake);
}

fn wake(cell: &Arc<StreamCell>) {
    with_socket(cell, |sock| sock.watchers.lock().iter().for_each(Registration::wake));
}

fn home_of(endpoint: &Endpoint, link: &LinkCell) -> CompletionQueueId {
    let cells = endpoint.streams_on(link);
    if cells.iter().any(|cell| cell.is_opening()) {
        return endpoint.control_cq();
    }
    let mut home = None;
    let mut open = false;
    for cell in cells.iter().filter(|cell| is_looked_at(cell)) {
        open |= cell.tag().load(Ordering::Relaxed) != NO_FD;
        if let Some(queue) = home_of_one(endpoint, cell) {
            if *home.get_or_insert(queue) != queue {
                return endpoint.control_cq();
            }
        }
    }
    let looked_at = open && !link.awaits_streams();
    home.unwrap_or(if looked_at { endpoint.default_cq() } else { endpoint.control_cq() })
}

/// Where the link would belong for the sake of this stream; `None` if it does not matter to it.
fn home_of_one(endpoint: &Endpoint, cell: &Arc<StreamCell>) -> Option<CompletionQueueId> {
    if cell.is_opening() {
        return Some(endpoint.control_cq());
    }
    if !is_looked_at(cell) {
        return None;
    }
    let mut instances = Vec::new();
    with_socket(cell, |sock| {
        instances.extend(sock.watchers.lock().iter().filter_map(Registration::instance));
    });
    let mut queues = instances.iter().map(|instance| instance.queue(endpoint));
    let first = queues.next()?;
    Some(if queues.all(|queue| queue == first) { first } else { endpoint.control_cq() })
}

/// What has left the link, and only waits for the peer to let go of it, is looked at by nobody.
fn is_looked_at(cell: &StreamCell) -> bool {
    !cell.readiness().contains(Readiness::KERNEL_RX | Readiness::KERNEL_TX)
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
