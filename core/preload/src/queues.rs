//! The choice of the completion queue to which a link reports.
//!
//! A link belongs to the watcher of its streams, an epoll instance or a thread asleep in `poll`, so that the thread
//! which waits there finds arrivals without the help of another thread. A link without watchers belongs to the common
//! queue, on which no thread sleeps: a blocking call polls the link itself. Its peer may open further streams there, see
//! `control/unwatched`.
//!
//! These links belong to the helper's queue:
//!
//! * A link with several watchers, because no single one of them can be relied on to poll for the others.
//! * A link whose streams the program has closed, because messages that its peers still send must be answered, above
//!   all with a reset.
//! * A link with flows of datagrams: a sender must send by the kernel what a receiver has not taken, whatever the program does.
//! * A link on which a stream is being opened, because its peer may want to abandon that, whatever this program does
//!   meanwhile.
//!
//! A device has few queues. A watcher that gets none has its links on the helper's queue: the helper handles what
//! arrives there, and wakes the watcher of each stream that has changed. So no thread is woken for a stream that it
//! does not watch, however many threads there are. The price for watchers without a queue is that two threads wake up
//! instead of one. A watcher without a queue that goes to sleep often takes over the queue of one that has slept all
//! the while.
//!
//! A link with several streams on whose queue pair several threads would sleep is *dispatched* by the helper for the
//! same reason: a message wakes all threads that sleep on its queue pair.
//!
//! The rule is applied when a stream gets onto a link or leaves it, when an attempt begins or ends, and when an
//! instance begins to watch it, by different threads. Each thread checks again after it has moved the link. A thread
//! that changes a watcher does so before it looks for a link, so the last thread to move the link has seen all changes.
//!
//! Such a check visits all streams of the link, except while one of them is being opened. If there are many, and each of
//! them comes and goes, the checks would take most of the process's time. The helper's queue is never wrong, though. So a
//! link of many streams goes there at once if it must leave its queue, and the helper finds a better queue later, in at
//! most a tenth of its time for all such links.

use std::collections::{HashSet, VecDeque};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use netacc_device::{CompletionQueueId, DeviceError, Instant, QueuePairId};
use netacc_driver::{Endpoint, LinkCell, Readiness, StreamCell};
use netacc_proto::Phase;
use parking_lot::Mutex;

use crate::os::clock;
use crate::os::per_process::PerProcess;
use crate::runtime;
use crate::socket::Socket;
use crate::table::{self, Entry, NO_FD};
use crate::watchers::{Registration, Watcher};

static QUEUES: PerProcess<Queues> = PerProcess::new();

/// The queues of this process.
pub fn of_process() -> &'static Queues {
    QUEUES.get_or_make(|| Queues::new(std::thread::available_parallelism().map_or(1, |count| count.get() as u32)))
}

/// In a forked child: the queues are its parent's.
pub(crate) fn after_fork_child() {
    QUEUES.forget();
}

/// The queues of the watchers.
pub struct Queues {
    /// Queues of instances that are gone. Links may still be bound to them.
    free: Mutex<Vec<CompletionQueueId>>,
    /// The device has no more.
    exhausted: AtomicBool,
    /// The owner of each queue that is in use.
    owners: Mutex<Vec<(CompletionQueueId, Owner)>>,
    /// Instances that have a queue.
    waited_at: AtomicU32,
    /// The processors that the process may run on.
    processors: u32,
    /// Links of many streams that may belong elsewhere.
    put_off: Mutex<PutOff<Arc<LinkCell>>>,
}

/// Links that the helper is to check, in the order in which they came, each once.
struct PutOff<L> {
    links: VecDeque<(QueuePairId, L)>,
    known: HashSet<QueuePairId>,
    /// When the next one is checked: a check has its price, and there may be thousands of them.
    due: Instant,
}

impl<L> PutOff<L> {
    fn new() -> PutOff<L> {
        PutOff { links: VecDeque::new(), known: HashSet::new(), due: Instant::ZERO }
    }

    /// Returns whether the link was not known.
    fn add(&mut self, qp: QueuePairId, link: L) -> bool {
        let new = self.known.insert(qp);
        if new {
            self.links.push_back((qp, link));
        }
        new
    }

    /// The link to check now, if it is time.
    fn take_due(&mut self, now: Instant) -> Option<L> {
        let (qp, link) = if self.due <= now { self.links.pop_front() } else { None }?;
        self.known.remove(&qp);
        Some(link)
    }

