//! A link: the queue pair, and its two halves under two locks.
//!
//! A link keeps the streams that are on it, and does not use them: [`LinkOf`] takes any type for them. So a stream,
//! which has a link, is above it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU8, Ordering};
use std::sync::Arc;

use netacc_device::{
    Capabilities, CompletionQueueId, Device, DeviceError, PeerAddress, QueuePairId, Region, RemoteRegion,
    WorkCompletion,
};
use netacc_proto::Link;
use parking_lot::Mutex;

use super::patience::AnswerPatience;
use super::spare::Spare;
use super::tx::LinkTx;
use crate::counted::Counted;

/// A link as `netacc_ss -s qp` shows it.
#[derive(Clone, Debug)]
pub struct LinkStatus {
    /// The queue pair.
    pub qp: u32,
    /// Streams on it.
    pub streams: u16,
    /// Whether it is dead.
    pub dead: bool,
    /// The completion queue it reports to.
    pub cq: u32,
    /// Regions that it keeps for the next stream.
    pub spare_regions: usize,
}

/// A thread that sleeps on a link's queue pair.
pub struct LinkSleep<'a> {
    /// Counts the thread.
    pub counted: Counted<'a>,
    /// Whether other threads slept there already.
    pub others: bool,
}

/// The life of a link: each state comes after the one above it, and may be skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum LinkLife {
    Alive,
    /// A thread has found it dead, and queues it for the control path.
    Failing,
    /// The control path has taken it, but has not ended it yet.
    Dying,
    Dead,
}

/// One connected queue pair, with streams of this type.
pub struct LinkOf<S> {
    pub(crate) qp: QueuePairId,
    pub(crate) peer: PeerAddress,
    /// The device's capabilities for this queue pair.
    pub(crate) caps: Capabilities,
    /// So many messages that were taken one at a time are returned to the peer together.
    pub(crate) returned_at: u32,
    /// This side connected the link, so it sends first.
    pub(crate) connector: bool,
    pub(crate) cq: AtomicU32,
    /// A [`LinkLife`], which only grows.
    life: AtomicU8,
    answer_patience: AnswerPatience,
    /// Threads that sleep on the queue pair.
    sleepers: AtomicU32,
    /// See [`LinkOf::dispatch`].
    dispatched: AtomicBool,
    /// The queue pair's sequence before it was last drained.
    seen: AtomicU32,
    /// Our first region: credit word, control slots.
    pub(crate) local: Region,
    spare: Mutex<Spare>,
    pub(crate) rx: Mutex<LinkRx<S>>,
    pub(crate) tx: Mutex<LinkTx>,
}

/// The first region of each side, as exchanged by the connection manager.
pub(crate) struct FirstRegions {
    pub(crate) local: Region,
    pub(crate) remote: RemoteRegion,
}

/// The receiving half.
pub(crate) struct LinkRx<S> {
    /// Streams by our slot.
    pub(crate) slots: Vec<Option<Arc<S>>>,
    /// Messages received, where they are numbered.
    pub(crate) messages: u64,
    /// Control messages received.
    pub(crate) controls: u64,
    /// Streams whose anchors have shown, while the link was polled, events that count after another poll.
    pub(crate) checks: Vec<Arc<S>>,
    /// Messages that were taken one at a time, and whose receives are not posted again yet.
    pub(crate) kept: u32,
    /// Space for completions, reused between polls of the link.
    pub(crate) completions: Vec<WorkCompletion>,
}

impl<S> LinkOf<S> {
    pub(crate) fn new(
        device: &dyn Device,
        proto: Link,
        qp: QueuePairId,
        peer: PeerAddress,
        connector: bool,
        cq: CompletionQueueId,
        FirstRegions { local, remote }: FirstRegions,
    ) -> LinkOf<S> {
        let caps = device.capabilities_of(qp);
        // A peer that runs out of credit requests it, and then gets all. Where silence is probed for, each message counts.
        let returned_at = if caps.notices_silence { proto.receive_depth() / 8 } else { 1 };
        let tx = LinkTx::new(device, proto, qp, &caps, local.clone(), remote);
        LinkOf {
            qp,
            peer,
            returned_at,
            connector,
            cq: AtomicU32::new(cq.0),
            life: AtomicU8::new(LinkLife::Alive as u8),
            answer_patience: AnswerPatience::default(),
            sleepers: AtomicU32::new(0),
            dispatched: AtomicBool::new(false),
            seen: AtomicU32::new(0),
            local,
            spare: Mutex::default(),
            rx: Mutex::new(LinkRx {
                slots: Vec::new(),
                messages: 0,
                controls: 0,
                checks: Vec::new(),
                kept: 0,
                completions: Vec::new(),
            }),
            tx: Mutex::new(tx),
            caps,
        }
    }

    /// Whether completions may have been added that are not handled yet, because the link was drained before them or
    /// because another thread is draining it.
    #[inline]
    pub(crate) fn has_news(&self, device: &dyn Device) -> bool {
        device.qp_sequence(self.qp) != self.seen()
    }

