//! [`ShmDevice`]: the data path and the queues. Connecting is in `cm`, regions are in `region`.
//!
//! No lock on the way of `post_send`, `poll_qp`, `pending`: pair slots and queue pairs are permanent, identifiers
//! carry a generation.

use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use netacc_device::{
    Armed, Capabilities, CompletionQueueId, Device, DeviceError, Directory, DirectoryError, FourTuple, Instant,
    KernelOperation, Obstacle, PeerAddress, PostError, QueuePairId, Region, RemoteRegion, Wait, WorkCompletion,
    WorkRequest,
};
use parking_lot::Mutex;

use crate::bitmap;
use crate::config::{ShmConfig, MIN_SEGMENT_BYTES};
use crate::descriptors::{Descriptors, GiveBack};
use crate::doorbell::OwnDoorbell;
use crate::hold::{self, DeviceId};
use crate::layout::{ASLEEP, AWAKE, CQS, MODERATED, QPS, RING};
use crate::limits;
use crate::manager::{Manager, KICK, LISTENER};
use crate::obstacle;
use crate::operations;
use crate::order::Order;
use crate::pair::{PairSlot, LIVE, PAIRS};
use crate::qp::{Posts, QpLocal, Stamp, DOWN, MAX_INLINE, MAX_MESSAGE, SEND_RING};
use crate::rendezvous::{self, Rendezvous};
use crate::sync;
use crate::sys;
use crate::tuple;

const INDEX_BITS: u32 = QPS.trailing_zeros();
const PAIR_BITS: u32 = PAIRS.trailing_zeros();
/// The highest bit of an id is not ours to use.
const GENERATION_MASK: u32 = (1 << (31 - INDEX_BITS - PAIR_BITS)) - 1;

/// With more pairs than this, `pending` looks at the warm ones first and at all of them every [`FULL_SCAN`] calls.
const SCAN_ALL: usize = 8;
const FULL_SCAN: u32 = 32;

/// A completion queue: its channel, and where `pending` goes on.
struct CompletionQueue {
    /// The channel, or -1.
    fd: AtomicI32,
    /// Pair at which the next scan begins, and queue pair index within it.
    next_pair: AtomicU32,
    next_qp: AtomicU32,
    calls: AtomicU32,
    /// Pairs that had something lately.
    warm: [AtomicU64; PAIRS / 64],
}

/// A software RNIC between the processes of one host. One object is [`Device`], [`Directory`] and
/// [`ConnectionManager`](netacc_device::ConnectionManager).
pub struct ShmDevice {
    capabilities: Capabilities,
    pub(crate) config: ShmConfig,
    /// Who opened it. A forked child must not release what is its parent's.
    pid: u32,
    pub(crate) rendezvous: Rendezvous,
    pairs: Box<[OnceLock<Box<PairSlot>>]>,
    /// Slots made so far; they are filled from 0.
    pair_count: AtomicU32,
    cqs: [CompletionQueue; CQS],
    /// What this process posts to itself, over either of the pairs that it has with itself.
    own_posts: Posts,
    /// Numbers of what this process does in the kernel.
    operation_numbers: operations::Numbers,
    /// See [`Device::kernel_news`]: when it began and ended, in nanoseconds.
    kernel_news: [AtomicU64; 2],
    pub(crate) cq_count: AtomicU32,
    doorbell: OwnDoorbell,
    /// Listener, epoll, kick and doorbell page. Atomics for a forked child, which must not lock.
    own_fds: [AtomicI32; 4],
    pub(crate) descriptors: Descriptors,
    pub(crate) cm: Mutex<Manager>,
}

const FD_LISTENER: usize = 0;
const FD_EPOLL: usize = 1;
const FD_KICK: usize = 2;
const FD_DOORBELL: usize = 3;

