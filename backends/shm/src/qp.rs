//! The local half of a queue pair, and the data path.
//!
//! # Waking a thread that sleeps on one queue pair
//! A Dekker hand-shake, like that of completion queues (`bitmap`). Sleeper: set `SLEEPER` in `wake` (RMW); load
//! `futex`; fence; compute the sequence from the ring; if it differs from `seen`, do not sleep; else `FUTEX_WAIT(futex,
//! loaded)`. Sender: store the CQE; set the bitmap bit (a full barrier); load `wake`; with `SLEEPER` set, clear it,
//! increment `futex`, `FUTEX_WAKE`. A sender that misses the flag stored its CQE before the sleeper read the ring; one
//! that sees it increments `futex` either after the sleeper loaded it (then the wait fails or is woken) or before (then
//! the sleeper sees the CQE when it reads the ring).
//!
//! # The ring
//! CQE number `c` sits at `c % RING` and is valid while its tag is `c + 1`: the consumer reads one line and no index
//! of the producer. The sequence of a queue pair is the count of valid CQEs so far plus local counters; it is
//! computed, so that posting stores nothing for sleepers that do not exist.
//!
//! Sides: `post` is used by the serialised posters, `poll` by the serialised pollers (see the `Device` trait); both
//! are atomics only because the type system cannot see that serialisation.

#![expect(unsafe_code, reason = "the shared-memory ring")]

use std::sync::atomic::{self, AtomicPtr, Ordering::*};
use std::sync::OnceLock;

use netacc_device::{
    Completion, CompletionStatus, Operation, Payload, PostError, QueuePairId, WorkCompletion, WorkRequest,
    WorkRequestId,
};

use crate::layout::{Half, QpShared, CQ_MASK, HOME_SHIFT, KEYS, RING, SLAB_OFFSET, SLEEPER};
use crate::sync::{fence, full_barrier_after_rmw, futex_wake, AtomicU32, AtomicU64};

/// Largest message, in bytes: an eighth of the smallest segment, so that a region for it can always be allocated.
pub(crate) const MAX_MESSAGE: u32 = 8 << 20;
/// Largest inline payload: any message, since every payload is copied at post time anyway.
pub(crate) const MAX_INLINE: u32 = MAX_MESSAGE;
/// Signaled sends whose completions were not polled yet.
pub(crate) const SEND_RING: u32 = if cfg!(any(loom, miri)) { 2 } else { 128 };

/// In `QpLocal::down`: this side failed the queue pair, or its pair of processes is dead.
pub(crate) const DOWN: u32 = 1;

/// Counts the posts of one process to another, so that the other can poll its queue pairs in the order in which they
/// got messages: a program that writes to two connections expects its peer to read in that order, as on the loopback.
#[repr(align(64))]
#[derive(Default)]
pub(crate) struct Posts(AtomicU32);

impl Posts {
    /// The stamp of a post by a process whose last operation in the kernel has this number. Two threads that post at
    /// once may both have the same stamp: nothing orders them.
    #[inline]
    pub(crate) fn stamp(&self, kernel_operation: u32) -> Stamp {
        let number = self.0.load(Relaxed);
        self.0.store(number.wrapping_add(1), Relaxed);
        Stamp(number << 16 | kernel_operation & 0xffff)
    }
}

/// The time of a post: its number in the upper half, and in the lower half the number of its process's last operation
/// in the kernel. Both wrap: a stamp is compared with recent ones.
#[derive(Clone, Copy)]
pub(crate) struct Stamp(u32);

impl Stamp {
    /// The number of the post, in the upper half.
    #[inline]
    pub(crate) fn number(self) -> u32 {
        self.0 & 0xffff_0000
    }

    /// The number of the poster's last operation in the kernel.
    #[inline]
    pub(crate) fn kernel_operation(self) -> u32 {
        self.0 & 0xffff
    }
}

#[repr(align(64))]
#[derive(Default)]
struct PostSide {
    /// Messages ever produced.
    produced: AtomicU32,
    /// Receives we ever posted (mirrors our `RxLine::posted`).
    posted: AtomicU32,
    /// Signaled sends ever completed.
    sends: AtomicU32,
}

