//! When a connection that is on TCP asks for a link.

use std::sync::atomic::{AtomicU32, Ordering};

/// After this many operations promotion that did not succeed is tried again, half as many more each time, up to a bound.
const RETRY_AFTER: u32 = 8;
const MAX_RETRY_AFTER: u32 = 1 << 20;
/// The bound where promotion was declined because somebody has asked for that, or because the link was slower.
const RETRY_ASKED: u32 = 1 << 10;

/// What bears on when a connection that asks now asks again, if it stays on TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tries {
    /// Others hold the socket. That they have closed it is seen by looking: soon at first, and rarely later.
    pub shared: bool,
    /// Somebody has asked for TCP. The end of that, too, is seen by looking.
    pub asked_off: bool,
}

/// Counts of operations (calls that have moved bytes on TCP) at which a connection asks for a link.
#[derive(Debug)]
pub struct PromotionSchedule {
    /// At this count.
    at: AtomicU32,
    /// After how many more if it does not succeed then.
    step: AtomicU32,
}

impl PromotionSchedule {
    /// The count of a connection that does not ask.
    pub const NEVER: u32 = u32::MAX;

    /// First at that count.
    pub fn new(first: u32) -> PromotionSchedule {
        PromotionSchedule { at: AtomicU32::new(first), step: AtomicU32::new(1) }
    }

    /// Whether it asks, after so many operations. Who does calls [`note_try`](PromotionSchedule::note_try).
    #[inline]
    pub fn is_due(&self, operations: u32) -> bool {
        operations >= self.at.load(Ordering::Relaxed)
    }

    /// It asks now: again later, if it has to.
    pub fn note_try(&self, operations: u32, tries: Tries) {
        let most = if tries.asked_off { RETRY_ASKED } else { MAX_RETRY_AFTER };
        let least = if tries.shared { 1 } else { RETRY_AFTER };
        let step = self.step.load(Ordering::Relaxed).clamp(least, most);
        self.step.store(step + step / 2 + 1, Ordering::Relaxed);
        self.postpone(operations, step);
    }

    /// Not before so many more operations.
    pub fn postpone(&self, operations: u32, by: u32) {
        self.at.store(operations.saturating_add(by), Ordering::Relaxed);
    }

    /// At the next operation, and as if it had not asked.
    pub fn begin_again(&self, operations: u32) {
        self.postpone(operations, 1);
        self.step.store(1, Ordering::Relaxed);
    }

    /// The link was declined as the slower path, which may change.
    pub fn note_slower(&self, operations: u32) {
        self.at.fetch_min(operations.saturating_add(RETRY_ASKED), Ordering::Relaxed);
    }

    /// It has come back from a link: after some use it may go onto one again.
    pub fn note_return(&self, operations: u32) {
        self.at.fetch_min(operations.saturating_add(RETRY_AFTER), Ordering::Relaxed);
        self.step.store(RETRY_AFTER, Ordering::Relaxed);
    }

    /// It does not ask any more.
    pub fn end(&self) {
        self.at.store(PromotionSchedule::NEVER, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tries(schedule: &PromotionSchedule, tries: Tries, most: u32) -> Vec<u32> {
        let due = |n: &u32| {
            let due = schedule.is_due(*n);
            if due {
                schedule.note_try(*n, tries);
            }
            due
        };
        (0..most).filter(due).collect()
    }

    // Breaks if who stays on TCP asks at each operation, never again, or as rarely though its obstacle may end unseen.
    #[test]
    fn asking_becomes_rare() {
        let usual = PromotionSchedule::new(2);
        assert_eq!(tries(&usual, Tries::default(), 100), [2, 10, 23, 43, 74]);
        let shared = PromotionSchedule::new(0);
        assert_eq!(tries(&shared, Tries { shared: true, asked_off: false }, 30), [0, 1, 3, 7, 14, 25]);
        let rare = PromotionSchedule::new(0);
        let all = tries(&rare, Tries { shared: false, asked_off: true }, 100_000);
        assert!(all.windows(2).all(|w| w[1] - w[0] <= RETRY_ASKED) && all.len() < 120, "{}", all.len());
    }

    // Breaks if who comes back from a link waits as long as who has often asked in vain, or one that never asks does.
    #[test]
    fn what_changes_is_looked_at_sooner() {
        let schedule = PromotionSchedule::new(0);
        tries(&schedule, Tries::default(), 10_000);
        schedule.note_return(10_000);
        assert!(!schedule.is_due(10_007) && schedule.is_due(10_008));
        schedule.postpone(10_008, 5000);
        schedule.note_slower(10_008);
        assert!(!schedule.is_due(11_031) && schedule.is_due(11_032));
        schedule.begin_again(11_032);
        assert!(!schedule.is_due(11_032) && schedule.is_due(11_033));
        schedule.end();
        assert!(!schedule.is_due(1 << 30));
    }
}
