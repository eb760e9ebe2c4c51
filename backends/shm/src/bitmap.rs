//! The shared part of a completion queue: the queue pairs with completions, and the wake-up of its sleeper.
//!
//! # A Dekker hand-shake
//! It is "store mine; full barrier; load theirs" on both sides, so at least one side sees the other.
//!
//! Sender: store the CQE; set the bit of the queue pair; if it was clear, set that of its word in `summary`; if
//! `summary` was 0 before, load `armed`, and if set write the eventfd. Receiver: store `armed`; fence; load every
//! `summary`; sleep only if all are 0. A sender that finds a bit already set has nothing to do: the receiver has not
//! taken it yet, so it will read the ring after the CQE was stored; and the sender that made `summary` non-zero loads
//! `armed` after that. Receiver when awake: take `summary`, then the word, then read the ring.
//!
//! Each of these read-modify-writes is also a full barrier, see [`full_barrier_after_rmw`].
//!
//! # Moving
//! The mover stores the new completion queue in `wake` (RMW), then reads the ring. A sender that has set the bit for
//! the queue it read before loads `wake` again (it does so for sleepers). If that has changed, it sets the bit for the
//! new queue as well, since no thread may poll the old one any more. If it changes after that load, the CQE was there
//! before, so the mover sees it. A thread that sleeps on the old queue is woken all the same if its `summary` was 0,
//! because no sender rings for a queue that already has a bit.

use std::sync::atomic::Ordering::*;

use crate::layout::{CqBitmap, Flag, QpShared, CQS, CQ_MASK, HOME_SHIFT, QPS, SLEEPER};
use crate::qp::wake_sleepers;
use crate::sync::{fence, full_barrier_after_rmw, AtomicU32};

/// The result of [`CqBitmap::take`].
pub(crate) struct Taken {
    /// The position at which the next call begins, so that every queue pair gets its turn.
    pub next: u32,
    /// Bits are left, and a thread that saw `summary` as 0 meanwhile may have gone to sleep: ring if the queue is
    /// armed.
    pub left: bool,
}

impl CqBitmap {
    /// Sets the bit of `index`, after the completion was stored. `true` if nothing at all was pending before: ring if
    /// the queue is armed. A full barrier.
    #[inline(always)]
    pub(crate) fn set(&self, index: usize) -> bool {
        self.set_bit(index) && self.set_summary(index)
    }

    /// The first half of [`set`](CqBitmap::set). Whether the bit was not set before: then [`set_summary`](CqBitmap::set_summary)
    /// is due.
    #[inline(always)]
    fn set_bit(&self, index: usize) -> bool {
        let (word, bit) = (&self.words[index / 64 % (QPS / 64)], 1u64 << (index % 64));
        // Unconditional: it is the full barrier that both hand-shakes need, and cheaper than a fence and a load.
        let before = word.fetch_or(bit, SeqCst);
        full_barrier_after_rmw();
        before & bit == 0
    }

    /// The bit of `index` was set, and was not set before. As [`set`](CqBitmap::set).
    #[inline(never)]
    fn set_summary(&self, index: usize) -> bool {
        let summary_bit = 1u64 << (index / 64);
        if self.summary.load(SeqCst) & summary_bit != 0 {
            return false;
        }
        let first = self.summary.fetch_or(summary_bit, SeqCst) == 0;
        full_barrier_after_rmw();
        first
    }

    /// Whether nothing is pending, as far as the loads show.
    #[inline]
    pub(crate) fn seems_empty(&self) -> bool {
        self.summary.load(Relaxed) == 0
    }

    /// Takes bits, from `start` on, until `report` has returned `true` for `room` of them.
    #[inline]
    pub(crate) fn take(&self, start: u32, room: usize, mut report: impl FnMut(usize) -> bool) -> Taken {
        let first_word = start / 64 % 64;
        let mut next = start;
        let mut n = 0;
        let mut summary = self.summary.swap(0, SeqCst).rotate_right(first_word);
        while summary != 0 && n < room {
            let w = (summary.trailing_zeros() + first_word) % 64;
            let word = &self.words[w as usize];
            let all = word.load(SeqCst);
            let mut take = all;
            if all.count_ones() as usize > room - n {
                take = some_bits(all, if w == first_word { start % 64 } else { 0 }, room - n);
            }
            let before = word.fetch_and(!take, SeqCst);
            if before & !take == 0 {
                summary &= summary - 1;
            }
            let mut taken = before & take;
            while taken != 0 {
                let bit = taken.trailing_zeros();
                taken &= taken - 1;
                n += usize::from(report((w * 64 + bit) as usize));
            }
            next = w * 64 + (64 - take.leading_zeros());
            if before & !take != 0 && n < room {
                // A bit was set after `all` was loaded: it keeps its summary bit for the next call.
                break;
            }
        }
        if summary != 0 {
            self.summary.fetch_or(summary.rotate_left(first_word), SeqCst);
        }
        full_barrier_after_rmw();
        Taken { next, left: summary != 0 }
    }
}

