//! A stream: the part that any thread may read, and the part under its lock.
//!
//! The methods here need nothing but the stream. Locking it takes the endpoint, too: see [`guard`](super::guard).

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use netacc_device::{FourTuple, Memory, QueuePairId, Region, RemoteRegion};
use netacc_proto::{Reason, RingDescriptor, Role, Span, Stream, StreamConfig, CREDIT_BLOCK_LEN};
use parking_lot::Mutex;

use super::addresses::{Addresses, Ends};
use super::lazy::LazyAnchor;
use super::states::{AnchorState, Attempt, Closing, Flow, Listed, Reported, Sending, Stall};
use crate::counted::{Counted, Tallied};
use crate::link::LinkOf;
use crate::{Readiness, StreamCounters};

/// A link of streams.
pub type LinkCell = LinkOf<StreamCell>;

/// No number of an owner's.
pub(super) const UNWATCHED: u32 = u32::MAX;

/// A stream of this process.
pub struct StreamCell {
    /// Its number in the directory.
    pub(crate) number: u32,
    /// See [`StreamCell::tuple`].
    pub(super) ends: Ends,
    pub(super) ready: AtomicU32,
    /// Threads asleep until this stream changes; see [`StreamCell::sleepers`].
    pub(super) sleepers: AtomicU32,
    /// For the owner: the number of the library's object for this stream.
    pub(super) tag: AtomicU32,
    /// See [`StreamCell::begins_watch`].
    pub(super) watched: AtomicU32,
    /// Threads blocked in the kernel on the anchor's incoming bytes; see [`StreamCell::block_in_kernel`].
    pub(super) kernel_readers: AtomicU32,
    /// The queue pair that sleepers sleep on, plus one; 0 for none yet.
    pub(super) sleep_qp: AtomicU32,
    /// How often another process was given the descriptor since this one was its only holder; see
    /// [`StreamCell::share`].
    pub(super) shared: AtomicU32,
    /// See [`StreamCell::pin`].
    pub(super) pinned: AtomicBool,
    /// See [`StreamCell::is_opening`].
    pub(super) opening: AtomicBool,
    /// See [`LockedStream::set_low_water`](crate::LockedStream::set_low_water).
    pub(super) low_water: AtomicU32,
    /// See [`StreamCell::limit_ring`].
    pub(super) ring_limit: AtomicU32,
    /// See [`StreamCell::name`].
    name: Name,
    pub(super) inner: Mutex<Inner>,
}

/// What a trace calls the stream.
#[derive(Debug, Default)]
struct Name {
    /// 0: it has none yet.
    connection: AtomicU64,
    lower: AtomicBool,
}

/// The part of a stream under its lock. The types of its states are in [`states`](super::states).
pub(crate) struct Inner {
    pub(crate) proto: Stream,
    pub(crate) anchor: LazyAnchor,
    /// This process's view of the anchor.
    pub(crate) tcp: AnchorState,
    /// The link that the stream is on, or is being moved to or from. Apart, because most short connections have none.
    pub(crate) attached: Option<Box<Attachment>>,
    pub(crate) attempt: Attempt,
    pub(crate) sending: Sending,
    pub(crate) stall: Stall,
    pub(crate) closing: Closing,
    /// The directory names this process to the opener.
    pub(crate) published: bool,
    pub(crate) listed: Listed,
    pub(crate) reported: Reported,
    pub(crate) counters: StreamCounters,
}

/// A stream's place on a link. It has one from the attempt at promotion until neither side uses the slot any more.
pub(crate) struct Attachment {
    pub(crate) link: Arc<LinkCell>,
    /// Our region: the peer's consumed position, then our incoming ring.
    pub(crate) region: Region,
    /// The place where outgoing bytes are written. The opener has it from ACCEPT on.
    pub(crate) outgoing: Option<Outgoing>,
    /// The endpoint counts its streams on links.
    pub(crate) _tallied: Tallied,
}

/// The place where outgoing bytes are written: the peer's region itself, or a local copy of the same shape.
pub(crate) struct Outgoing {
    pub(crate) ring: RingDescriptor,
    pub(crate) memory: Memory,
    /// The local region, where the peer's memory is not mapped.
    pub(crate) staging: Option<Region>,
    /// No byte of the ring at this offset or beyond it was written since it takes no memory: see [`growth`](super::growth).
    pub(super) reach: u32,
}

impl Outgoing {
    /// The part of a region that takes memory also while the stream is idle: a page. Systems with larger pages keep more.
    pub(super) const KEPT: u32 = 4096;

    /// Bytes are written to the peer's region itself.
    pub(crate) fn mapped(ring: RingDescriptor, memory: Memory) -> Outgoing {
        Outgoing { ring, memory, staging: None, reach: Outgoing::shortest_reach(ring.ring_len) }
    }

