//! [`ShmDevice`]: opening, posting, polling, sleeping. `pairs` has its queue pairs, `pending` finds those with
//! completions, `cm` connects them, `region` has their memory, and `directory` finds the process that holds a
//! connection.
//!
//! No lock is taken in `post_send`, `poll_qp`, `pending`: pair slots and queue pairs are permanent, identifiers carry a
//! generation.

mod in_place;

use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::*};
use std::sync::{Arc, Weak};
use std::time::Duration;

use netacc_device::{
    Armed, Capabilities, Completion, CompletionEvents, CompletionQueueId, CompletionStatus, Device, DeviceError,
    InPlaceQueue, KernelOperation, KernelOrder, PostError, QueuePairId, Region, RemoteRegion, Wait, WorkCompletion,
    WorkRequest,
};
use parking_lot::Mutex;

use self::in_place::InPlace;
use crate::bitmap;
use crate::config::{ShmConfig, MIN_SEGMENT_BYTES};
use crate::cq::CompletionQueue;
use crate::defer::{self, DeviceId};
use crate::descriptors::{Descriptors, GiveBack};
use crate::doorbell::OwnDoorbell;
use crate::layout::{KernelOperations, ASLEEP, AWAKE, CQS, MODERATED, RING};
use crate::limits;
use crate::manager::{Manager, KICK, LISTENER};
use crate::operations;
use crate::pair::{PairSlot, LIVE};
use crate::pairs::Pairs;
use crate::qp::{Posts, QpLocal, Stamp, DOWN, MAX_INLINE, MAX_MESSAGE, SEND_RING};
use crate::rendezvous::{self, Rendezvous};
use crate::routes::Routes;
use crate::sync;
use crate::sys;