    /// A check has taken this time.
    fn enqueue_check(&mut self, begun: Instant, now: Instant) {
        self.due = now + now.saturating_since(begun) * REST;
    }

    /// When the next check is due.
    fn next(&self) -> Option<Instant> {
        (!self.links.is_empty()).then_some(self.due)
    }
}

/// A possible owner of a queue: a slot, or an epoll instance.
pub trait User: Send + Sync {
    /// When a thread went to sleep there last.
    fn last_sleep(&self) -> Instant;

    /// Gives up the queue for another owner. Its links are still on the queue. `false`: it had another queue, or none.
    fn surrender(&self, endpoint: &Endpoint, queue: CompletionQueueId) -> bool;
}

/// The owner of a queue.
pub(crate) enum Owner {
    Slot(Arc<dyn User>),
    Instance(Weak<dyn User>),
}

impl Owner {
    /// An epoll instance.
    pub(crate) fn of_instance<U: User + 'static>(instance: &Arc<U>) -> Owner {
        let weak: Weak<U> = Arc::downgrade(instance);
        Owner::Instance(weak)
    }

    /// When a thread last went to sleep on it. `None` if the owner is gone; its queue is free then.
    fn last_sleep(&self) -> Option<Instant> {
        match self {
            Owner::Slot(slot) => Some(slot.last_sleep()),
            Owner::Instance(instance) => instance.upgrade().map(|instance| instance.last_sleep()),
        }
    }

    fn surrender(&self, endpoint: &Endpoint, queue: CompletionQueueId) -> bool {
        match self {
            Owner::Slot(slot) => slot.surrender(endpoint, queue),
            Owner::Instance(instance) => instance.upgrade().is_some_and(|instance| instance.surrender(endpoint, queue)),
        }
    }
}

/// When a watcher sleeps. This decides which watchers have queues.
#[derive(Default)]
pub struct Activity {
    /// When it went to sleep last, in nanoseconds.
    last_sleep: AtomicU64,
    /// How often it has gone to sleep without a queue, and when it did for the first time.
    unserved: AtomicU32,
    unserved_since: AtomicU64,
}

impl Activity {
    /// So often a watcher goes to sleep without a queue before it takes over one. Arbitrary: taking over costs two
    /// wake-ups, and a check of all links.
    const PATIENCE: u32 = 16;

    /// The watcher goes to sleep. Returns whether it is to take over the queue of another one, which has slept longer
    /// than this one has been without.
    pub fn sleeps(&self, has_queue: bool) -> Option<Instant> {
        let now = clock::now();
        self.last_sleep.store(now.as_nanos(), Ordering::Relaxed);
        if has_queue {
            self.unserved.store(0, Ordering::Relaxed);
            return None;
        }
        let before = self.unserved.fetch_add(1, Ordering::Relaxed);
        if before == 0 {
            self.unserved_since.store(now.as_nanos(), Ordering::Relaxed);
        }
        if before < Self::PATIENCE {
            return None;
        }
        self.unserved.store(0, Ordering::Relaxed);
        Some(Instant::from_nanos(self.unserved_since.load(Ordering::Relaxed)))
    }

    /// When it went to sleep last.
    pub fn last_sleep(&self) -> Instant {
        Instant::from_nanos(self.last_sleep.load(Ordering::Relaxed))
    }
}

/// With up to so many streams on a link, all are checked whenever one of them changes. Arbitrary: that takes
/// a microsecond or two.
const FEW: u16 = 16;

/// Checks of a link of many streams are at least so many times as far apart as one of them takes.
const REST: u32 = 9;

impl Queues {
    /// No queue is in use, in a process that may run on so many processors.
    pub fn new(processors: u32) -> Queues {
        Queues {
            free: Mutex::default(),
            exhausted: AtomicBool::new(false),
            owners: Mutex::default(),
            waited_at: AtomicU32::new(0),
            processors,
            put_off: Mutex::new(PutOff::new()),
        }
    }

    /// Whether the threads that wait on instances with links leave no processor to their peers.
    pub fn outnumber_processors(&self) -> bool {
        self.waited_at.load(Ordering::Relaxed) >= self.processors
    }

    /// The helper is to check the link.
    fn put_off(&self, endpoint: &Endpoint, link: &Arc<LinkCell>) {
        // The guard is dropped before the helper is woken.
        let new = self.put_off.lock().add(link.qp(), link.clone());
        if new {
            endpoint.need_helper();
        }
    }

