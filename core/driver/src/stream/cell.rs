//! What a stream is: the part that anybody may look at, and the part under its lock.
//!
//! The methods here need nothing but the stream. Locking it takes the endpoint, too: see [`guard`](super::guard).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;

use netacc_device::{Anchor, AnchorPosition, FourTuple, Instant, Memory, PeerAddress, QueuePairId, Region};
use netacc_proto::{Reason, RingDescriptor, Stream};
use parking_lot::Mutex;

use super::held::Cork;
use crate::counted::Counted;
use crate::link::LinkOf;
use crate::{Readiness, StreamCounters};

/// A link of streams.
pub type LinkCell = LinkOf<StreamCell>;

/// A stream of this process.
pub struct StreamCell {
    /// Its number in the directory.
    pub(crate) number: u32,
    pub(crate) tuple: FourTuple,
    pub(super) ready: AtomicU32,
    /// Threads asleep until this stream changes; see [`StreamCell::sleepers`].
    pub(super) sleepers: AtomicU32,
    /// For the owner: which object of the shim this is.
    pub(super) tag: AtomicU32,
    /// Threads blocked in the kernel on the anchor's incoming bytes; see [`StreamCell::block_in_kernel`].
    pub(super) kernel_readers: AtomicU32,
    /// The queue pair that sleepers sleep on, plus one; 0 for none yet.
    pub(super) sleep_qp: AtomicU32,
    /// How often another process was given the descriptor since this one held it alone; see [`StreamCell::share`].
    pub(super) shared: AtomicU32,
    /// See [`StreamCell::pin`].
    pub(super) pinned: AtomicBool,
    /// See [`StreamCell::is_opening`].
    pub(super) opening: AtomicBool,
    /// See [`StreamGuard::set_low_water`](crate::StreamGuard::set_low_water).
    pub(super) low_water: AtomicU32,
    /// See [`StreamCell::limit_ring`].
    pub(super) ring_limit: AtomicU32,
    pub(super) inner: Mutex<Inner>,
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
    pub(super) violated: bool,
    pub(crate) released: bool,
    pub(crate) closed: bool,
    /// The application waits to write until the pledge is answered, and the endpoint knows.
    pub(crate) pledge_awaited: bool,
    /// So many bytes that may be the beginning of a record are next on the anchor, and the endpoint knows.
    pub(crate) partial: usize,
    /// They have been for RECORD_GRACE. Only while [`StreamGuard::wait_for_record`](crate::StreamGuard::wait_for_record) looks.
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
    /// Since when somebody waits for what comes again on the anchor; see [`has_replay`](crate::StreamGuard::has_replay).
    pub(crate) replay_since: Option<Instant>,
    /// SO_RCVLOWAT of the anchor.
    pub(crate) anchor_low_water: u32,
    /// How much of a closed stream was written to the anchor, and what was unconsumed, when it was looked at last.
    pub(crate) lingered: (u64, u64),
    /// The anchor has ended in another way than the stream.
    pub(super) differs_from_kernel: bool,
    /// How often the anchor was seen to have ended, but not by the reset that is to come; see `provoke_reset`.
    pub(super) looks_at_end: u32,
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
    pub(super) cork: Cork,
    /// Consumed position last told to the peer.
    pub(super) told: u64,
    pub(super) message_len: u32,
}

/// What a peer has taken: bytes of the stream, messages of the link. It has moved if either has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(super) bytes: u64,
    pub(super) messages: u64,
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
}