impl ShmDevice {
    /// Opens the device: joins the rendezvous of this user (or group) and listens.
    ///
    /// # Errors
    /// [`DeviceError::Unavailable`] if the rendezvous cannot be trusted or reached, [`DeviceError::Os`] otherwise.
    pub fn open(config: ShmConfig) -> Result<Arc<ShmDevice>, DeviceError> {
        let os = |operation| move |source| DeviceError::Os { operation, source };
        // Whoever accepts a pair makes its segment. A process that cannot is of no use to its peers.
        if limits::file_size() < MIN_SEGMENT_BYTES {
            return Err(os("ftruncate")(std::io::Error::from_raw_os_error(libc::EFBIG)));
        }
        let (doorbell, doorbell_fd) = OwnDoorbell::new().map_err(os("memfd_create"))?;
        let epoll = sys::epoll().map_err(os("epoll_create1"))?;
        let kick = sys::eventfd().map_err(os("eventfd"))?;
        let (rendezvous, listener) = Rendezvous::join(&config)?;
        sys::epoll_add_edge(epoll.as_raw_fd(), listener.as_raw_fd(), LISTENER).map_err(os("epoll_ctl"))?;
        sys::epoll_set(epoll.as_raw_fd(), true, kick.as_raw_fd(), KICK, false).map_err(os("epoll_ctl"))?;
        let keep = |fd: OwnedFd| AtomicI32::new(fd.into_raw_fd());
        Ok(Arc::new(ShmDevice {
            capabilities: CAPABILITIES,
            config,
            pid: sys::pid(),
            rendezvous,
            pairs: (0..PAIRS).map(|_| OnceLock::new()).collect(),
            pair_count: AtomicU32::new(0),
            cqs: std::array::from_fn(|_| CompletionQueue {
                fd: AtomicI32::new(-1),
                next_pair: AtomicU32::new(0),
                next_qp: AtomicU32::new(0),
                calls: AtomicU32::new(0),
                warm: [const { AtomicU64::new(0) }; PAIRS / 64],
            }),
            own_posts: Posts::default(),
            operation_numbers: operations::Numbers::new(),
            kernel_news: [const { AtomicU64::new(0) }; 2],
            cq_count: AtomicU32::new(0),
            doorbell,
            own_fds: [keep(listener), keep(epoll), keep(kick), keep(doorbell_fd)],
            descriptors: Descriptors::default(),
            cm: Mutex::new(Manager::default()),
        }))
    }

    /// Whether both ends of a connection must be on this host (in this network namespace).
    pub fn is_within_host(t: &FourTuple) -> bool {
        tuple::same_host(t)
    }

    /// Tells the processes of this user (or group) that we hold a connection to another host, as our stream `stream`.
    /// `false`: the table is full there.
    pub fn announce(&self, t: &FourTuple, stream: u32) -> bool {
        if self.descriptors.are_gone() {
            return false;
        }
        let r = &self.rendezvous;
        r.table.publish(tuple::key(t), r.slot, r.generation, stream)
    }

    /// Takes back what [`announce`](ShmDevice::announce) told.
    pub fn retract(&self, t: &FourTuple, stream: u32) {
        let r = &self.rendezvous;
        r.table.withdraw(tuple::key(t), r.slot, r.generation, stream);
    }

    /// Tells them at which port we accept links from other hosts; 0: at none.
    pub fn tell_link_port(&self, port: u16) {
        self.rendezvous.table.tell_link_port(self.rendezvous.slot, self.rendezvous.generation, port);
    }

    /// The port at which that process accepts links from other hosts which has announced the connection. `None`: no other
    /// process has, or it accepts none. A hint, like all that the table says.
    pub fn link_port_of_holder(&self, t: &FourTuple) -> Option<u16> {
        let table = &self.rendezvous.table;
        let (process, _) = table.lookup(tuple::key(t)).filter(|(process, _)| process.slot != self.rendezvous.slot)?;
        table.link_port(process)
    }

    /// Whether another process has [told](ShmDevice::tell_link_port) that it accepts links from other hosts.
    pub fn has_neighbour_with_links(&self) -> bool {
        self.rendezvous.table.has_link_port_beside(self.rendezvous.slot)
    }