    /// Checks the links that are due. Called by the helper.
    pub fn check_due(&self, endpoint: &Endpoint) {
        let mut now = clock::now();
        loop {
            let due = self.put_off.lock().take_due(now);
            let Some(link) = due else { return };
            let begun = now;
            if !link.is_dead() {
                reassign_all(endpoint, &link);
            }
            now = clock::now();
            self.put_off.lock().enqueue_check(begun, now);
        }
    }

    /// When the next check is due. The helper calls this once threads that need a check wake it.
    pub fn next_check(&self) -> Option<Instant> {
        self.put_off.lock().next()
    }
}

/// From now on `owner` has the queue.
pub(crate) fn belongs_to(queue: CompletionQueueId, owner: Owner) {
    let mut owners = of_process().owners.lock();
    owners.retain(|(of, _)| *of != queue);
    owners.push((queue, owner));
}

/// The queue of a watcher that has not gone to sleep since `since`, without its links. Call it without holding a lock.
pub fn take_over(endpoint: &Endpoint, since: Instant) -> Option<CompletionQueueId> {
    let idle = {
        let mut owners = of_process().owners.lock();
        let idlest = owners.iter().enumerate().filter_map(|(at, (_, owner))| Some((owner.last_sleep()?, at))).min();
        idlest.filter(|(last, _)| *last < since).map(|(_, at)| owners.swap_remove(at))
    };
    let (queue, owner) = idle?;
    if !owner.surrender(endpoint, queue) {
        return None;
    }
    clear(endpoint, queue);
    Some(queue)
}

/// A completion queue for an epoll instance that has none. `None`: it uses the helper's queue.
pub fn take(endpoint: &Endpoint) -> Option<CompletionQueueId> {
    of_process().waited_at.fetch_add(1, Ordering::Relaxed);
    take_free(endpoint)
}

/// A completion queue without links: one of an instance that is gone, or a new one. (A device has few, and they cannot
/// be destroyed.) Call it without holding a lock.
pub fn take_free(endpoint: &Endpoint) -> Option<CompletionQueueId> {
    let free = of_process().free.lock().pop();
    if let Some(cq) = free {
        clear(endpoint, cq);
        return Some(cq);
    }
    if !of_process().exhausted.load(Ordering::Relaxed) {
        match endpoint.device().create_cq() {
            Ok(cq) => return Some(cq),
            Err(DeviceError::Exhausted { .. }) => of_process().exhausted.store(true, Ordering::Relaxed),
            // There may be descriptors later.
            Err(_) => {}
        }
    }
    None
}

/// Moves the links of a queue to where they belong now that its owner has gone.
pub fn clear(endpoint: &Endpoint, cq: CompletionQueueId) {
    for link in endpoint.links_at(cq) {
        reassign_link(endpoint, &link);
    }
}

/// The instance is gone: another watcher may have its queue, if it had one.
pub fn give_back(cq: Option<CompletionQueueId>) {
    of_process().waited_at.fetch_sub(1, Ordering::Relaxed);
    of_process().free.lock().extend(cq);
}

/// Puts back a queue that was taken and not used.
pub fn put_back(cq: CompletionQueueId) {
    of_process().free.lock().push(cq);
}

/// A stream of the link has changed: moves the link to the queue where it belongs, at once or later.
pub fn reassign(endpoint: &Endpoint, link: &Arc<LinkCell>, cell: &Arc<StreamCell>) {
    if cell.is_opening() {
        let helpers = endpoint.control_cq();
        if link.cq() == helpers {
            return;
        }
        endpoint.rebind(link, helpers);
        // If the attempt has ended meanwhile, the thread that ended it may have checked the link before it came here.
        if cell.is_opening() {
            return;
        }
    }
    if link.streams() <= FEW {
        return reassign_all(endpoint, link);
    }
    let helpers = endpoint.control_cq();
    let home = home_of_one(endpoint, cell).map(|home| home.queue);
    if link.cq() != helpers && home.is_some_and(|home| home != link.cq()) {
        endpoint.rebind(link, helpers);
    }
    of_process().put_off(endpoint, link);
}

/// As [`reassign`], where any stream of the link may have changed.
fn reassign_link(endpoint: &Endpoint, link: &Arc<LinkCell>) {
    if link.streams() <= FEW {
        return reassign_all(endpoint, link);
    }
    endpoint.rebind(link, endpoint.control_cq());
    of_process().put_off(endpoint, link);
}

