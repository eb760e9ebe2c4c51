//! A pair: everything two processes share, and the slots of a device that pairs live in.
//!
//! Invariants:
//! * a [`PairSlot`] is never freed before its device, so the hot path reaches it without a lock; its control state
//!   is behind `control`, and every use of its descriptors behind `control` or `wake_fds`;
//! * `state` is `LIVE` from the moment both halves are mapped until the socket ends; `DEAD` until the last local
//!   queue pair is destroyed; then `FREE`. A slot is used again once its range is not busy;
//! * a queue pair index is reused only after *both* ends were destroyed and have no region or window left ([`Lease`]), which
//!   `Close` packets announce: they precede the `Request` that reuses the index on the same ordered socket. Until then
//!   its regions stay allocated, so a late write of the peer has no effect, and what either side still reads stays;
//! * the memory of a dead pair is not allocated again, because its peer may live and read it.

#![expect(unsafe_code, reason = "views of a pair's shared segment")]

use std::collections::{HashMap, VecDeque};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, OnceLock, Weak};

use netacc_device::{ConnectionId, PeerAddress, Region, RemoteRegion};
use parking_lot::Mutex;

use crate::alloc::{Block, Buddy};
use crate::bitmap::{self, Announcement};
use crate::layout::{Doorbell, Flag, Half, KernelOperations, QpShared, CQS, DIED, KEYS, KEY_BITS, QPS};
use crate::map::{Mapping, Range};
use crate::qp::{Posts, QpLocal, Wiring};
use crate::sys;
use crate::wire::Message;

/// Pairs of one device.
pub(crate) const PAIRS: usize = 1024;

/// Queue pairs per lazily allocated chunk: one bitmap word's worth.
const CHUNK: usize = 64;

pub(crate) const FREE: u32 = 0;
pub(crate) const HANDSHAKE: u32 = 1;
pub(crate) const LIVE: u32 = 2;
pub(crate) const DEAD: u32 = 3;

/// A place for a pair.
pub(crate) struct PairSlot {
    pub index: u32,
    pub state: AtomicU32,
    pub range: Arc<Range>,
    /// The half we receive in, and the one we send to.
    rx: AtomicPtr<Half>,
    tx: AtomicPtr<Half>,
    half_bytes: AtomicU64,
    chunks: [OnceLock<Box<[QpLocal; CHUNK]>>; QPS / CHUNK],
    pub posts: Posts,
    /// The peer's last operation in the kernel before it posted the message that was taken last: the lower half of its number.
    pub kernel_operation: AtomicU32,
    /// This process is at both ends. It has another such pair for the other direction of connecting.
    pub own: AtomicBool,
    /// The pair's socket, or -1. Atomic only for a forked child, which must not lock.
    pub sock: AtomicI32,
    /// The socket at which we listen for the peer at an address, or -1.
    pub probe: AtomicI32,
    /// The peer's wake descriptors, or -1. The peer sends one when it was woken on that queue without it.
    pub wake: [AtomicI32; CQS],
    /// Held while a wake descriptor is written or closed, so that no write hits a reused number.
    pub wake_fds: Mutex<()>,
    pub control: Mutex<Control>,
}

/// State that only the control path needs.
#[derive(Default)]
pub(crate) struct Control {
    pub peer: Option<PeerAddress>,
    /// We connected (and so request even indices, and receive in half 0).
    pub connecting: bool,
    pub mapping: Option<Arc<Mapping>>,
    pub buddy: Option<Buddy>,
    /// Queue pair indices in use by either side.
    pub qps: HashMap<u16, QpControl>,
    /// Attempts that wait for the handshake.
    pub waiting: Vec<Waiting>,
    fresh: u16,
    spare: Vec<u16>,
    /// Region keys: generation of each index handed out so far, and the free ones.
    key_generations: Vec<u16>,
    spare_keys: Vec<u16>,
    /// Packets that the socket had no room for.
    pub outgoing: VecDeque<(Message, Vec<RawFd>)>,
    pub watching_output: bool,
    /// See [`Lease`].
    leases_ended: Arc<AtomicBool>,
}

/// An attempt to connect, before the pair exists.
pub(crate) struct Waiting {
    pub id: ConnectionId,
    pub cq: u32,
    pub region_len: usize,
    pub private_data: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// We requested it, with this attempt.
    Requested(ConnectionId, u32),
    /// The peer requested it, as this attempt.
    Incoming(ConnectionId),
    Open,
}

/// One index in use.
pub(crate) struct QpControl {
    pub phase: Phase,
    pub regions: HashMap<u32, Block>,
    /// The first region, until the attempt is answered.
    pub first: Option<Region>,
    /// The peer's first region, until the attempt is answered.
    pub theirs: Option<RemoteRegion>,
    /// Freed after the queue pair failed: kept until the peer is gone from it too.
    pub limbo: Vec<Block>,
    pub here: Here,
    /// The peer has destroyed its end, and uses the memory of neither side any more.
    pub closed_there: bool,
    pub lease: Weak<Lease>,
}