    /// Removes what crashed processes left in the rendezvous that `config` means, and the rendezvous itself if
    /// nobody uses it. Returns how many entries were freed.
    pub fn sweep(config: &ShmConfig) -> usize {
        rendezvous::directory(config).map_or(0, |path| rendezvous::sweep(&path, config.group))
    }

    /// To be called by a thread that ends when the process does: from its end on peers can post nothing to us. Without it they
    /// can until they see the end of a socket, and what they post is lost with us although the kernel would refuse it.
    pub fn end_with_this_thread(&self) {
        // Where the kernel cannot, it is as if nobody had called.
        let _ = sys::tell_of_death(self.doorbell.life());
    }

    /// Leaves the rendezvous, at the end of the process, and removes it if nobody else uses it. Safe in a signal handler.
    pub fn leave(&self) {
        if sys::pid() == self.pid {
            self.rendezvous.leave();
        }
    }

    /// Every descriptor the device holds. For a forked child that closes them itself.
    pub fn fds(&self) -> Vec<RawFd> {
        self.all_fds().map(|fd| fd.load(Acquire)).filter(|&fd| fd >= 0).collect()
    }

    /// Closes descriptors for the sake of a program that has none left; how many. With [`GiveBack::All`] the device is of no
    /// use afterwards: its links die, and it makes no others.
    pub fn give_back(&self, which: GiveBack) -> usize {
        match which {
            GiveBack::Wakes => {
                self.descriptors.keep_own();
                self.pair_slots().map(PairSlot::close_wakes).sum()
            }
            GiveBack::All => {
                self.descriptors.keep_none();
                self.rendezvous.table.unregister(self.rendezvous.slot, self.rendezvous.generation);
                let cm = &mut *self.cm.lock();
                let before = self.fds().len();
                self.kill_all(cm);
                // Under the lock, without which nobody uses those of the connection manager.
                let numbers = self.own_fds.iter().chain(self.cqs.iter().map(|cq| &cq.fd));
                numbers.filter_map(|fd| self.descriptors.take(fd)).for_each(sys::close);
                before
            }
        }
    }

    /// Whether the device may open so many more descriptors without taking too large a share of those of the process.
    pub(crate) fn may_open(&self, count: usize) -> bool {
        !self.descriptors.are_gone() && self.fds().len() + count <= limits::descriptors()
    }

    /// In a forked child: closes the descriptors and lets go of the memory, without a word to peers or parent. Takes
    /// no lock. The device must not be used afterwards; stray accesses find zeros. The child opens one of its own.
    pub fn forget_after_fork(&self) {
        for fd in self.all_fds() {
            let fd = fd.swap(-1, AcqRel);
            if fd >= 0 {
                sys::close(fd);
            }
        }
        self.pair_slots().for_each(|p| p.range.forget());
    }

    fn all_fds(&self) -> impl Iterator<Item = &AtomicI32> {
        let pairs = self.pair_slots().flat_map(|p| p.wake.iter().chain([&p.sock]));
        self.own_fds.iter().chain(self.cqs.iter().map(|c| &c.fd)).chain(pairs)
    }

    pub(crate) fn listener(&self) -> RawFd {
        self.own_fds[FD_LISTENER].load(Relaxed)
    }

    pub(crate) fn epoll(&self) -> RawFd {
        self.own_fds[FD_EPOLL].load(Relaxed)
    }

    pub(crate) fn kick(&self) -> RawFd {
        self.own_fds[FD_KICK].load(Relaxed)
    }

    pub(crate) fn doorbell_fd(&self) -> RawFd {
        self.own_fds[FD_DOORBELL].load(Relaxed)
    }

    /// Its name within this process.
    fn id(&self) -> DeviceId {
        DeviceId(std::ptr::from_ref(self).addr())
    }

