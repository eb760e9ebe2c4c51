//! One accelerated socket, shared by threads.
//!
//! * [`StreamCell`]: what can be asked without its lock.
//! * [`guard`]: the stream while it is locked; whoever lets go of it has it settled.
//! * [`transfer`]: bytes on the link.
//! * [`ending`]: leaving the link, shutting down, closing.
//! * [`settle`]: what follows from a change: messages, records, readiness.
//!
//! Invariant: all bits of a stream's readiness but [`Readiness::NOTICE`] are changed only by who has it locked.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Duration;

use netacc_device::{
    Anchor, AnchorError, AnchorPosition, FourTuple, Instant, Memory, PeerAddress, QueuePairId, Region,
};
use netacc_proto::{Reason, RingDescriptor, SocketError, Stream};
use parking_lot::Mutex;

use self::cork::Cork;
use crate::counted::Counted;
use crate::link::LinkOf;
use crate::stall::Taken;
use crate::{Endpoint, Readiness, StreamCounters};

mod cork;
mod ending;
mod guard;
mod settle;
mod transfer;

pub(crate) use cork::CORK_INTERVAL;
pub use ending::Shutdown;
pub use guard::StreamGuard;
pub use transfer::LinkIo;

/// How long a write that finds the anchor full waits for the answer to an OPEN before the pledge is voided: it would
/// have waited anyway, and the peer's application has up to some megabytes to read first. Arbitrary.
pub const PLEDGE_PATIENCE: Duration = Duration::from_millis(200);

/// At which look at an anchor that has ended a reset is provoked. Arbitrary: looks are tens of microseconds apart where somebody
/// waits, and a peer's reset follows its FIN within a few.
const PROVOKING_LOOK: u32 = 16;

/// A link of streams.
pub type LinkCell = LinkOf<StreamCell>;

/// A stream of this process.
pub struct StreamCell {
    /// Its number in the directory.
    pub(crate) number: u32,
    pub(crate) tuple: FourTuple,
    ready: AtomicU32,
    /// Threads asleep until this stream changes; see [`StreamCell::sleepers`].
    sleepers: AtomicU32,
    /// For the owner: which object of the shim this is.
    tag: AtomicU32,
    /// Threads blocked in the kernel on the anchor's incoming bytes; see [`StreamCell::block_in_kernel`].
    kernel_readers: AtomicU32,
    /// The queue pair that sleepers sleep on, plus one; 0 for none yet.
    sleep_qp: AtomicU32,
    /// How often another process was given the descriptor since this one held it alone; see [`StreamCell::share`].
    shared: AtomicU32,
    /// See [`StreamCell::pin`].
    pinned: AtomicBool,
    /// See [`StreamCell::is_opening`].
    opening: AtomicBool,
    /// See [`StreamGuard::set_low_water`].
    low_water: AtomicU32,
    /// See [`StreamCell::limit_ring`].
    ring_limit: AtomicU32,
    inner: Mutex<Inner>,
}