/// The link of a stream that a thread begins to watch in `poll`, sleeping at `queue` if it has one. Nothing to do if the
/// link is there already, or if the helper dispatches it for others besides.
pub fn reassign_watched(
    endpoint: &Endpoint,
    cell: &Arc<StreamCell>,
    queue: Option<CompletionQueueId>,
) -> Option<CompletionQueueId> {
    let link = cell.lock(endpoint).link().cloned()?;
    let helpers = link.cq() == endpoint.control_cq();
    let at_home = match queue {
        Some(queue) => link.cq() == queue || helpers && link.streams() > 1,
        None => helpers,
    };
    if !at_home {
        reassign(endpoint, &link, cell);
    }
    Some(link.cq())
}

/// Several threads wait for different streams of a link: the helper is to wake each for its own.
pub fn dispatch(endpoint: &Endpoint, link: &Arc<LinkCell>) {
    if link.dispatch() || link.cq() != endpoint.control_cq() {
        endpoint.rebind(link, endpoint.control_cq());
        // Threads that sleep on the queue pair already are to do the same as the caller.
        endpoint.device().wake_qp(link.qp());
    }
}

/// As [`reassign`], for the link of a stream that has a new watcher. Nothing to do as long as there is no link.
pub fn reassign_stream(cell: &Arc<StreamCell>) {
    let Some(rt) = runtime::get() else { return };
    let Some(endpoint) = rt.endpoint() else { return };
    let link = {
        let guard = cell.lock(endpoint);
        // Also while bytes from before its promotion are unread: no later event announces that it is on its link.
        guard.link().filter(|_| guard.proto().phase() == Phase::Linked).cloned()
    };
    if let Some(link) = link {
        reassign(endpoint, &link, cell);
    }
}

/// Checks all streams of the link.
fn reassign_all(endpoint: &Endpoint, link: &Arc<LinkCell>) {
    let mut home = home_of(endpoint, link);
    while link.cq() != home {
        // Sleeping watchers of a stream of the link are woken at the new queue as well: their own, or the helper's.
        endpoint.rebind(link, home);
        let again = home_of(endpoint, link);
        if again == home {
            break;
        }
        home = again;
    }
}

fn home_of(endpoint: &Endpoint, link: &LinkCell) -> CompletionQueueId {
    let helpers = endpoint.control_cq();
    if endpoint.has_flows(link) || endpoint.opens_stream_on(link) {
        return helpers;
    }
    let cells = endpoint.streams_on(link);
    if cells.len() <= 1 {
        link.end_dispatch();
    } else if link.is_dispatched() {
        return helpers;
    }
    let mut common: Option<Home> = None;
    let (mut open, mut unwatched) = (false, false);
    for cell in cells.iter().filter(|cell| has_watcher(cell)) {
        open |= cell.tag().load(Ordering::Relaxed) != NO_FD;
        let Some(home) = home_of_one(endpoint, cell) else {
            unwatched = true;
            continue;
        };
        if common.get_or_insert(home).queue != home.queue {
            return helpers;
        }
    }
    match common {
        // A thread watches some of the streams for the length of one call: it must not be woken for the others.
        Some(home) if home.passing && unwatched => helpers,
        Some(home) => home.queue,
        None if open => endpoint.default_cq(),
        None => helpers,
    }
}

/// The queue to which a stream's link should belong.
#[derive(Clone, Copy)]
struct Home {
    queue: CompletionQueueId,
    /// For a thread in `poll`, as long as it sleeps.
    passing: bool,
}

/// The queue to which the link would belong for this stream alone; `None` if it does not matter to the stream.
fn home_of_one(endpoint: &Endpoint, cell: &Arc<StreamCell>) -> Option<Home> {
    let helpers = endpoint.control_cq();
    if cell.is_opening() {
        return Some(Home { queue: helpers, passing: false });
    }
    if !has_watcher(cell) {
        return None;
    }
    let mut watchers = Vec::new();
    with_socket(cell, |sock| {
        watchers.extend(sock.watchers.lock().iter().filter_map(Registration::watcher));
    });
    // Not with the watchers locked: an instance may have to take a queue.
    let mut homes = watchers.into_iter().map(|watcher| match watcher {
        Watcher::Instance(instance) => Home { queue: instance.queue(endpoint), passing: false },
        Watcher::Sleeper(queue) => Home { queue: queue.unwrap_or(helpers), passing: true },
    });
    let first = homes.next()?;
    Some(if homes.all(|home| home.queue == first.queue) { first } else { Home { queue: helpers, passing: false } })
}

/// A stream that has left the link, and only waits for the peer to release it, has no watcher.
fn has_watcher(cell: &StreamCell) -> bool {
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
mod tests;