    /// The slots made so far.
    pub(crate) fn pair_slots(&self) -> impl Iterator<Item = &PairSlot> {
        let count = self.pair_count.load(Acquire) as usize;
        self.pairs[..count].iter().filter_map(|p| p.get().map(|p| &**p))
    }

    #[inline]
    pub(crate) fn pair(&self, index: usize) -> Option<&PairSlot> {
        self.pairs.get(index)?.get().map(|p| &**p)
    }

    /// Adds a slot. Under the connection manager's lock.
    pub(crate) fn push_pair(&self, make: impl FnOnce(u32) -> std::io::Result<PairSlot>) -> std::io::Result<&PairSlot> {
        let index = self.pair_count.load(Acquire);
        let Some(place) = self.pairs.get(index as usize) else { return Err(std::io::ErrorKind::QuotaExceeded.into()) };
        let slot = Box::new(make(index)?);
        let slot = place.get_or_init(|| slot);
        self.pair_count.store(index + 1, Release);
        Ok(slot)
    }

    #[inline]
    pub(crate) fn qp_id(pair: u32, index: usize, generation: u32) -> QueuePairId {
        QueuePairId((generation & GENERATION_MASK) << (INDEX_BITS + PAIR_BITS) | pair << INDEX_BITS | index as u32)
    }

    /// The pair, the index within it, and the queue pair, if `qp` is one that lives.
    #[inline]
    pub(crate) fn qp(&self, qp: QueuePairId) -> Option<(&PairSlot, usize, &QpLocal)> {
        let index = qp.0 as usize % QPS;
        let pair = self.pair((qp.0 >> INDEX_BITS) as usize % PAIRS)?;
        let local = pair.qp(index)?;
        let generation = local.generation()?;
        (generation & GENERATION_MASK == qp.0 >> (INDEX_BITS + PAIR_BITS)).then_some((pair, index, local))
    }

    /// Whether there is a completion queue of that number.
    pub(crate) fn has_queue(&self, cq: usize) -> bool {
        cq < self.cq_count.load(Acquire) as usize
    }

    /// The channel of a completion queue, made now if there was none.
    pub(crate) fn channel(&self, cq: usize) -> Option<RawFd> {
        let queue = self.cqs.get(cq).filter(|_| self.has_queue(cq))?;
        let fd = queue.fd.load(SeqCst);
        if fd >= 0 {
            return Some(fd);
        }
        self.make_channel(cq, &queue.fd)
    }

    #[cold]
    fn make_channel(&self, cq: usize, place: &AtomicI32) -> Option<RawFd> {
        if self.descriptors.are_gone() {
            return None;
        }
        let fd = sys::eventfd().ok()?.into_raw_fd();
        if let Err(other) = place.compare_exchange(-1, fd, SeqCst, SeqCst) {
            sys::close(fd);
            return Some(other);
        }
        if self.descriptors.are_gone() {
            // Given back while this one was made.
            self.descriptors.take(place).into_iter().for_each(sys::close);
            return None;
        }
        // Whoever is about to sleep on it may have been called already.
        self.ring_self(cq);
        Some(fd)
    }

    /// Announces a sleeper, then looks once more.
    fn arm_as(&self, index: usize, how: u32) -> Armed {
        let bitmaps = self.pair_slots().filter(|p| p.is_active()).map(|p| &p.rx().bitmaps[index]);
        let pending = bitmap::arm(self.doorbell.armed(index), how, bitmaps);
        if pending {
            // The next call of `pending` looks everywhere.
            self.cqs[index].calls.store(0, Relaxed);
            return Armed::Pending;
        }
        Armed::Sleep
    }

    /// Tells the peer that `index` has something.
    #[inline]
    pub(crate) fn announce_peer(&self, pair: &PairSlot, index: usize, local: &QpLocal) {
        let mut ring = pair.announce_peer(index, local.tx());
        while ring != 0 {
            let cq = ring.trailing_zeros() as usize;
            ring &= ring - 1;
            if pair.peer_armed(cq) != MODERATED || !hold::keep(self.id(), pair.index, cq) {
                self.ring_peer(pair, cq);
            }
        }
    }