pub(crate) struct Inner {
    pub(crate) proto: Stream,
    pub(crate) anchor: Box<dyn Anchor + Send>,
    pub(crate) link: Option<Arc<LinkCell>>,
    /// The peer has named another process to ask, once the stream has left the link.
    pub(crate) ask_next: Option<PeerAddress>,
    /// This attempt is at a process that the peer has named.
    pub(crate) sent_on: bool,
    /// Our region: the peer's consumed position, then our incoming ring.
    pub(crate) region: Option<Region>,
    /// Where outgoing bytes are written: the peer's region itself, or a local copy of the same shape.
    pub(crate) outgoing: Option<Outgoing>,
    /// Bytes that this process has written to and read from the anchor, records included.
    pub(crate) carried: AnchorPosition,
    /// Others may have used the anchor too: ask it.
    pub(crate) recount: bool,
    pub(crate) counters: StreamCounters,
    pub(crate) published: bool,
    pub(crate) reported_promotions: u32,
    pub(crate) was_linked: bool,
    /// The attempt, by its link and slot, that the endpoint knows another link to contest.
    pub(crate) contested: Option<(QueuePairId, u16)>,
    /// Its peer has broken the protocol, and that was counted.
    violated: bool,
    pub(crate) released: bool,
    pub(crate) closed: bool,
    /// The application waits to write until the pledge is answered, and the endpoint knows.
    pub(crate) pledge_awaited: bool,
    /// So many bytes that may be the beginning of a record are next on the anchor, and the endpoint knows.
    pub(crate) partial: usize,
    /// They have been for RECORD_GRACE. Only while [`StreamGuard::wait_for_record`] looks.
    pub(crate) grace_over: bool,
    /// The kernel has said that the peer has ended its direction of the anchor.
    pub(crate) peer_ended: bool,
    /// Its FIN was read: the kernel will tell a reader of no reset that comes after it.
    pub(crate) fin_seen: bool,
    /// Something was seen on the anchor that counts once the link has been polled.
    pub(crate) look_noted: bool,
    /// It was taken in.
    pub(crate) end_handled: bool,
    /// A call of ours was told that the anchor is broken. The kernel tells of it once.
    pub(crate) anchor_broken: bool,
    /// Since when somebody waits for what comes again on the anchor; see [`StreamGuard::has_replay`].
    pub(crate) replay_since: Option<Instant>,
    /// SO_RCVLOWAT of the anchor.
    pub(crate) anchor_low_water: u32,
    /// How much of a closed stream was written to the anchor, and what was unconsumed, when it was looked at last.
    pub(crate) lingered: (u64, u64),
    /// The anchor has ended in another way than the stream.
    differs_from_kernel: bool,
    /// How often the anchor was seen to have ended, but not by the reset that is to come; see `provoke_reset`.
    looks_at_end: u32,
    /// Records or replay wait for room on the anchor, and the endpoint knows.
    pub(crate) blocked: bool,
    /// The endpoint knows that its link has no room; and what the peer had taken when that was last looked at.
    pub(crate) stall_noted: bool,
    pub(crate) taken: Taken,
    pub(crate) taken_nothing_since: Option<Instant>,
    /// A write found byte credit but no room for a message.
    pub(crate) crowded: bool,
    /// Messages sent since the peer's last one.
    pub(crate) unheard: u32,
    /// Bytes for a closed socket were thrown away: it ends with a reset, as from the kernel.
    pub(crate) refused: bool,
    /// What the peer has not been told of.
    cork: Cork,
    /// Consumed position last told to the peer.
    told: u64,
    message_len: u32,
}

impl Inner {
    /// Neither side uses what the stream holds on its link any more. A CLOSE that found the queue full is still to go.
    pub(crate) fn is_idle(&self) -> bool {
        let proto = &self.proto;
        !(proto.holds_slot() || proto.needs_memory() || proto.has_control() || self.lingers())
    }

    /// Whether the kernel, of an anchor that has ended as the stream has, has the same error to tell: of a broken pipe if
    /// the peer's FIN was there before its reset.
    fn knows_error(&self) -> bool {
        !self.differs_from_kernel && (self.proto.error() != Some(SocketError::Reset) || !self.fin_seen)
    }

    /// Whether the peer's FIN is next on the anchor.
    pub(crate) fn has_fin(&mut self) -> bool {
        let now = match self.look_for_fin() {
            Some(fin) => fin && self.anchor.unread() == 0,
            // Takes the error of a reset that came without one.
            None => match self.anchor.try_peek(&mut [0]) {
                Ok(n) => n == 0,
                Err(error) => {
                    self.anchor_broken |= !matches!(error, AnchorError::WouldBlock);
                    false
                }
            },
        };
        self.fin_seen |= now;
        now
    }

    /// Whether the peer's FIN has come on the anchor, be it with unread bytes in front of it; `None` if only reading tells.
    pub(crate) fn look_for_fin(&mut self) -> Option<bool> {
        let counted = (!self.recount).then_some(self.carried.read)?;
        let fin = self.anchor.has_fin(counted)?;
        self.fin_seen |= fin;
        Some(fin)
    }