    /// Bytes are written to a copy of the peer's region.
    pub(crate) fn staged(ring: RingDescriptor, staging: Region) -> Outgoing {
        Outgoing { ring, memory: staging.memory.clone(), staging: Some(staging), reach: ring.ring_len }
    }

    /// The bytes of a ring, from its beginning, in the part that is kept.
    fn shortest_reach(ring_len: u32) -> u32 {
        ring_len.min(Outgoing::KEPT - CREDIT_BLOCK_LEN as u32)
    }

    /// The peer's region.
    pub(super) fn remote(&self) -> RemoteRegion {
        let RingDescriptor { rkey, base, ring_len } = self.ring;
        RemoteRegion { rkey, base, len: CREDIT_BLOCK_LEN as u32 + ring_len }
    }

    /// A span of the ring is about to be written. Whether it is the first one beyond the part that is kept.
    #[inline]
    pub(super) fn grows_by(&mut self, span: Span) -> bool {
        let grows = span.offset + span.len > self.reach;
        if grows {
            self.reach = self.ring.ring_len;
        }
        grows
    }

    /// Nothing in the ring is needed any more. Whether parts of it may take memory that need not be kept.
    pub(super) fn shrinks(&mut self) -> bool {
        let reach = Outgoing::shortest_reach(self.ring.ring_len);
        self.staging.is_none() && std::mem::replace(&mut self.reach, reach) > reach
    }
}

/// Tells streams apart for as long as somebody refers to them, if only weakly. Numbers do not: that of a stream that was forgotten
/// is given to the next one, and a thread that has just found its peer may still put it into a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity(usize);

impl Identity {
    /// Of a stream that may be gone.
    pub(crate) fn of(stream: &Weak<StreamCell>) -> Identity {
        Identity(stream.as_ptr() as usize)
    }
}

impl StreamCell {
    /// See [`Identity`].
    pub(crate) fn identity(&self) -> Identity {
        Identity(std::ptr::from_ref(self) as usize)
    }

    /// Made where it is to be, and not copied there: each connection takes one.
    #[inline(always)]
    pub(crate) fn new(
        number: u32,
        addresses: Addresses,
        (role, config): (Role, StreamConfig),
        anchor: LazyAnchor,
        message_len: u32,
    ) -> StreamCell {
        StreamCell {
            number,
            ends: Ends::new(addresses),
            ready: AtomicU32::new((Readiness::KERNEL_RX | Readiness::KERNEL_TX).bits()),
            sleepers: AtomicU32::new(0),
            tag: AtomicU32::new(u32::MAX),
            watched: AtomicU32::new(UNWATCHED),
            kernel_readers: AtomicU32::new(0),
            sleep_qp: AtomicU32::new(0),
            shared: AtomicU32::new(0),
            pinned: AtomicBool::new(false),
            opening: AtomicBool::new(false),
            low_water: AtomicU32::new(1),
            ring_limit: AtomicU32::new(u32::MAX),
            name: Name::default(),
            inner: Mutex::new(Inner {
                proto: Stream::new(role, config),
                anchor,
                tcp: AnchorState::new(),
                attached: None,
                attempt: Attempt::default(),
                sending: Sending::new(message_len),
                stall: Stall::default(),
                closing: Closing::Open,
                published: false,
                listed: Listed::empty(),
                reported: Reported { flow: Flow::Anchor, ..Reported::default() },
                counters: StreamCounters::default(),
            }),
        }
    }

    /// The number of the connection in a trace, and whether this is its lower end. They follow from the addresses by `compute`,
    /// whose number is never 0 and which always returns the same.
    #[inline]
    pub fn name(&self, compute: impl FnOnce(FourTuple) -> (u64, bool)) -> (u64, bool) {
        match self.name.connection.load(Ordering::Acquire) {
            0 => {
                let (connection, lower) = compute(self.tuple());
                self.name.lower.store(lower, Ordering::Relaxed);
                self.name.connection.store(connection, Ordering::Release);
                (connection, lower)
            }
            connection => (connection, self.name.lower.load(Ordering::Relaxed)),
        }
    }

    /// The TCP connection, as this side sees it. The port of the local address is 0 until it is
    /// [found](StreamCell::find_local).
    #[inline]
    pub fn tuple(&self) -> FourTuple {
        self.ends.tuple()
    }

    /// Finds the local address if it is not known. Locks the stream.
    #[inline]
    pub fn find_local(&self) {
        if !self.has_local() {
            self.ask_anchor();
        }
    }

    #[cold]
    fn ask_anchor(&self) {
        if let Some(local) = self.inner.lock().anchor.local_address() {
            self.ends.found(local);
        }
    }

    /// Whether the local address is known.
    #[inline]
    pub fn has_local(&self) -> bool {
        self.ends.has_local()
    }