#[repr(align(64))]
#[derive(Default)]
struct PollSide {
    /// Messages ever consumed.
    consumed: AtomicU32,
    /// Send completions ever taken.
    sends_taken: AtomicU32,
    /// `Disconnected` was reported.
    reported: AtomicU32,
}

/// One queue pair of this process. Its slot is permanent and reused with another generation.
#[repr(align(64))]
pub(crate) struct QpLocal {
    /// Generation in the upper bits, 1 in bit 0 while connected. Read by everybody, written by the control path.
    state: AtomicU32,
    /// The completion queue that this side reports to.
    pub cq: AtomicU32,
    pub down: AtomicU32,
    /// The number of wake-ups for causes other than completions.
    kicks: AtomicU32,
    /// Our receiving side, in our half.
    rx: AtomicPtr<QpShared>,
    /// The peer's receiving side, in its half.
    tx: AtomicPtr<QpShared>,
    /// Control structures of the peer's half.
    tx_half: AtomicPtr<Half>,
    half_bytes: AtomicU64,
    post: PostSide,
    poll: PollSide,
    send_ids: OnceLock<Box<[AtomicU64; SEND_RING as usize]>>,
}

/// The parts that a queue pair is connected to.
pub(crate) struct Wiring {
    pub cq: u32,
    pub rx: *mut QpShared,
    pub tx: *mut QpShared,
    pub tx_half: *mut Half,
    pub half_bytes: u64,
}

/// The effects of a post, for the caller to signal.
pub(crate) struct Posted {
    pub accepted: usize,
    /// The peer has a completion to poll.
    pub announce_peer: bool,
    /// We have one (a signaled send completed).
    pub announce_self: bool,
}

impl QpLocal {
    pub(crate) fn new() -> QpLocal {
        QpLocal {
            state: AtomicU32::new(0),
            cq: AtomicU32::new(0),
            down: AtomicU32::new(0),
            kicks: AtomicU32::new(0),
            rx: AtomicPtr::default(),
            tx: AtomicPtr::default(),
            tx_half: AtomicPtr::default(),
            half_bytes: AtomicU64::new(0),
            post: PostSide::default(),
            poll: PollSide::default(),
            send_ids: OnceLock::new(),
        }
    }

    /// Connects; returns the generation.
    pub(crate) fn open(&self, w: &Wiring) -> u32 {
        self.cq.store(w.cq, Relaxed);
        self.down.store(0, Relaxed);
        self.rx.store(w.rx, Relaxed);
        self.tx.store(w.tx, Relaxed);
        self.tx_half.store(w.tx_half, Relaxed);
        self.half_bytes.store(w.half_bytes, Relaxed);
        for word in [&self.post.produced, &self.post.posted, &self.post.sends] {
            word.store(0, Relaxed);
        }
        for word in [&self.poll.consumed, &self.poll.sends_taken, &self.poll.reported] {
            word.store(0, Relaxed);
        }
        let generation = (self.state.load(Relaxed) >> 1).wrapping_add(1);
        self.state.store(generation << 1 | 1, Release);
        generation
    }

    /// Disconnects the local end; the generation stays until the next `open`.
    pub(crate) fn close(&self) {
        self.state.fetch_and(!1, AcqRel);
        self.kick();
    }

    /// A number of the connection that it has. It is [at](QpLocal::is_at) that until it is closed.
    pub(crate) fn connection(&self) -> Option<u32> {
        let state = self.state.load(Acquire);
        (state & 1 != 0).then_some(state)
    }

    /// Whether it still has the connection of that number.
    #[inline]
    pub(crate) fn is_at(&self, connection: u32) -> bool {
        self.state.load(Acquire) == connection
    }

    /// The generation, while connected.
    #[inline]
    pub(crate) fn generation(&self) -> Option<u32> {
        let state = self.state.load(Acquire);
        (state & 1 != 0).then_some(state >> 1)
    }