    /// If the peer's FIN is all that the kernel knows of a reset: writes one byte, once, which the peer's kernel answers with it.
    ///
    /// Not at the first look. A peer that resets its anchor has said FIN just before, and the error of a reset that comes at this
    /// moment would be the write's, not the application's.
    pub(crate) fn provoke_reset(&mut self) {
        if !self.anchor.is_ended() || self.anchor.is_over() {
            return;
        }
        self.looks_at_end = self.looks_at_end.saturating_add(1);
        if self.looks_at_end == PROVOKING_LOOK {
            self.carried.written += self.anchor.try_write(&[0]).unwrap_or(0) as u64;
        }
    }

    /// Whether a write would not have to wait: there is byte credit, and room for a message or a place behind what waits for
    /// that.
    fn has_room(&self) -> bool {
        let behind = || !self.cork.is_full(self.message_len, self.proto.tx_ring_len());
        let fails = || self.link.as_ref().is_none_or(|link| link.is_failing());
        self.proto.link_writable() && (!self.crowded || !fails() && behind())
    }

    /// Closed by the application, but records may still have to be read from the anchor or written to it.
    pub(crate) fn lingers(&self) -> bool {
        self.proto.must_linger()
    }
}

pub(crate) struct Outgoing {
    pub(crate) ring: RingDescriptor,
    pub(crate) memory: Memory,
    /// The local region, where the peer's memory is not mapped.
    pub(crate) staging: Option<Region>,
}

impl StreamCell {
    pub(crate) fn new(
        number: u32,
        tuple: FourTuple,
        proto: Stream,
        anchor: Box<dyn Anchor + Send>,
        message_len: u32,
    ) -> StreamCell {
        StreamCell {
            number,
            tuple,
            ready: AtomicU32::new((Readiness::KERNEL_RX | Readiness::KERNEL_TX).bits()),
            sleepers: AtomicU32::new(0),
            tag: AtomicU32::new(u32::MAX),
            kernel_readers: AtomicU32::new(0),
            sleep_qp: AtomicU32::new(0),
            shared: AtomicU32::new(0),
            pinned: AtomicBool::new(false),
            opening: AtomicBool::new(false),
            low_water: AtomicU32::new(1),
            ring_limit: AtomicU32::new(u32::MAX),
            inner: Mutex::new(Inner {
                proto,
                anchor,
                link: None,
                ask_next: None,
                sent_on: false,
                region: None,
                outgoing: None,
                carried: AnchorPosition { written: 0, read: 0 },
                recount: false,
                counters: StreamCounters::default(),
                published: false,
                reported_promotions: 0,
                was_linked: false,
                contested: None,
                violated: false,
                released: false,
                closed: false,
                pledge_awaited: false,
                partial: 0,
                grace_over: false,
                peer_ended: false,
                fin_seen: false,
                look_noted: false,
                end_handled: false,
                anchor_broken: false,
                replay_since: None,
                differs_from_kernel: false,
                anchor_low_water: 1,
                lingered: (0, 0),
                looks_at_end: 0,
                blocked: false,
                stall_noted: false,
                taken: Taken::default(),
                taken_nothing_since: None,
                crowded: false,
                unheard: 0,
                refused: false,
                cork: Cork::default(),
                told: 0,
                message_len,
            }),
        }
    }

    /// The TCP connection, as this side sees it.
    pub fn tuple(&self) -> FourTuple {
        self.tuple
    }

    /// Readiness, without a lock.
    #[inline]
    pub fn readiness(&self) -> Readiness {
        Readiness::from_bits_truncate(self.ready.load(Ordering::Acquire))
    }

    /// Says whether the owner has something to tell beside the stream: [`Readiness::NOTICE`]. It tells those who wait.
    pub fn set_notice(&self, on: bool) {
        if on {
            self.ready.fetch_or(Readiness::NOTICE.bits(), Ordering::AcqRel);
        } else {
            self.ready.fetch_and(!Readiness::NOTICE.bits(), Ordering::AcqRel);
        }
    }

    /// SO_RCVBUF: the rings of links to come are not longer than that, as far as rings can be so short.
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

