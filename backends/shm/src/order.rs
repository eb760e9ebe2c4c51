//! The order in which queue pairs of one peer are polled.

use netacc_device::QueuePairId;

/// Queue pairs of one peer, to be polled in the order in which it posted the next message on each.
#[derive(Default)]
pub(crate) struct Order {
    /// The stamps of those posts, from the first stamp on that was found.
    stamps: [i32; Order::MOST],
    len: usize,
    base: Option<u32>,
    /// Some queue pair comes before one with a lower number.
    unsorted: bool,
}

impl Order {
    /// More are left in the order in which they come: a program that writes and then waits has few, and sorting many
    /// costs a tenth of the throughput of a server with a hundred clients.
    const MOST: usize = 8;

    /// The next queue pair's stamp; a queue pair that has only a completion of its own comes with the one before.
    #[inline]
    pub(crate) fn record(&mut self, stamp: Option<u32>) {
        if self.len == Order::MOST {
            self.unsorted = false;
            return;
        }
        let last = self.len.checked_sub(1).map_or(0, |at| self.stamps[at]);
        let after = stamp.map_or(last, |stamp| stamp.wrapping_sub(*self.base.get_or_insert(stamp)) as i32);
        self.unsorted |= after < last;
        self.stamps[self.len] = after;
        self.len += 1;
    }

    #[inline]
    pub(crate) fn apply(&self, qps: &mut [QueuePairId]) {
        if self.unsorted {
            self.sort(qps);
        }
    }

    fn sort(&self, qps: &mut [QueuePairId]) {
        let mut sorted = [(0, QueuePairId(0)); Order::MOST];
        let sorted = &mut sorted[..self.len.min(qps.len())];
        for (at, entry) in sorted.iter_mut().enumerate() {
            *entry = (self.stamps[at], qps[at]);
        }
        sorted.sort_by_key(|(stamp, _)| *stamp);
        for (qp, (_, of)) in qps.iter_mut().zip(sorted) {
            *qp = *of;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(stamps: &[Option<u32>]) -> Vec<u32> {
        let mut order = Order::default();
        stamps.iter().for_each(|stamp| order.record(*stamp));
        let mut qps: Vec<_> = (0..stamps.len() as u32).map(QueuePairId).collect();
        order.apply(&mut qps);
        qps.into_iter().map(|qp| qp.0).collect()
    }

    // Breaks if stamps were compared across their wrap, or too many were sorted in part.
    #[test]
    fn queue_pairs_come_in_the_order_of_their_stamps() {
        assert_eq!(ordered(&[Some(7), Some(5), None, Some(6)]), [1, 2, 3, 0]);
        assert_eq!(ordered(&[Some(1), Some(u32::MAX)]), [1, 0]);
        assert_eq!(ordered(&[None, Some(i32::MAX as u32), Some(1 << 31)]), [0, 1, 2]);
        let many: Vec<_> = (0..9).rev().map(Some).collect();
        assert_eq!(ordered(&many), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