    #[cold]
    fn ring_peer(&self, pair: &PairSlot, cq: usize) {
        // A peer that is gone wants none.
        if !pair.ring(cq) && pair.state.load(Acquire) == LIVE {
            self.wake_by_socket(pair, cq);
        }
    }

    /// Tells our own pollers that `index` has something.
    pub(crate) fn announce_self(&self, pair: &PairSlot, index: usize, cq: u32) {
        let cq = cq as usize;
        if pair.announce_self(index, cq) {
            self.ring_self(cq);
        }
    }

    /// Wakes whoever sleeps on `cq`.
    pub(crate) fn ring_self(&self, cq: usize) {
        if self.doorbell.armed(cq).load(SeqCst) != 0 {
            self.descriptors.with(&self.cqs[cq].fd, sys::ring);
        }
    }

    /// Puts a queue pair into the error state on this side. Idempotent.
    pub(crate) fn bring_down(&self, pair: &PairSlot, index: usize, local: &QpLocal) {
        if local.down.swap(DOWN, AcqRel) == 0 {
            local.kick();
            self.announce_self(pair, index, local.cq.load(Relaxed));
        }
    }

    /// Takes queue pairs of one pair into `out[n..]`; returns the new `n`. Notes their order.
    #[inline]
    fn scan(&self, pair: &PairSlot, cq: usize, out: &mut [QueuePairId], mut n: usize, order: &mut Order) -> usize {
        let bitmap = &pair.rx().bitmaps[cq];
        if bitmap.looks_empty() {
            return n;
        }
        let queue = &self.cqs[cq];
        let taken = bitmap.take(queue.next_qp.load(Relaxed), out.len() - n, |index| {
            let Some(local) = self.reportable(pair, index, cq, out, n) else { return false };
            n += 1;
            order.note(local.next_stamp().map(Stamp::number));
            true
        });
        queue.next_qp.store(taken.next, Relaxed);
        if taken.left {
            self.ring_self(cq);
        }
        let (warm, bit) = (&queue.warm[pair.index as usize / 64], 1 << (pair.index % 64));
        if warm.load(Relaxed) & bit == 0 {
            warm.fetch_or(bit, Relaxed);
        }
        n
    }

    /// A message was taken. If its sender had done something in the kernel since the last one, that is news.
    #[inline]
    fn note_stamp(&self, pair: &PairSlot, stamp: Stamp) {
        if pair.kernel_operation.load(Relaxed) != stamp.kernel_operation() {
            self.note_kernel_news(pair, stamp.kernel_operation());
            pair.kernel_operation.store(stamp.kernel_operation(), Release);
        }
    }

    #[cold]
    fn note_kernel_news(&self, pair: &PairSlot, number: u32) {
        let now = sys::now();
        // Nobody can have done anything later than now, and what is not known may have been at any time.
        let known = operations::look_up(pair.kernel_operations(), number);
        let KernelOperation { begun, ended } = known.unwrap_or(KernelOperation { begun: now, ended: now });
        for (news, at) in self.kernel_news.iter().zip([begun, ended]) {
            news.fetch_max(at.min(now).as_nanos(), AcqRel);
        }
    }