/// This process's end of an open queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Here {
    Open,
    /// Destroyed. Regions and windows may be left, whose bytes are read still: a stream whose link has died sends again
    /// what its peer has not read, and the peer's memory has the only copy of that.
    Closed,
    /// Nothing here uses the memory of either side any more, and the peer has been told.
    Left,
}

/// The regions and windows of a queue pair in this process: each has a clone.
pub(crate) struct Lease {
    _mapping: Arc<Mapping>,
    /// The device is to look for queue pairs that have no lease any more.
    ended: Arc<AtomicBool>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        // No more than that, because the thread may hold any lock.
        self.ended.store(true, Release);
    }
}

impl QpControl {
    pub(crate) fn new(phase: Phase) -> QpControl {
        QpControl {
            phase,
            regions: HashMap::new(),
            first: None,
            theirs: None,
            limbo: Vec::new(),
            here: Here::Open,
            closed_there: false,
            lease: Weak::new(),
        }
    }

    /// Whether this process has destroyed its end, and has no region and no window of it left.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.here != Here::Open && self.lease.strong_count() == 0
    }
}

impl PairSlot {
    pub(crate) fn new(index: u32, range: Range) -> PairSlot {
        PairSlot {
            index,
            state: AtomicU32::new(FREE),
            range: Arc::new(range),
            rx: AtomicPtr::default(),
            tx: AtomicPtr::default(),
            half_bytes: AtomicU64::new(0),
            chunks: [const { OnceLock::new() }; QPS / CHUNK],
            posts: Posts::default(),
            kernel_operation: AtomicU32::new(0),
            own: AtomicBool::new(false),
            sock: AtomicI32::new(-1),
            probe: AtomicI32::new(-1),
            wake: [const { AtomicI32::new(-1) }; CQS],
            wake_fds: Mutex::new(()),
            control: Mutex::new(Control::default()),
        }
    }

    /// Points the views at a freshly attached segment.
    pub(crate) fn wire(&self, segment_bytes: u64, connecting: bool) {
        let half_bytes = segment_bytes / 2;
        let first = self.range.base().as_ptr();
        // SAFETY: both halves lie in the range, which has at least `segment_bytes`.
        let second = unsafe { first.add(half_bytes as usize) };
        let (rx, tx) = if connecting { (first, second) } else { (second, first) };
        self.half_bytes.store(half_bytes, Relaxed);
        self.rx.store(rx.cast(), Relaxed);
        self.tx.store(tx.cast(), Relaxed);
    }

    pub(crate) fn half_bytes(&self) -> u64 {
        self.half_bytes.load(Relaxed)
    }

    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        matches!(self.state.load(Acquire), LIVE | DEAD)
    }

    /// Our receiving half. Only while active.
    #[inline]
    pub(crate) fn rx(&self) -> &Half {
        // SAFETY: `wire` pointed it into the range before `state` was released, and ranges stay mapped (see `map`).
        unsafe { &*self.rx.load(Relaxed) }
    }

    /// The peer's receiving half. Only while active.
    #[inline]
    pub(crate) fn tx(&self) -> &Half {
        // SAFETY: as for `rx`.
        unsafe { &*self.tx.load(Relaxed) }
    }

    /// The peer's, as it announces itself. The value is the peer's own.
    #[inline]
    pub(crate) fn doorbell(&self) -> &Doorbell {
        // SAFETY: part of the range, mapped readable; only loaded from.
        unsafe { self.range.doorbell().as_ref() }
    }

    /// The queue pair at `index`, if its chunk exists.
    #[inline]
    pub(crate) fn qp(&self, index: usize) -> Option<&QpLocal> {
        Some(&self.chunks.get(index / CHUNK)?.get()?[index % CHUNK])
    }

    /// The queue pair at `index`, made if need be.
    pub(crate) fn qp_or_new(&self, index: u16) -> &QpLocal {
        let index = usize::from(index);
        &self.chunks[index / CHUNK].get_or_init(|| Box::new(std::array::from_fn(|_| QpLocal::new())))[index % CHUNK]
    }

    /// The wiring of the queue pair at `index`.
    pub(crate) fn wiring(&self, index: u16, cq: u32) -> Wiring {
        let at = |half: &Half| std::ptr::from_ref::<QpShared>(half.qp(usize::from(index))).cast_mut();
        Wiring {
            cq,
            rx: at(self.rx()),
            tx: at(self.tx()),
            tx_half: self.tx.load(Relaxed),
            half_bytes: self.half_bytes(),
        }
    }

    /// A completion of the queue pair at `index`, towards the peer.
    #[inline(always)]
    pub(crate) fn announcement<'a>(&'a self, index: usize, side: &'a QpShared) -> Announcement<'a> {
        Announcement { bitmaps: &self.tx().bitmaps, index, side }
    }

    /// How the peer sleeps on its completion queues. The values are the peer's own.
    pub(crate) fn armed(&self) -> &[Flag; CQS] {
        &self.doorbell().armed
    }

    /// See [`bitmap::knock`], towards the peer.
    pub(crate) fn knock(&self, index: usize, side: &QpShared) -> Option<usize> {
        bitmap::knock(&self.tx().bitmaps, &self.doorbell().armed, index, side)
    }

    /// How the peer sleeps on its completion queue. The value is the peer's own.
    pub(crate) fn peer_armed(&self, cq: usize) -> u32 {
        self.doorbell().armed[cq].0.load(SeqCst)
    }

    /// The peer's operations in the kernel, as it announces them.
    pub(crate) fn kernel_operations(&self) -> &KernelOperations {
        &self.doorbell().kernel_operations
    }

    /// Whether the peer's process has ended. Detected before its sockets show it; everything that it has placed is
    /// there.
    #[inline]
    pub(crate) fn has_died(&self) -> bool {
        self.doorbell().life.0.load(Acquire) & DIED != 0
    }

    /// Sets the bit of `index` towards ourselves. `true`: our own channel must be rung if it is armed.
    pub(crate) fn announce_self(&self, index: usize, cq: usize) -> bool {
        self.rx().bitmaps.get(cq).is_some_and(|b| b.set(index))
    }

    /// Writes the peer's wake descriptor; `false` if we do not have it (yet).
    pub(crate) fn ring(&self, cq: usize) -> bool {
        let _guard = self.wake_fds.lock();
        let fd = self.wake[cq].load(Relaxed);
        if fd >= 0 {
            sys::ring(fd);
        }
        fd >= 0
    }

    /// Closes the peer's wake descriptors; returns their number.
    pub(crate) fn close_wakes(&self) -> usize {
        let _guard = self.wake_fds.lock();
        let open = self.wake.iter().map(|fd| fd.swap(-1, AcqRel)).filter(|fd| *fd >= 0);
        open.map(sys::close).count()
    }

    /// Closes the socket at which we listen for the peer.
    pub(crate) fn close_probe(&self, epoll: RawFd) {
        let probe = self.probe.swap(-1, AcqRel);
        if probe >= 0 {
            sys::epoll_remove(epoll, probe);
            sys::close(probe);
        }
    }

    /// Closes every descriptor of the pair. `control` is held.
    pub(crate) fn close_fds(&self, epoll: RawFd) {
        self.close_wakes();
        self.close_probe(epoll);
        let sock = self.sock.swap(-1, AcqRel);
        if sock >= 0 {
            sys::epoll_remove(epoll, sock);
            // A forked child may hold a copy; the peer must see the end all the same.
            sys::shutdown(sock);
            sys::close(sock);
        }
    }
}