    /// The queue pair's sequence number at which everything is handled.
    #[inline]
    pub(crate) fn seen(&self) -> u32 {
        self.seen.load(Ordering::Acquire)
    }

    /// After draining: everything that had come at this sequence number is handled.
    #[inline]
    pub(crate) fn mark_seen(&self, sequence: u32) {
        self.seen.store(sequence, Ordering::Release);
    }

    /// So many completions were handled without draining. Call it with `rx` locked, so that no other thread counts.
    #[inline]
    pub(crate) fn count_seen(&self, completions: u32) {
        // A device without `qp_wait` has no sequence.
        let completions = if self.caps.qp_wait { completions } else { 0 };
        // Events that this thread has not counted, such as a wake-up, remain news, so the next caller drains the link.
        self.seen.store(self.seen.load(Ordering::Relaxed).wrapping_add(completions), Ordering::Release);
    }

    /// The queue pair.
    pub fn qp(&self) -> QueuePairId {
        self.qp
    }

    /// The completion queue that the queue pair reports to.
    pub fn cq(&self) -> CompletionQueueId {
        CompletionQueueId(self.cq.load(Ordering::Relaxed))
    }

    /// The number of its streams.
    pub fn streams(&self) -> u16 {
        self.tx.lock().proto.streams()
    }

    /// Counts the calling thread among those that sleep on the queue pair, until the result is dropped.
    pub fn sleeps(&self) -> LinkSleep<'_> {
        let others = self.sleepers.fetch_add(1, Ordering::SeqCst) > 0;
        LinkSleep { counted: Counted::new(&self.sleepers), others }
    }

    /// Called when several threads begin to wait for messages of the link. From now on the owner chooses the thread
    /// that polls it, and no thread sleeps on the queue pair. Returns whether that is a change.
    pub fn dispatch(&self) -> bool {
        !self.dispatched.swap(true, Ordering::SeqCst)
    }

    /// Ends the effect of [`dispatch`](LinkOf::dispatch).
    pub fn end_dispatch(&self) {
        if self.is_dispatched() {
            self.dispatched.store(false, Ordering::SeqCst);
        }
    }

    /// Whether [`dispatch`](LinkOf::dispatch) was called.
    pub fn is_dispatched(&self) -> bool {
        self.dispatched.load(Ordering::SeqCst)
    }

    /// Whether threads can sleep on the queue pair.
    pub fn can_be_waited_for(&self) -> bool {
        self.caps.qp_wait
    }

    /// Whether both ends are in the memory of this host.
    pub fn is_shared_memory(&self) -> bool {
        self.caps.peer_memory
    }

    /// How long writes of its streams wait for the answer to an OPEN.
    pub fn answer_patience(&self) -> &AnswerPatience {
        &self.answer_patience
    }

    #[inline]
    fn life(&self) -> u8 {
        self.life.load(Ordering::Acquire)
    }

    /// The link has reached at least the state `life`. Returns whether it had not reached that state before.
    pub(crate) fn advance(&self, life: LinkLife) -> bool {
        self.life.fetch_max(life as u8, Ordering::AcqRel) < life as u8
    }

    /// Whether the link is dead.
    pub fn is_dead(&self) -> bool {
        self.life() >= LinkLife::Dead as u8
    }

    /// Whether the link is dead, or was found to be: writes wait until its streams have left it.
    pub(crate) fn is_failing(&self) -> bool {
        self.life() >= LinkLife::Failing as u8
    }

    /// Whether the link is dead, or about to be ended: it takes no further stream.
    pub(crate) fn is_dying(&self) -> bool {
        self.life() >= LinkLife::Dying as u8
    }

    /// `len` zeroed bytes of registered memory.
    ///
    /// # Errors
    /// The error of the device, if the allocation fails even after all spare regions were freed.
    pub(crate) fn alloc_region(&self, device: &dyn Device, len: usize) -> Result<Region, DeviceError> {
        let kept = self.spare.lock().take(len);
        if let Some(region) = kept {
            return Ok(region);
        }
        device.alloc_region(self.qp, len).or_else(|error| {
            let kept = std::mem::take(&mut *self.spare.lock());
            if kept.len() == 0 {
                return Err(error);
            }
            kept.into_regions().for_each(|region| device.free_region(self.qp, region));
            device.alloc_region(self.qp, len)
        })
    }

    /// A stream of the link does not need the region any more.
    pub(crate) fn free_region(&self, device: &dyn Device, region: Region) {
        // Where memory is shared, it is not registered.
        let rest = if self.caps.peer_memory { Some(region) } else { self.spare.lock().keep(region) };
        if let Some(region) = rest {
            device.free_region(self.qp, region);
        }
    }

    /// For display.
    pub fn status(&self) -> LinkStatus {
        LinkStatus {
            qp: self.qp.0,
            streams: self.streams(),
            dead: self.is_dead(),
            cq: self.cq.load(Ordering::Relaxed),
            spare_regions: self.spare.lock().len(),
        }
    }
}
