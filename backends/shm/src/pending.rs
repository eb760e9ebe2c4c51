//! Finding the queue pairs that have completions: the scan of all pairs' bitmaps, without a lock.

use std::sync::atomic::Ordering::*;

use netacc_device::{CompletionQueueId, QueuePairId};

use crate::device::ShmDevice;
use crate::layout::CQS;
use crate::order::Order;
use crate::pair::PairSlot;
use crate::pairs::qp_id;
use crate::qp::{QpLocal, Stamp};

/// With more pairs than this, `pending` scans the warm ones first and all of them every [`FULL_SCAN`] calls.
const SCAN_ALL: usize = 8;
const FULL_SCAN: u32 = 32;

impl ShmDevice {
    /// See [`Device::pending`](netacc_device::Device::pending).
    #[inline]
    pub(crate) fn find_pending(&self, cq: CompletionQueueId, out: &mut [QueuePairId]) -> usize {
        let cq = cq.0 as usize;
        if cq >= CQS || out.is_empty() {
            return 0;
        }
        let count = self.pairs.count();
        if count > SCAN_ALL {
            return self.pending_many(cq, count, out);
        }
        let queue = &self.cqs[cq];
        let first = queue.next_pair.load(Relaxed) as usize;
        let mut n = 0;
        // The posts of one process begin at `begin`; the pairs of a process come one after the other.
        let (mut begin, mut order, mut own) = (0, Order::default(), false);
        for i in 0..count {
            let index = if first + i < count { first + i } else { (first + i) % count };
            let Some(pair) = self.pairs.get(index).filter(|p| p.is_active()) else { continue };
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

    /// Takes queue pairs of one pair into `out[n..]`; returns the new `n`. Records their order.
    #[inline]
    fn scan(&self, pair: &PairSlot, cq: usize, out: &mut [QueuePairId], mut n: usize, order: &mut Order) -> usize {
        let bitmap = &pair.rx().bitmaps[cq];
        if bitmap.seems_empty() {
            return n;
        }
        let queue = &self.cqs[cq];
        let taken = bitmap.take(queue.next_qp.load(Relaxed), out.len() - n, |index| {
            let Some(local) = self.reportable(pair, index, cq, out, n) else { return false };
            n += 1;
            order.record(local.next_stamp().map(Stamp::number));
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
        out[n] = qp_id(pair.index, index, generation);
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
            let Some(pair) = self.pairs.get(index).filter(|p| p.is_active()) else { continue };
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