/// Announces a sleeper on a queue that has these bitmaps; `how` it sleeps. `true`: something is pending, so it must
/// not.
#[inline]
pub(crate) fn arm<'a>(armed: &AtomicU32, how: u32, mut bitmaps: impl Iterator<Item = &'a CqBitmap>) -> bool {
    // Another thread of ours may rely on being woken.
    armed.fetch_max(how, SeqCst);
    fence(SeqCst);
    bitmaps.any(|b| b.summary.load(SeqCst) != 0)
}

/// An announcement to a receiver: the queue pair at `index`, with the shared side `side`, has a completion. The data must be
/// stored already.
pub(crate) struct Announcement<'a> {
    pub(crate) bitmaps: &'a [CqBitmap; CQS],
    pub(crate) index: usize,
    pub(crate) side: &'a QpShared,
}

/// An announcement that is not over, with its findings: see [`Announcement::finish`].
#[derive(Clone, Copy)]
pub(crate) struct Unfinished {
    cq: u32,
    /// The bit was set, and was not set before.
    first: bool,
}

impl Announcement<'_> {
    /// Sets the bit. `None`: that is all, because it was set before, nobody sleeps, and the queue pair has not moved.
    #[inline(always)]
    pub(crate) fn begin(&self) -> Option<Unfinished> {
        let cq = self.side.rx.wake.load(Relaxed) & CQ_MASK;
        // The completion queue is a value of the receiver, and may be invalid.
        let first = self.bitmaps.get(cq as usize).is_some_and(|bitmap| bitmap.set_bit(self.index));
        if first {
            return Some(Unfinished { cq, first });
        }
        let moved = self.side.rx.wake.load(SeqCst) & (SLEEPER | CQ_MASK) != cq;
        moved.then_some(Unfinished { cq, first })
    }

    /// Wakes a thread that sleeps on the queue pair. Returns the completion queues whose descriptors must be written, as a bit
    /// set.
    #[inline]
    pub(crate) fn finish(&self, armed: &[Flag; CQS], Unfinished { cq, first }: Unfinished) -> u32 {
        let is_armed = |cq: usize| u32::from(armed[cq].0.load(SeqCst) != 0) << cq;
        let get = |cq: u32| self.bitmaps.get(cq as usize);
        let mut ring = match get(cq) {
            Some(bitmap) if first && bitmap.set_summary(self.index) => is_armed(cq as usize),
            _ => 0,
        };
        let now = wake_sleepers(self.side) & CQ_MASK;
        if now != cq && get(now).is_some_and(|bitmap| bitmap.set(self.index)) {
            ring |= is_armed(now as usize);
        }
        ring
    }

    /// All of it.
    #[inline(always)]
    pub(crate) fn make<'b>(&self, armed: impl FnOnce() -> &'b [Flag; CQS]) -> u32 {
        self.begin().map_or(0, |unfinished| self.finish(armed(), unfinished))
    }
}

/// As an [`Announcement`], at the queue that the receiver's queue pair was connected on; returns that queue if its descriptor
/// must be written.
pub(crate) fn knock(bitmaps: &[CqBitmap; CQS], armed: &[Flag; CQS], index: usize, side: &QpShared) -> Option<usize> {
    let home = (side.rx.wake.load(Relaxed) >> HOME_SHIFT & CQ_MASK) as usize;
    // The receiver's value, as above.
    let asleep = bitmaps.get(home)?.set(index) && armed.get(home)?.0.load(SeqCst) != 0;
    asleep.then_some(home)
}

/// `room` of the set bits of `all`, from `first` upwards and then from 0.
fn some_bits(all: u64, first: u32, room: usize) -> u64 {
    let (high, mut take) = (all >> first << first, 0u64);
    for mut bits in [high, all & !high] {
        while bits != 0 && (take.count_ones() as usize) < room {
            take |= bits & bits.wrapping_neg();
            bits &= bits - 1;
        }
    }
    take
}