/// A software RNIC between the processes of one host. One object is [`Device`], [`Directory`](netacc_device::Directory)
/// and [`ConnectionManager`](netacc_device::ConnectionManager).
pub struct ShmDevice {
    /// Itself, for what keeps it.
    me: Weak<ShmDevice>,
    capabilities: Capabilities,
    pub(crate) config: ShmConfig,
    /// The process that opened it. A forked child must not release its parent's objects.
    pid: u32,
    pub(crate) rendezvous: Rendezvous,
    pub(crate) pairs: Pairs,
    pub(crate) cqs: [CompletionQueue; CQS],
    /// The counter of the process's posts to itself, over either of the pairs that it has with itself.
    own_posts: Posts,
    /// Numbers of this process's operations in the kernel.
    operation_numbers: operations::Numbers,
    kernel_news: operations::News,
    pub(crate) cq_count: AtomicU32,
    doorbell: OwnDoorbell,
    /// Listener, epoll, kick and doorbell page. Atomics for a forked child, which must not lock.
    own_fds: [AtomicI32; 4],
    pub(crate) descriptors: Descriptors,
    pub(crate) routes: Routes,
    /// The last region or window of some queue pair has gone.
    pub(crate) leases_ended: Arc<AtomicBool>,
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
        // The process that accepts a pair makes its segment. A process that cannot make one is of no use to its peers.
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
        Ok(Arc::new_cyclic(|me| ShmDevice {
            me: me.clone(),
            capabilities: CAPABILITIES,
            config,
            pid: sys::pid(),
            rendezvous,
            pairs: Pairs::new(),
            cqs: std::array::from_fn(|_| CompletionQueue::new()),
            own_posts: Posts::default(),
            operation_numbers: operations::Numbers::new(),
            kernel_news: operations::News::default(),
            cq_count: AtomicU32::new(0),
            doorbell,
            own_fds: [keep(listener), keep(epoll), keep(kick), keep(doorbell_fd)],
            descriptors: Descriptors::default(),
            routes: Routes::default(),
            leases_ended: Arc::default(),
            cm: Mutex::new(Manager::default()),
        }))
    }

    /// Removes entries of crashed processes from the rendezvous of `config`, and the rendezvous itself if no process
    /// uses it. Returns how many entries were freed.
    pub fn sweep(config: &ShmConfig) -> usize {
        rendezvous::sweep(config)
    }

    /// To be called by a thread that ends when the process does: from its end on peers can post nothing to us. Without
    /// it they can post until they see the end of a socket, and those posts are lost with us although the kernel would
    /// refuse the bytes.
    pub fn end_with_this_thread(&self) {
        // If the kernel cannot, the call has no effect.
        let _ = sys::announce_exit(self.doorbell.life());
    }

    /// Leaves the rendezvous, at the end of the process, and removes it if no other process uses it. Safe in a signal
    /// handler.
    pub fn leave(&self) {
        if sys::pid() == self.pid {
            self.rendezvous.leave();
        }
    }

    /// Every descriptor of the device. For a forked child that closes them itself.
    pub fn fds(&self) -> Vec<RawFd> {
        self.all_fds().map(|fd| fd.load(Acquire)).filter(|&fd| fd >= 0).collect()
    }

    /// Closes descriptors for the sake of a program that has none left; returns their number. With [`GiveBack::All`]
    /// the device cannot be used afterwards: its links die, and it makes no others.
    pub fn give_back(&self, which: GiveBack) -> usize {
        match which {
            GiveBack::Wakes => {
                self.descriptors.give_up_wakes();
                self.pairs.iter().map(PairSlot::close_wakes).sum()
            }
            GiveBack::All => {
                self.descriptors.give_up_all();
                self.rendezvous.hide();
                let cm = &mut *self.cm.lock();
                let before = self.fds().len();
                self.kill_all(cm);
                // Under the lock, without which no thread uses the descriptors of the connection manager.
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

    /// In a forked child: closes the descriptors and releases the memory, without informing peers or parent. Takes no
    /// lock. The device must not be used afterwards; stray accesses find zeros. The child opens one of its own.
    pub fn forget_after_fork(&self) {
        for fd in self.all_fds() {
            let fd = fd.swap(-1, AcqRel);
            if fd >= 0 {
                sys::close(fd);
            }
        }
        self.pairs.iter().for_each(|p| p.range.forget());
    }

    fn all_fds(&self) -> impl Iterator<Item = &AtomicI32> {
        let pairs = self.pairs.iter().flat_map(|p| p.wake.iter().chain([&p.sock, &p.probe]));
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

    /// Its identifier within this process.
    fn id(&self) -> DeviceId {
        DeviceId(std::ptr::from_ref(self).addr())
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
        // A thread that is about to sleep on it may have missed a wake-up.
        self.ring_self(cq);
        Some(fd)
    }

    /// Announces a sleeper, then checks the bitmaps once more.
    fn arm_as(&self, index: usize, how: u32) -> Armed {
        let bitmaps = self.pairs.iter().filter(|p| p.is_active()).map(|p| &p.rx().bitmaps[index]);
        let pending = bitmap::arm(self.doorbell.armed(index), how, bitmaps);
        if pending {
            // The next call of `pending` scans everything.
            self.cqs[index].calls.store(0, Relaxed);
            return Armed::Pending;
        }
        Armed::Sleep
    }

    /// Announces to the peer that `index` has a completion.
    #[inline(always)]
    pub(crate) fn announce_peer(&self, pair: &PairSlot, index: usize, local: &QpLocal) {
        let ring = pair.announcement(index, local.tx()).make(|| pair.armed());
        if ring != 0 {
            self.ring_queues(pair, ring);
        }
    }

    /// Wakes the peer at these completion queues, a bit for each, now or at the end of the batch.
    #[inline(never)]
    pub(crate) fn ring_queues(&self, pair: &PairSlot, mut ring: u32) {
        while ring != 0 {
            let cq = ring.trailing_zeros() as usize;
            ring &= ring - 1;
            if pair.peer_armed(cq) != MODERATED || !defer::keep(self.id(), pair.index, cq) {
                self.ring_peer(pair, cq);
            }
        }
    }

    #[cold]
    fn ring_peer(&self, pair: &PairSlot, cq: usize) {
        // A peer that is gone needs none.
        if !pair.ring(cq) && pair.state.load(Acquire) == LIVE {
            self.wake_by_socket(pair, cq);
        }
    }

    /// Announces to our own pollers that `index` has a completion.
    pub(crate) fn announce_self(&self, pair: &PairSlot, index: usize, cq: u32) {
        let cq = cq as usize;
        if pair.announce_self(index, cq) {
            self.ring_self(cq);
        }
    }

    /// Wakes the threads that sleep on `cq`.
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

    /// The stamp of the next post to the pair's peer.
    #[inline]
    fn stamp(&self, pair: &PairSlot) -> Stamp {
        self.posts(pair).stamp(self.kernel_operations().last.load(Acquire))
    }

    /// Counts the posts to the pair's peer.
    #[inline]
    pub(crate) fn posts<'a>(&'a self, pair: &'a PairSlot) -> &'a Posts {
        if pair.own.load(Relaxed) {
            &self.own_posts
        } else {
            &pair.posts
        }
    }

    /// The operations of this process in the kernel, as it announces them.
    #[inline]
    pub(crate) fn kernel_operations(&self) -> &KernelOperations {
        self.doorbell.kernel_operations()
    }

    /// Nothing can be posted any more: the peer is gone, has closed the queue pair, or wrote invalid values where we read.
    #[cold]
    pub(crate) fn refuse_dead<T, E: From<PostError>>(
        &self,
        pair: &PairSlot,
        index: usize,
        local: &QpLocal,
    ) -> Result<T, E> {
        self.bring_down(pair, index, local);
        Err(PostError::Dead.into())
    }

    /// The oldest completion that is no message, or is behind one that is none.
    #[cold]
    fn poll_other(&self, pair: &PairSlot, qp: QueuePairId, local: &QpLocal) -> Option<WorkCompletion> {
        let mut out = [WorkCompletion { qp, status: CompletionStatus::Success, completion: Completion::Disconnected }];
        (local.poll(qp, &mut out, |stamp| self.record_stamp(pair, stamp)) > 0).then_some(out[0])
    }

    /// A message was taken. If its sender had done an operation in the kernel since the last one, the time is updated.
    #[inline]
    fn record_stamp(&self, pair: &PairSlot, stamp: Stamp) {
        if pair.kernel_operation.load(Relaxed) != stamp.kernel_operation() {
            self.kernel_news.record(pair.kernel_operations(), stamp.kernel_operation());
            pair.kernel_operation.store(stamp.kernel_operation(), Release);
        }
    }
}

/// The capabilities of shared memory.
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
        // Its channel is made when a thread is about to sleep on it.
        let take = |count: u32| ((count as usize) < CQS && !self.descriptors.are_gone()).then_some(count + 1);
        let cq = self.cq_count.fetch_update(AcqRel, Acquire, take);
        cq.map(CompletionQueueId).map_err(|_| DeviceError::Exhausted { what: "completion queue" })
    }

    #[inline]
    fn pending(&self, cq: CompletionQueueId, out: &mut [QueuePairId]) -> usize {
        self.find_pending(cq, out)
    }

    #[inline]
    fn poll_qp(&self, qp: QueuePairId, out: &mut [WorkCompletion]) -> usize {
        self.pairs.qp(qp).map_or(0, |(pair, _, local)| local.poll(qp, out, |stamp| self.record_stamp(pair, stamp)))
    }

    #[inline]
    fn poll_one(&self, qp: QueuePairId) -> Option<WorkCompletion> {
        let (pair, _, local) = self.pairs.qp(qp)?;
        let Some((completion, stamp)) = local.poll_message() else { return self.poll_other(pair, qp, local) };
        self.record_stamp(pair, stamp);
        Some(WorkCompletion { qp, status: CompletionStatus::Success, completion })
    }

    fn rebind(&self, qp: QueuePairId, cq: CompletionQueueId) -> Result<(), DeviceError> {
        if !self.has_queue(cq.0 as usize) {
            return Err(DeviceError::Unknown { what: "completion queue" });
        }
        let (_, _, local) = self.pairs.qp(qp).ok_or(DeviceError::Unknown { what: "queue pair" })?;
        local.rebind(cq.0);
        Ok(())
    }

    fn alloc_region(&self, qp: QueuePairId, len: usize) -> Result<Region, DeviceError> {
        let (pair, index, _) = self.pairs.qp(qp).ok_or(DeviceError::Unknown { what: "queue pair" })?;
        pair.alloc_region(&mut pair.control.lock(), index as u16, len)
    }

    fn free_region(&self, qp: QueuePairId, region: Region) {
        if let Some((pair, index, local)) = self.pairs.qp(qp) {
            pair.free_region(index as u16, local, region, self.config.idle_bytes);
        }
    }

    fn window(&self, qp: QueuePairId, remote: RemoteRegion) -> Result<Region, DeviceError> {
        let (pair, index, local) = self.pairs.qp(qp).ok_or(DeviceError::Unknown { what: "queue pair" })?;
        pair.window(index, local, remote)
    }

    fn discard(&self, qp: QueuePairId, remote: RemoteRegion, from: u32) {
        if let Some((pair, index, local)) = self.pairs.qp(qp) {
            pair.discard(index, local, remote, from);
        }
    }

    fn post_recv(&self, qp: QueuePairId, count: u32) -> Result<(), PostError> {
        self.pairs.qp(qp).ok_or(PostError::Dead)?.2.post_recv(count)
    }

    #[inline]
    fn post_send(&self, qp: QueuePairId, wrs: &[WorkRequest<'_>]) -> Result<usize, PostError> {
        let (pair, index, local) = self.pairs.qp(qp).ok_or(PostError::Dead)?;
        if pair.has_died() {
            return self.refuse_dead(pair, index, local);
        }
        match local.post_send(index, self.stamp(pair), wrs) {
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
            Err(PostError::Dead) => self.refuse_dead(pair, index, local),
            Err(e) => Err(e),
        }
    }

    fn in_place(&self, qp: QueuePairId) -> Option<Box<dyn InPlaceQueue>> {
        let (pair, index, _) = self.pairs.qp(qp)?;
        Some(Box::new(InPlace::new(self.me.upgrade()?, pair, index)?))
    }

    fn fail_qp(&self, qp: QueuePairId) {
        if let Some((pair, index, local)) = self.pairs.qp(qp) {
            self.bring_down(pair, index, local);
            local.tx().close.closed.store(1, SeqCst);
            self.announce_peer(pair, index, local);
        }
    }

    fn destroy_qp(&self, qp: QueuePairId) {
        if let Some((pair, index, local)) = self.pairs.qp(qp) {
            self.destroy(pair, index as u16, local);
        }
    }
}

impl CompletionEvents for ShmDevice {
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

    fn disarm(&self, cq: CompletionQueueId) {
        let index = cq.0 as usize;
        if index < CQS {
            self.doorbell.armed(index).store(AWAKE, SeqCst);
        }
    }

    fn channel_fd(&self, cq: CompletionQueueId) -> Option<RawFd> {
        self.channel(cq.0 as usize)
    }

    fn drain(&self, cq: CompletionQueueId) {
        if let Some(queue) = self.cqs.get(cq.0 as usize) {
            self.descriptors.with(&queue.fd, sys::drain);
        }
    }

    fn qp_sequence(&self, qp: QueuePairId) -> u32 {
        self.pairs.qp(qp).map_or(0, |(_, _, local)| local.sequence())
    }

    fn wait_qp(&self, qp: QueuePairId, seen: u32, timeout: Option<Duration>) -> Wait {
        let Some((_, _, local)) = self.pairs.qp(qp) else { return Wait::Woken };
        let Some(value) = local.prepare_sleep(seen) else { return Wait::Woken };
        match sync::futex_wait(local.futex(), value, timeout) {
            Err(libc::ETIMEDOUT) => Wait::TimedOut,
            // The kernel restarts the call itself after handlers with SA_RESTART.
            Err(libc::EINTR) => Wait::Interrupted,
            _ => Wait::Woken,
        }
    }

    fn wake_qp(&self, qp: QueuePairId) {
        if let Some((_, _, local)) = self.pairs.qp(qp) {
            local.kick();
        }
    }

    fn knock(&self, qp: QueuePairId) {
        let Some((pair, index, local)) = self.pairs.qp(qp) else { return };
        if let Some(cq) = pair.knock(index, local.tx()) {
            self.ring_peer(pair, cq);
        }
    }

    fn defer_wakes(&self) {
        defer::begin(self.id());
    }

    fn release_wakes(&self) {
        defer::end(self.id(), |pair, cq| {
            let Some(pair) = self.pairs.get(pair as usize) else { return };
            if pair.is_active() && pair.peer_armed(cq) != AWAKE {
                self.ring_peer(pair, cq);
            }
        });
    }
}

impl KernelOrder for ShmDevice {
    fn begin_kernel_operation(&self) {
        self.doorbell.kernel_operations().begun.fetch_add(1, AcqRel);
    }

    fn end_kernel_operation(&self, operation: KernelOperation) {
        self.operation_numbers.publish(self.doorbell.kernel_operations(), operation);
    }

    fn announce_kernel_operations(&self) {
        self.begin_kernel_operation();
        let now = sys::now();
        self.end_kernel_operation(KernelOperation { begun: now, ended: now });
    }

    fn kernel_news(&self) -> KernelOperation {
        self.kernel_news.latest()
    }
}

impl Drop for ShmDevice {
    fn drop(&mut self) {
        if sys::pid() != self.pid {
            self.forget_after_fork();
            return;
        }
        self.rendezvous.leave();
        for pair in self.pairs.iter() {
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