    /// How many threads have announced, with [`sleeps`](StreamCell::sleeps), that they look for the last time and then
    /// sleep. While not zero, every change is announced through [`ReadySink`](crate::ReadySink) even if no bit was gained.
    pub fn sleepers(&self) -> u32 {
        self.sleepers.load(Ordering::SeqCst)
    }

    /// Its number in the directory.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether something has arrived on the stream's link since it was last looked at. Cheap; no lock but the stream's.
    #[inline]
    pub fn has_news(self: &Arc<Self>, endpoint: &Endpoint) -> bool {
        if self.readiness().contains(Readiness::KERNEL_RX | Readiness::KERNEL_TX) {
            return false;
        }
        let inner = self.inner.lock();
        inner.link.as_ref().is_some_and(|link| link.has_news(endpoint.device()))
    }

    /// Runs `wait`, which blocks in the kernel until the anchor is readable, if reads come from the anchor at all.
    /// Meanwhile no other thread takes records off the anchor: the blocked one would be woken by the record's arrival,
    /// find nothing, and sleep on although the stream has moved to the link.
    pub fn block_in_kernel<R>(self: &Arc<Self>, endpoint: &Endpoint, wait: impl FnOnce() -> R) -> Option<R> {
        {
            let _guard = self.lock(endpoint);
            if !self.readiness().contains(Readiness::KERNEL_RX) {
                return None;
            }
            self.kernel_readers.fetch_add(1, Ordering::SeqCst);
        }
        let _one = Counted::new(&self.kernel_readers);
        Some(wait())
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
    /// socket, and what this process has counted is not all that the anchor has carried. Once the stream has been locked
    /// after this, no promotion begins. Returns whether it was shared already.
    pub fn share(&self) -> bool {
        self.inner.lock().recount = true;
        self.shared.fetch_add(1, Ordering::AcqRel) > 0
    }

    /// How often the descriptor was shared since this process held it alone; 0 if no other process may hold it.
    pub fn shares(&self) -> u32 {
        self.shared.load(Ordering::Acquire)
    }

    /// This process alone holds the descriptor (again), as was found out after [`shares`](StreamCell::shares) said `seen`.
    /// Without effect if it has been shared since.
    pub fn unshare(&self, seen: u32) {
        let _ = self.shared.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Whether another process may hold the descriptor.
    pub fn is_shared(&self) -> bool {
        self.shares() > 0
    }

    /// Keeps the stream off links for good.
    pub fn pin(&self) {
        self.pinned.store(true, Ordering::Release);
    }

    /// Whether it is kept off links for good.
    pub fn is_pinned(&self) -> bool {
        self.pinned.load(Ordering::Acquire)
    }

    /// Whether an OPEN of ours is out that the peer may still have something to say about: by the link alone, which a program
    /// that does something else does not look at.
    pub fn is_opening(&self) -> bool {
        self.opening.load(Ordering::Acquire)
    }

    /// Whether bytes may travel elsewhere than on the anchor. Only with the stream locked: whoever shares or pins it locks it
    /// afterwards, and so sees what has begun.
    pub(crate) fn may_leave_kernel(&self) -> Result<(), Reason> {
        match (self.is_pinned(), self.is_shared()) {
            (true, _) => Err(Reason::KernelOnly),
            (_, true) => Err(Reason::Shared),
            _ => Ok(()),
        }
    }

    /// SO_RCVLOWAT.
    pub fn low_water(&self) -> u32 {
        self.low_water.load(Ordering::Relaxed)
    }

    /// The owner's mark.
    pub fn tag(&self) -> &AtomicU32 {
        &self.tag
    }

    /// Locks the stream. Drop the guard before waiting for anything.
    #[inline]
    pub fn lock<'a>(self: &'a Arc<Self>, endpoint: &'a Endpoint) -> StreamGuard<'a> {
        StreamGuard { cell: self, endpoint, inner: self.inner.lock(), arrived: false, polled: false }
    }

    /// As `lock`, or `None` if another thread holds it.
    pub fn try_lock<'a>(self: &'a Arc<Self>, endpoint: &'a Endpoint) -> Option<StreamGuard<'a>> {
        Some(StreamGuard { cell: self, endpoint, inner: self.inner.try_lock()?, arrived: false, polled: false })
    }
}