    #[inline]
    fn reportable<'a>(
        &self,
        pair: &'a PairSlot,
        index: usize,
        cq: usize,
        out: &mut [QueuePairId],
        n: usize,
    ) -> Option<&'a QpLocal> {
        // Bits of queue pairs that are gone are dropped.
        let local = pair.qp(index)?;
        let generation = local.generation()?;
        let bound = local.cq.load(Relaxed);
        if bound as usize != cq {
            // Moved meanwhile; or the peer has knocked.
            self.announce_self(pair, index, bound);
            if local.home() as usize != cq {
                return None;
            }
        }
        out[n] = Self::qp_id(pair.index, index, generation);
        Some(local)
    }

    /// `pending` when there are many pairs.
    fn pending_many(&self, cq: usize, count: usize, out: &mut [QueuePairId]) -> usize {
        let queue = &self.cqs[cq];
        let calls = queue.calls.load(Relaxed);
        queue.calls.store(calls.wrapping_add(1), Relaxed);
        let full = calls.is_multiple_of(FULL_SCAN);
        let first = queue.next_pair.load(Relaxed) as usize % count;
        let mut n = 0;
        for i in 0..count {
            let index = (first + i) % count;
            let warm = &queue.warm[index / 64];
            if !full && warm.load(Relaxed) >> (index % 64) & 1 == 0 {
                continue;
            }
            let Some(pair) = self.pair(index).filter(|p| p.is_active()) else { continue };
            let before = n;
            let mut order = Order::default();
            n = self.scan(pair, cq, out, n, &mut order);
            order.apply(&mut out[before..n]);
            if full && n == before {
                warm.fetch_and(!(1 << (index % 64)), Relaxed);
            }
            if n == out.len() {
                queue.next_pair.store(index as u32, Relaxed);
                return n;
            }
        }
        n
    }
}

/// What shared memory can do.
const CAPABILITIES: Capabilities = Capabilities {
    write_with_imm: true,
    sends: false,
    max_inline: MAX_INLINE,
    max_send_sge: 1,
    max_recv_sge: 0,
    max_send_wr: SEND_RING,
    max_recv_wr: RING,
    max_message: MAX_MESSAGE,
    max_cq: CQS as u32,
    peer_memory: true,
    placement_is_delivery: true,
    cheap_writes: true,
    qp_wait: true,
    rebind: true,
    knock: true,
    exact_bounds: true,
    initiator_sends_first: false,
    notices_silence: true,
};