impl Control {
    pub(crate) fn new(leases_ended: Arc<AtomicBool>) -> Control {
        Control { leases_ended, ..Control::default() }
    }

    /// The lease of the queue pair at an index, for one more region or window.
    pub(crate) fn lease(&mut self, index: u16) -> Option<Arc<Lease>> {
        let mapping = self.mapping.as_ref()?;
        let qp = self.qps.get_mut(&index)?;
        Some(qp.lease.upgrade().unwrap_or_else(|| {
            let lease = Arc::new(Lease { _mapping: mapping.clone(), ended: self.leases_ended.clone() });
            qp.lease = Arc::downgrade(&lease);
            lease
        }))
    }

    /// An index for a queue pair that we request.
    pub(crate) fn take_index(&mut self) -> Option<u16> {
        if let Some(index) = self.spare.pop() {
            return Some(index);
        }
        let index = self.fresh * 2 + u16::from(!self.connecting);
        if usize::from(index) >= QPS {
            return None;
        }
        self.fresh += 1;
        Some(index)
    }

    /// Whether the peer may request this index.
    pub(crate) fn may_request(&self, index: u16) -> bool {
        usize::from(index) < QPS && (index % 2 == 1) == self.connecting && !self.qps.contains_key(&index)
    }

    /// Ends the use of an index on both sides: its memory and number are free again.
    pub(crate) fn release_index(&mut self, index: u16) {
        let Some(qp) = self.qps.remove(&index) else { return };
        for key in qp.regions.keys() {
            self.release_key(*key);
        }
        if let Some(buddy) = &mut self.buddy {
            qp.regions.values().chain(&qp.limbo).for_each(|b| buddy.free(*b));
        }
        if index.is_multiple_of(2) == self.connecting {
            self.spare.push(index);
        }
    }

    /// A region key that differs from the last one at its index.
    pub(crate) fn take_key(&mut self) -> Option<u32> {
        let index = match self.spare_keys.pop() {
            Some(index) => index,
            None if self.key_generations.len() < KEYS => {
                self.key_generations.push(0);
                (self.key_generations.len() - 1) as u16
            }
            None => return None,
        };
        let generation = &mut self.key_generations[usize::from(index)];
        // The generation above the index; never 0, so that a key is never 0.
        *generation = generation.wrapping_add(1).max(1);
        Some(u32::from(*generation) << KEY_BITS | u32::from(index))
    }

    pub(crate) fn release_key(&mut self, key: u32) {
        self.spare_keys.push((key % KEYS as u32) as u16);
    }
}