    #[inline]
    pub(crate) fn rx(&self) -> &QpShared {
        // SAFETY: set by `open` before `state` was released, to a place in a range that stays mapped as long as the
        // device (see `map`); the structure is atomics only.
        unsafe { &*self.rx.load(Relaxed) }
    }

    #[inline]
    pub(crate) fn tx(&self) -> &QpShared {
        // SAFETY: as for `rx`.
        unsafe { &*self.tx.load(Relaxed) }
    }

    /// The word that our sleepers sleep on.
    pub(crate) fn futex(&self) -> &AtomicU32 {
        &self.rx().rx.futex
    }

    /// Posts in order until the peer has no receive left. The caller announces.
    #[inline]
    pub(crate) fn post_send(&self, index: usize, stamp: Stamp, wrs: &[WorkRequest<'_>]) -> Result<Posted, PostError> {
        if self.down.load(Relaxed) != 0 || self.rx().close.closed.load(Relaxed) != 0 {
            return Err(PostError::Dead);
        }
        let tx = self.tx();
        let mut produced = self.post.produced.load(Relaxed);
        let mut result = Posted { accepted: 0, announce_peer: false, announce_self: false };
        let mut failure = PostError::QueueFull;
        for wr in wrs {
            if let Err(e) = self.post_one((index, stamp), tx, wr, &mut produced, &mut result) {
                failure = e;
                break;
            }
            result.accepted += 1;
        }
        self.post.produced.store(produced, Relaxed);
        // A request that is wrong in itself is reported when it comes first.
        if result.accepted == 0 && !wrs.is_empty() {
            return Err(failure);
        }
        Ok(result)
    }

    /// Whether nothing can be posted: this side or the peer, whose `rx` this is, has closed the connection, or `died` is not 0.
    #[inline(always)]
    pub(crate) fn is_over(&self, rx: &QpShared, died: u32) -> bool {
        // All are rare: one branch.
        died | self.down.load(Relaxed) | rx.close.closed.load(Acquire) != 0
    }

    /// The number of the next message.
    #[inline(always)]
    pub(crate) fn produced(&self) -> u32 {
        self.post.produced.load(Relaxed)
    }

    /// Posts message number `produced` to the peer's `tx`, whose bytes are in place, and for which there is
    /// [credit](check_credit). The caller announces it.
    #[inline(always)]
    pub(crate) fn post_in_place(&self, tx: &QpShared, produced: u32, stamp: Stamp, (len, imm): (u32, u32)) {
        debug_assert!(len <= MAX_MESSAGE, "longer than the device's messages");
        self.post.produced.store(produce(tx, produced, stamp, (len, imm)), Relaxed);
    }

    #[inline]
    fn post_one(
        &self,
        (index, stamp): (usize, Stamp),
        tx: &QpShared,
        wr: &WorkRequest<'_>,
        produced: &mut u32,
        result: &mut Posted,
    ) -> Result<(), PostError> {
        let Operation::Write { rkey, offset, imm } = wr.operation else { return Err(PostError::Invalid) };
        let len = wr.payload.len();
        let inline = matches!(wr.payload, Payload::Inline(_));
        if len > MAX_MESSAGE || inline && len > MAX_INLINE {
            return Err(PostError::Invalid);
        }
        let mut to = std::ptr::null_mut();
        if len != 0 {
            to = self.remote(index, rkey.0, offset, u64::from(len)).ok_or(PostError::Invalid)?;
        }
        if imm.is_some() {
            check_credit(tx, *produced)?;
        }
        let sends = self.post.sends.load(Relaxed);
        if wr.signaled && sends.wrapping_sub(self.poll.sends_taken.load(Acquire)) >= SEND_RING {
            return Err(PostError::QueueFull);
        }
        if len != 0 {
            place(to, &wr.payload)?;
        }
        if let Some(imm) = imm {
            *produced = produce(tx, *produced, stamp, (len, imm));
            result.announce_peer = true;
        }
        if wr.signaled {
            let ids = self.send_ids.get_or_init(|| Box::new(std::array::from_fn(|_| AtomicU64::new(0))));
            ids[(sends % SEND_RING) as usize].store(wr.id.0, Relaxed);
            self.post.sends.store(sends.wrapping_add(1), Release);
            result.announce_self = true;
        }
        Ok(())
    }

    /// The address of `len` bytes that the peer registered for this queue pair.
    #[inline]
    pub(crate) fn remote(&self, index: usize, key: u32, offset: u64, len: u64) -> Option<*mut u8> {
        let half = self.tx_half.load(Relaxed);
        // SAFETY: as for `rx`.
        let entry = unsafe { &(*half).keys[key as usize % KEYS] };
        let key_len = entry.key_len.load(Acquire);
        let qp_base = entry.qp_base.load(Relaxed);
        let base = qp_base & ((1 << 48) - 1);
        let end = offset.checked_add(len)?;
        let region_end = base + (key_len & 0xffff_ffff);
        let fits = key_len >> 32 == u64::from(key)
            && qp_base >> 48 == index as u64
            && offset >= base
            && end <= region_end
            // The entry is a value of the peer; these two checks are ours, and protect the control structures.
            && offset >= SLAB_OFFSET
            && end <= self.half_bytes.load(Relaxed);
        // SAFETY: within the half by the last check.
        fits.then(|| unsafe { half.cast::<u8>().add(offset as usize) })
    }

    /// Posts receives.
    #[inline]
    pub(crate) fn post_recv(&self, count: u32) -> Result<(), PostError> {
        if self.down.load(Relaxed) != 0 {
            return Err(PostError::Dead);
        }
        let posted = self.post.posted.load(Relaxed);
        let outstanding = posted.wrapping_sub(self.poll.consumed.load(Acquire));
        if count > RING || outstanding + count > RING {
            return Err(PostError::QueueFull);
        }
        self.post.posted.store(posted.wrapping_add(count), Relaxed);
        self.rx().rx.posted.store(posted.wrapping_add(count), Release);
        Ok(())
    }

    /// Takes completions: sends first, then messages, then the end. Calls `taken` with the stamp of each message.
    #[inline]
    pub(crate) fn poll(&self, qp: QueuePairId, out: &mut [WorkCompletion], mut taken: impl FnMut(Stamp)) -> usize {
        let mut n = self.poll_sends(qp, out);
        let consumed = self.poll.consumed.load(Relaxed);
        let mut next = consumed;
        while n < out.len() {
            let Some((completion, stamp)) = self.message(next) else { break };
            taken(stamp);
            out[n] = WorkCompletion { qp, status: CompletionStatus::Success, completion };
            n += 1;
            next = next.wrapping_add(1);
        }
        if next != consumed {
            // Release: `post_recv` on another thread lets the sender overwrite these entries.
            self.poll.consumed.store(next, Release);
        }
        if n < out.len() && self.ended() && self.message(next).is_none() && self.poll.reported.swap(1, Relaxed) == 0 {
            out[n] = WorkCompletion { qp, status: CompletionStatus::Flushed, completion: Completion::Disconnected };
            n += 1;
        }
        n
    }

    /// Whether the [sequence](QpLocal::sequence) is still `seen`, at which everything was polled: so no message is to be counted.
    /// `rx` is our receiving side, which the peer has not closed.
    #[inline(always)]
    pub(crate) fn has_still(&self, rx: &QpShared, seen: u32) -> bool {
        let consumed = self.poll.consumed.load(Acquire);
        let local = self.kicks.load(Acquire).wrapping_add(self.post.sends.load(Acquire));
        // As in `sequence`: a poller that moved on may have let the sender overwrite the entry.
        consumed.wrapping_add(local) == seen
            && message_in(rx, consumed).is_none()
            && self.poll.consumed.load(Acquire) == consumed
    }

    /// Takes the next completion if it is a message. `None`: there is none, or it is something else.
    #[inline]
    pub(crate) fn poll_message(&self) -> Option<(Completion, Stamp)> {
        if self.post.sends.load(Acquire) != self.poll.sends_taken.load(Relaxed) {
            return None;
        }
        let consumed = self.poll.consumed.load(Relaxed);
        let message = self.message(consumed)?;
        // Release: as in `poll`.
        self.poll.consumed.store(consumed.wrapping_add(1), Release);
        Some(message)
    }

    #[inline]
    fn poll_sends(&self, qp: QueuePairId, out: &mut [WorkCompletion]) -> usize {
        let taken = self.poll.sends_taken.load(Relaxed);
        let ready = self.post.sends.load(Acquire).wrapping_sub(taken);
        if ready == 0 {
            return 0;
        }
        let Some(ids) = self.send_ids.get() else { return 0 };
        let n = (ready as usize).min(out.len());
        for (i, slot) in out[..n].iter_mut().enumerate() {
            let id = WorkRequestId(ids[(taken.wrapping_add(i as u32) % SEND_RING) as usize].load(Relaxed));
            *slot = WorkCompletion { qp, status: CompletionStatus::Success, completion: Completion::Send { id } };
        }
        self.poll.sends_taken.store(taken.wrapping_add(n as u32), Release);
        n
    }

    /// Message number `next`, if it is there.
    #[inline]
    fn message(&self, next: u32) -> Option<(Completion, Stamp)> {
        message_in(self.rx(), next)
    }

    /// The stamp of the next message, if it is there.
    pub(crate) fn next_stamp(&self) -> Option<Stamp> {
        let next = self.poll.consumed.load(Relaxed);
        let tag = self.rx().ring[(next % RING) as usize].tag.load(Acquire);
        (tag as u32 == next.wrapping_add(1)).then_some(Stamp((tag >> 32) as u32))
    }

    /// Nothing will follow the messages in the ring. Acquire, so that a later read of the ring sees all of it.
    #[inline]
    fn ended(&self) -> bool {
        self.rx().close.closed.load(Acquire) != 0 || self.down.load(Acquire) != 0
    }

    /// See the module's text.
    #[inline]
    pub(crate) fn sequence(&self) -> u32 {
        loop {
            let consumed = self.poll.consumed.load(Acquire);
            let mut next = consumed;
            while next.wrapping_sub(consumed) < RING && self.message(next).is_some() {
                next = next.wrapping_add(1);
            }
            let local = self.kicks.load(Acquire).wrapping_add(self.post.sends.load(Acquire));
            let closed = u32::from(self.rx().close.closed.load(Acquire) != 0);
            // A poller that moved on meanwhile may have let the sender overwrite the entries that we counted.
            if self.poll.consumed.load(Acquire) == consumed {
                return next.wrapping_add(local).wrapping_add(closed);
            }
        }
    }

    /// Registers a sleeper; returns the futex value to sleep on, or `None` if the sequence is not `seen`.
    pub(crate) fn prepare_sleep(&self, seen: u32) -> Option<u32> {
        let rx = &self.rx().rx;
        rx.wake.fetch_or(SLEEPER, SeqCst);
        let value = rx.futex.load(SeqCst);
        fence(SeqCst);
        (self.generation().is_some() && self.sequence() == seen).then_some(value)
    }

    /// Wakes local sleepers after a signaled send, which the sequence counts by itself.
    pub(crate) fn wake_local(&self) {
        fence(SeqCst);
        wake_sleepers(self.rx());
    }

    /// Wakes local sleepers for a local cause. Idempotent causes must be stored before.
    pub(crate) fn kick(&self) {
        self.kicks.fetch_add(1, SeqCst);
        full_barrier_after_rmw();
        if !self.rx.load(Relaxed).is_null() {
            wake_sleepers(self.rx());
        }
    }

    /// The completion queue that this side was connected on.
    pub(crate) fn home(&self) -> u32 {
        self.rx().rx.wake.load(Relaxed) >> HOME_SHIFT & CQ_MASK
    }

    /// Binds this side to another completion queue.
    pub(crate) fn rebind(&self, cq: u32) {
        self.cq.store(cq, SeqCst);
        let wake = &self.rx().rx.wake;
        // Never contended for long: the peer only ever clears SLEEPER.
        let _ = wake.fetch_update(SeqCst, SeqCst, |w| Some(w & !CQ_MASK | cq));
        fence(SeqCst);
    }
}

/// Prepares the receiving side `rx` of an index before the peer learns of it. The peer does not touch it: it has closed
/// its end of the former use, or never had one.
pub(crate) fn reset(rx: &QpShared, cq: u32) {
    rx.rx.posted.store(0, Relaxed);
    rx.close.closed.store(0, Relaxed);
    for cqe in &rx.ring {
        cqe.tag.store(0, Relaxed);
    }
    rx.rx.wake.store(cq & CQ_MASK | (cq & CQ_MASK) << HOME_SHIFT, Release);
}

/// The sender's half of the thread-level hand-shake. The fence must come before. Returns `wake`.
#[inline]
pub(crate) fn wake_sleepers(side: &QpShared) -> u32 {
    let wake = side.rx.wake.load(SeqCst);
    if wake & SLEEPER != 0 {
        wake_sleeper(side);
    }
    wake
}

/// There was a sleeper. Another sender may wake it first.
#[inline(never)]
fn wake_sleeper(side: &QpShared) {
    if side.rx.wake.fetch_and(!SLEEPER, SeqCst) & SLEEPER != 0 {
        side.rx.futex.fetch_add(1, SeqCst);
        futex_wake(&side.rx.futex);
    }
}

/// Whether the receiver has posted a receive for message number `produced`. The count is the receiver's, and may be false.
#[inline]
pub(crate) fn check_credit(tx: &QpShared, produced: u32) -> Result<(), PostError> {
    let credit = tx.rx.posted.load(Acquire).wrapping_sub(produced);
    if credit.wrapping_sub(1) < RING {
        return Ok(());
    }
    Err(if credit == 0 { PostError::QueueFull } else { PostError::Dead })
}

/// Message number `next` of the receiving side `rx`, if it is there.
#[inline]
fn message_in(rx: &QpShared, next: u32) -> Option<(Completion, Stamp)> {
    let cqe = &rx.ring[(next % RING) as usize];
    let tag = cqe.tag.load(Acquire);
    if tag as u32 != next.wrapping_add(1) {
        return None;
    }
    let data = cqe.data.load(Relaxed);
    Some((Completion::Receive { imm: data as u32, len: (data >> 32) as u32 }, Stamp((tag >> 32) as u32)))
}

/// Stores message number `produced`, of a length and an immediate; returns the number of the next one.
#[inline]
fn produce(tx: &QpShared, produced: u32, stamp: Stamp, (len, imm): (u32, u32)) -> u32 {
    let (cqe, next) = (&tx.ring[(produced % RING) as usize], produced.wrapping_add(1));
    cqe.data.store(u64::from(len) << 32 | u64::from(imm), Relaxed);
    cqe.tag.store(u64::from(stamp.0) << 32 | u64::from(next), Release);
    next
}

/// Puts the payload at `to`, which has room for it.
#[inline]
fn place(to: *mut u8, payload: &Payload<'_>) -> Result<(), PostError> {
    match payload {
        Payload::Inline(bytes) => {
            // A word is stored as one: the protocol's credit words are read while they change.
            if let (Ok(word), true) = (<[u8; 8]>::try_from(*bytes), (to as usize).is_multiple_of(8)) {
                // SAFETY: `to` has room for 8 bytes and is aligned.
                unsafe { atomic::AtomicU64::from_ptr(to.cast()) }.store(u64::from_ne_bytes(word), Release);
            } else {
                // SAFETY: `to` has room for `bytes.len()`; a caller's slice is never shared memory.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
            }
            Ok(())
        }
        Payload::Region { region, offset, len } => {
            if let (8, true, Some(word)) = (*len, (to as usize).is_multiple_of(8), region.memory.word(*offset)) {
                // SAFETY: as above.
                unsafe { atomic::AtomicU64::from_ptr(to.cast()) }.store(word.load(Relaxed), Release);
                return Ok(());
            }
            // SAFETY: `to` has room for `len`; the peer's half is no local region, so they do not overlap.
            let copied = unsafe { region.memory.read_into(*offset, to, *len as usize) };
            if copied {
                Ok(())
            } else {
                Err(PostError::Invalid)
            }
        }
        Payload::InPlace { .. } => Ok(()),
    }
}