impl Device for ShmDevice {
    fn name(&self) -> &str {
        "shm"
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn create_cq(&self) -> Result<CompletionQueueId, DeviceError> {
        // Its channel is made when somebody is to sleep on it.
        let take = |count: u32| ((count as usize) < CQS && !self.descriptors.are_gone()).then_some(count + 1);
        let cq = self.cq_count.fetch_update(AcqRel, Acquire, take);
        cq.map(CompletionQueueId).map_err(|_| DeviceError::Exhausted { what: "completion queue" })
    }

    #[inline]
    fn pending(&self, cq: CompletionQueueId, out: &mut [QueuePairId]) -> usize {
        let cq = cq.0 as usize;
        if cq >= CQS || out.is_empty() {
            return 0;
        }
        let count = self.pair_count.load(Acquire) as usize;
        if count > SCAN_ALL {
            return self.pending_many(cq, count, out);
        }
        let queue = &self.cqs[cq];
        let first = queue.next_pair.load(Relaxed) as usize;
        let mut n = 0;
        // What one process has posted, from `begin` on; a process's own pairs come one after the other.
        let (mut begin, mut order, mut own) = (0, Order::default(), false);
        for i in 0..count {
            let index = if first + i < count { first + i } else { (first + i) % count };
            let Some(pair) = self.pair(index).filter(|p| p.is_active()) else { continue };
            if !(std::mem::replace(&mut own, pair.own.load(Relaxed)) && own) {
                std::mem::take(&mut order).apply(&mut out[begin..n]);
                begin = n;
            }
            n = self.scan(pair, cq, out, n, &mut order);
            if n == out.len() {
                queue.next_pair.store(index as u32, Relaxed);
                break;
            }
        }
        order.apply(&mut out[begin..n]);
        n
    }

    #[inline]
    fn poll_qp(&self, qp: QueuePairId, out: &mut [WorkCompletion]) -> usize {
        self.qp(qp).map_or(0, |(pair, _, local)| local.poll(qp, out, |stamp| self.note_stamp(pair, stamp)))
    }

    fn qp_sequence(&self, qp: QueuePairId) -> u32 {
        self.qp(qp).map_or(0, |(_, _, local)| local.sequence())
    }

    fn wait_qp(&self, qp: QueuePairId, seen: u32, timeout: Option<Duration>) -> Wait {
        let Some((_, _, local)) = self.qp(qp) else { return Wait::Woken };
        let Some(value) = local.prepare_sleep(seen) else { return Wait::Woken };
        match sync::futex_wait(local.futex(), value, timeout) {
            Err(libc::ETIMEDOUT) => Wait::TimedOut,
            // The kernel restarts the call itself after handlers with SA_RESTART.
            Err(libc::EINTR) => Wait::Interrupted,
            _ => Wait::Woken,
        }
    }

    fn wake_qp(&self, qp: QueuePairId) {
        if let Some((_, _, local)) = self.qp(qp) {
            local.kick();
        }
    }

    fn knock(&self, qp: QueuePairId) {
        let Some((pair, index, local)) = self.qp(qp) else { return };
        if let Some(cq) = pair.knock(index, local.tx()) {
            self.ring_peer(pair, cq);
        }
    }

    fn begin_kernel_operation(&self) {
        self.doorbell.kernel_operations().begun.fetch_add(1, AcqRel);
    }

    fn end_kernel_operation(&self, operation: KernelOperation) {
        self.operation_numbers.publish(self.doorbell.kernel_operations(), operation);
    }

    fn kernel_news(&self) -> KernelOperation {
        let [begun, ended] = &self.kernel_news;
        // In this order: of an operation that ended when it says so the beginning is known.
        let ended = Instant::from_nanos(ended.load(Acquire));
        KernelOperation { begun: Instant::from_nanos(begun.load(Acquire)), ended }
    }

    fn arm(&self, cq: CompletionQueueId) -> Armed {
        let index = cq.0 as usize;
        if index >= CQS {
            return Armed::Pending;
        }
        self.arm_as(index, ASLEEP)
    }

    fn arm_moderated(&self, cq: CompletionQueueId) -> Armed {
        let index = cq.0 as usize;
        if index >= CQS {
            return Armed::Pending;
        }
        self.arm_as(index, MODERATED)
    }

    fn hold_wakes(&self) {
        hold::begin(self.id());
    }

    fn release_wakes(&self) {
        hold::end(self.id(), |pair, cq| {
            let Some(pair) = self.pair(pair as usize) else { return };
            if pair.is_active() && pair.peer_armed(cq) != AWAKE {
                self.ring_peer(pair, cq);
            }
        });
    }

    fn disarm(&self, cq: CompletionQueueId) {
        let index = cq.0 as usize;
        if index < CQS {
            self.doorbell.armed(index).store(AWAKE, SeqCst);
        }
    }

    fn drain(&self, cq: CompletionQueueId) {
        if let Some(queue) = self.cqs.get(cq.0 as usize) {
            self.descriptors.with(&queue.fd, sys::drain);
        }
    }

    fn channel_fd(&self, cq: CompletionQueueId) -> Option<RawFd> {
        self.channel(cq.0 as usize)
    }

    fn rebind(&self, qp: QueuePairId, cq: CompletionQueueId) -> Result<(), DeviceError> {
        if !self.has_queue(cq.0 as usize) {
            return Err(DeviceError::Unknown { what: "completion queue" });
        }
        let (_, _, local) = self.qp(qp).ok_or(DeviceError::Unknown { what: "queue pair" })?;
        local.rebind(cq.0);
        Ok(())
    }

    fn alloc_region(&self, qp: QueuePairId, len: usize) -> Result<Region, DeviceError> {
        let (pair, index, _) = self.qp(qp).ok_or(DeviceError::Unknown { what: "queue pair" })?;
        pair.alloc_region(&mut pair.control.lock(), index as u16, len)
    }

    fn free_region(&self, qp: QueuePairId, region: Region) {
        if let Some((pair, index, local)) = self.qp(qp) {
            pair.free_region(index as u16, local, region, self.config.idle_bytes);
        }
    }

    fn window(&self, qp: QueuePairId, remote: RemoteRegion) -> Result<Region, DeviceError> {
        let (pair, index, local) = self.qp(qp).ok_or(DeviceError::Unknown { what: "queue pair" })?;
        pair.window(index, local, remote)
    }

    fn post_recv(&self, qp: QueuePairId, count: u32) -> Result<(), PostError> {
        self.qp(qp).ok_or(PostError::Dead)?.2.post_recv(count)
    }

    #[inline]
    fn post_send(&self, qp: QueuePairId, wrs: &[WorkRequest<'_>]) -> Result<usize, PostError> {
        let (pair, index, local) = self.qp(qp).ok_or(PostError::Dead)?;
        let posts = if pair.own.load(Relaxed) { &self.own_posts } else { &pair.posts };
        if pair.has_died() {
            self.bring_down(pair, index, local);
            return Err(PostError::Dead);
        }
        let stamp = posts.stamp(self.doorbell.kernel_operations().last.load(Acquire));
        match local.post_send(index, stamp, wrs) {
            Ok(posted) => {
                if posted.announce_peer {
                    self.announce_peer(pair, index, local);
                }
                if posted.announce_self {
                    local.wake_local();
                    self.announce_self(pair, index, local.cq.load(Relaxed));
                }
                Ok(posted.accepted)
            }
            Err(PostError::Dead) => {
                // Closed by the peer, or it wrote nonsense where we read.
                self.bring_down(pair, index, local);
                Err(PostError::Dead)
            }
            Err(e) => Err(e),
        }
    }

    fn fail_qp(&self, qp: QueuePairId) {
        if let Some((pair, index, local)) = self.qp(qp) {
            self.bring_down(pair, index, local);
            local.tx().close.closed.store(1, SeqCst);
            self.announce_peer(pair, index, local);
        }
    }

    fn destroy_qp(&self, qp: QueuePairId) {
        if let Some((pair, index, local)) = self.qp(qp) {
            self.destroy(pair, index as u16, local);
        }
    }
}

impl Directory for ShmDevice {
    fn serves(&self, t: &FourTuple) -> bool {
        tuple::same_host(t)
    }

    fn trusts(&self, t: &FourTuple) -> bool {
        tuple::same_host(t)
    }

    fn admits(&self, _: PeerAddress, t: &FourTuple) -> bool {
        tuple::same_host(t)
    }

    fn publish(&self, t: &FourTuple, stream: u32) -> Result<(), DirectoryError> {
        if !tuple::same_host(t) {
            return Err(DirectoryError::NotServed);
        }
        if self.descriptors.are_gone() {
            return Err(DirectoryError::NoDescriptor);
        }
        if self.announce(t, stream) {
            Ok(())
        } else {
            Err(DirectoryError::Full)
        }
    }

    fn withdraw(&self, t: &FourTuple, stream: u32) {
        self.retract(t, stream);
    }

    fn lookup(&self, t: &FourTuple) -> Option<(PeerAddress, u32)> {
        let (process, stream) = self.rendezvous.table.lookup(tuple::key(&t.reversed()))?;
        Some((rendezvous::address(&process), stream))
    }

    fn obstacle(&self, t: &FourTuple, _: bool) -> Option<Obstacle> {
        let is_known = |pid| self.rendezvous.table.has_process(pid);
        tuple::same_host(t).then(|| obstacle::find(&t.reversed(), self.config.group.is_some(), is_known)).flatten()
    }
}

impl Drop for ShmDevice {
    fn drop(&mut self) {
        if sys::pid() != self.pid {
            self.forget_after_fork();
            return;
        }
        self.rendezvous.leave();
        for pair in self.pair_slots() {
            pair.close_fds(self.epoll());
        }
        for fd in self.all_fds() {
            let fd = fd.swap(-1, AcqRel);
            if fd >= 0 {
                sys::close(fd);
            }
        }
    }
}