    /// Readiness, without a lock.
    #[inline]
    pub fn readiness(&self) -> Readiness {
        Readiness::from_bits_truncate(self.ready.load(Ordering::Acquire))
    }

    /// Sets whether the owner has something to report beside the stream: [`Readiness::NOTICE`]. It wakes the threads
    /// that wait.
    pub fn set_notice(&self, on: bool) {
        if on {
            self.ready.fetch_or(Readiness::NOTICE.bits(), Ordering::AcqRel);
        } else {
            self.ready.fetch_and(!Readiness::NOTICE.bits(), Ordering::AcqRel);
        }
    }

    /// SO_RCVBUF: the rings of later links are not longer than that, as far as rings can be so short.
    pub fn limit_ring(&self, bytes: u32) {
        self.ring_limit.store(bytes, Ordering::Relaxed);
    }

    /// The length of the stream's next ring, where `most` is the usual one.
    pub fn next_ring_len(&self, most: u32) -> u32 {
        //= spec §3.2.4
        //# A ring length that is not a power of two between 4 KiB and 64 MiB is malformed.
        const SHORTEST: u32 = 4096;
        let limit = self.ring_limit.load(Ordering::Relaxed).max(SHORTEST);
        most.min(1 << limit.ilog2())
    }

    /// How many threads have announced, with [`sleeps`](StreamCell::sleeps), that they poll for the last time and then
    /// sleep. While not zero, every change is announced through [`ReadySink`](crate::ReadySink) even if no bit was
    /// gained.
    pub fn sleepers(&self) -> u32 {
        self.sleepers.load(Ordering::SeqCst)
    }

    /// Its number in the directory.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Counts the calling thread among the [`sleepers`](StreamCell::sleepers) until the result is dropped.
    pub fn sleeps(&self) -> Counted<'_> {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        Counted::new(&self.sleepers)
    }

    /// The queue pair that sleepers sleep on.
    pub fn sleep_qp(&self) -> Option<QueuePairId> {
        self.sleep_qp.load(Ordering::Acquire).checked_sub(1).map(QueuePairId)
    }

    /// Set before sleeping.
    pub fn set_sleep_qp(&self, qp: QueuePairId) {
        self.sleep_qp.store(qp.0.wrapping_add(1), Ordering::Release);
    }

    /// Another process is about to hold the descriptor, and may use it: closing it here must leave the others a plain
    /// socket, and this process's counts do not cover everything that the anchor has carried. Once the stream has been
    /// locked after this, no promotion begins. Returns whether it was shared already.
    pub fn share(&self) -> bool {
        self.inner.lock().tcp.recount = true;
        self.shared.fetch_add(1, Ordering::AcqRel) > 0
    }

    /// How often the descriptor was shared since this process was its only holder; 0 if no other process may hold it.
    #[inline]
    pub fn shares(&self) -> u32 {
        self.shared.load(Ordering::Acquire)
    }

    /// This process is the descriptor's only holder (again), as was found out after [`shares`](StreamCell::shares)
    /// returned `seen`. Without effect if it has been shared since.
    pub fn unshare(&self, seen: u32) {
        let _ = self.shared.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Whether another process may hold the descriptor.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.shares() > 0
    }

    /// Keeps the stream off links permanently.
    pub fn pin(&self) {
        self.pinned.store(true, Ordering::Release);
    }

    /// Whether it stays off links permanently.
    #[inline]
    pub fn is_pinned(&self) -> bool {
        self.pinned.load(Ordering::Acquire)
    }

    /// Whether an OPEN of ours is out that the peer may still answer: by the link alone, which a busy program does not
    /// poll.
    pub fn is_opening(&self) -> bool {
        self.opening.load(Ordering::Acquire)
    }

    /// Whether bytes may travel elsewhere than on the anchor. Only with the stream locked: a thread that shares or pins
    /// it locks it afterwards, and so sees the promotion that has begun.
    pub(crate) fn may_leave_kernel(&self) -> Result<(), Reason> {
        match (self.is_pinned(), self.is_shared()) {
            (true, _) => Err(Reason::KernelOnly),
            (_, true) => Err(Reason::Shared),
            _ => Ok(()),
        }
    }

    /// SO_RCVLOWAT.
    #[inline]
    pub fn low_water(&self) -> u32 {
        self.low_water.load(Ordering::Relaxed)
    }

    /// The owner is to watch the anchor for events, under this number of its own. Whether it has to begin now, or again:
    /// an event of an anchor that carries the program's bytes is not handled, and a watcher that reports only changes does
    /// not report it again.
    pub fn begins_watch(&self, number: u32) -> bool {
        self.watched.swap(number, Ordering::AcqRel) != number
    }

    /// The owner's mark.
    pub fn tag(&self) -> &AtomicU32 {
        &self.tag
    }
}
