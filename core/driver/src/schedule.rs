//! The times at which a connection that is on TCP tries to get a link.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use netacc_device::{Backoff, Instant};

/// The step of a connection that has not tried. Shorter than any other.
const UNTRIED: u32 = 1;
/// After this many operations promotion that did not succeed is tried again, half as many more each time, up to a bound.
const RETRY_AFTER: u32 = 8;
const MAX_RETRY_AFTER: u32 = 1 << 20;
/// The bound where promotion was declined because the program requested TCP, or because the link was slower.
const RETRY_DECLINED: u32 = 1 << 10;

/// After this time it is tried again too, twice as long each time: for a connection that is hardly used, a million
/// operations are days, and an outage of seconds must not keep it on TCP so long. And a connection that moves megabytes in a few
/// operations must not stay on TCP for all of them because its peer still left an earlier attempt. Arbitrary: an attempt costs
/// a lookup of the peer.
const PAUSE: Backoff = Backoff { first: Duration::from_millis(50), longest: Duration::from_secs(60) };
/// One operation of so many reads the clock, which costs it some nanoseconds. Arbitrary.
const CLOCK_INTERVAL: u32 = 8;

/// The conditions that decide when a connection that tries now tries again, if it stays on TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tries {
    /// Other processes hold the socket. This process finds out that they have closed it only by checking: soon at
    /// first, and rarely later.
    pub shared: bool,
    /// The program requested TCP. This process finds out only by checking that this has ended, too.
    pub tcp_requested: bool,
}

/// Counts of operations (calls that have moved bytes on TCP), and times, at which a connection tries to get a link.
/// Time is checked in operations, so an idle connection does not try.
#[derive(Debug)]
pub struct PromotionSchedule {
    /// The count at which it tries next.
    at: AtomicU32,
    /// The number of operations until the attempt after that, if the next one does not succeed.
    step: AtomicU32,
    /// And from this time on, in nanoseconds: after an attempt that failed.
    overdue_ns: AtomicU64,
    /// How long after that if it does not succeed then, in nanoseconds.
    pause_ns: AtomicU64,
}

const NOT_OVERDUE: u64 = u64::MAX;
const FIRST_PAUSE_NS: u64 = PAUSE.first.as_nanos() as u64;

impl PromotionSchedule {
    /// The count of a connection that does not try.
    pub const NEVER: u32 = u32::MAX;

    /// A schedule that tries first at that count.
    pub fn new(first: u32) -> PromotionSchedule {
        PromotionSchedule {
            at: AtomicU32::new(first),
            step: AtomicU32::new(UNTRIED),
            overdue_ns: AtomicU64::new(NOT_OVERDUE),
            pause_ns: AtomicU64::new(FIRST_PAUSE_NS),
        }
    }

    /// Whether it tries, after so many operations. A caller that tries calls [`record_try`](PromotionSchedule::record_try).
    /// `now` is called rarely.
    #[inline]
    pub fn is_due(&self, operations: u32, now: impl FnOnce() -> Instant) -> bool {
        operations >= self.at.load(Ordering::Relaxed)
            || operations.is_multiple_of(CLOCK_INTERVAL) && self.is_overdue(now)
    }

    /// Whether it is still to try for the first time, and not within so many further operations.
    #[inline]
    pub fn is_far(&self, operations: u32, further: u32) -> bool {
        let untried = self.step.load(Ordering::Relaxed) == UNTRIED;
        untried
            && (operations.saturating_add(further)..PromotionSchedule::NEVER).contains(&self.at.load(Ordering::Relaxed))
    }

    fn is_overdue(&self, now: impl FnOnce() -> Instant) -> bool {
        let from = self.overdue_ns.load(Ordering::Relaxed);
        from != NOT_OVERDUE && now().as_nanos() >= from
    }

    /// It tries now: again later, if it has to.
    pub fn record_try(&self, operations: u32, now: Instant, tries: Tries) {
        let pause = self.pause_ns.load(Ordering::Relaxed);
        let next = PAUSE.after(Some(Duration::from_nanos(pause)));
        self.pause_ns.store(next.as_nanos() as u64, Ordering::Relaxed);
        self.overdue_ns.store(now.as_nanos().saturating_add(pause), Ordering::Relaxed);
        let most = if tries.tcp_requested { RETRY_DECLINED } else { MAX_RETRY_AFTER };
        let least = if tries.shared { 1 } else { RETRY_AFTER };
        let step = self.step.load(Ordering::Relaxed).clamp(least, most);
        self.step.store(step + step / 2 + 1, Ordering::Relaxed);
        self.postpone(operations, step);
    }

    /// Postpones the attempt by so many more operations.
    pub fn postpone(&self, operations: u32, by: u32) {
        self.at.store(operations.saturating_add(by), Ordering::Relaxed);
    }

    /// It tries again when its pause is over, however much it is used before.
    pub fn leave_to_time(&self) {
        self.at.store(PromotionSchedule::NEVER, Ordering::Relaxed);
    }

    /// It tries at the next operation, as if it had not tried before.
    pub fn begin_again(&self, operations: u32) {
        self.postpone(operations, 1);
        self.step.store(UNTRIED, Ordering::Relaxed);
        self.forget_time();
    }

    /// The link was declined as the slower path, which may change.
    pub fn record_slower(&self, operations: u32) {
        self.at.fetch_min(operations.saturating_add(RETRY_DECLINED), Ordering::Relaxed);
    }

    /// It has come back from a link: after some use it may go onto one again.
    pub fn record_return(&self, operations: u32) {
        self.at.fetch_min(operations.saturating_add(RETRY_AFTER), Ordering::Relaxed);
        self.step.store(RETRY_AFTER, Ordering::Relaxed);
        self.forget_time();
    }

    fn forget_time(&self) {
        self.overdue_ns.store(NOT_OVERDUE, Ordering::Relaxed);
        self.pause_ns.store(FIRST_PAUSE_NS, Ordering::Relaxed);
    }

    /// It does not try any more.
    pub fn end(&self) {
        self.at.store(PromotionSchedule::NEVER, Ordering::Relaxed);
        self.forget_time();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun() -> Instant {
        Instant::from_nanos(7)
    }

    fn tries(schedule: &PromotionSchedule, tries: Tries, most: u32) -> Vec<u32> {
        let due = |n: &u32| {
            let due = schedule.is_due(*n, begun);
            if due {
                schedule.record_try(*n, begun(), tries);
            }
            due
        };
        (0..most).filter(due).collect()
    }

    // Breaks if a connection that stays on TCP tries at each operation, never again, or as rarely although its obstacle
    // may end unseen.
    #[test]
    fn attempts_become_rare() {
        let usual = PromotionSchedule::new(2);
        assert_eq!(tries(&usual, Tries::default(), 100), [2, 10, 23, 43, 74]);
        let shared = PromotionSchedule::new(0);
        assert_eq!(tries(&shared, Tries { shared: true, tcp_requested: false }, 30), [0, 1, 3, 7, 14, 25]);
        let rare = PromotionSchedule::new(0);
        let all = tries(&rare, Tries { shared: false, tcp_requested: true }, 100_000);
        assert!(all.windows(2).all(|w| w[1] - w[0] <= RETRY_DECLINED) && all.len() < 120, "{}", all.len());
    }

    // Breaks if a receive slept in the kernel while its connection asks for a link, or is about to; or if an operator had to wait for
    // a receive of a connection that never asks by itself.
    #[test]
    fn an_attempt_is_far_before_the_first_one_alone() {
        let schedule = PromotionSchedule::new(24);
        assert!(schedule.is_far(22, 2) && !schedule.is_far(23, 2));
        schedule.record_try(24, begun(), Tries::default());
        assert!(!schedule.is_far(24, 2));
        assert!(!PromotionSchedule::new(PromotionSchedule::NEVER).is_far(0, 2));
    }

    // Breaks if a connection that comes back from a link waits as long as one that has often failed, or if one that
    // never tries does.
    #[test]
    fn an_attempt_comes_sooner_where_the_path_may_have_changed() {
        let schedule = PromotionSchedule::new(0);
        tries(&schedule, Tries::default(), 10_000);
        schedule.record_return(10_000);
        assert!(!schedule.is_due(10_007, begun) && schedule.is_due(10_008, begun));
        schedule.postpone(10_008, 5000);
        schedule.record_slower(10_008);
        assert!(!schedule.is_due(11_031, begun) && schedule.is_due(11_032, begun));
        schedule.begin_again(11_032);
        assert!(!schedule.is_due(11_032, begun) && schedule.is_due(11_033, begun));
        schedule.end();
        assert!(!schedule.is_due(1 << 30, begun));
    }

    // Breaks if a connection that is used once in a while tries to get a link only when it has been used a million
    // times more.
    #[test]
    fn time_bounds_the_pause_between_attempts() {
        let schedule = PromotionSchedule::new(2);
        // Often at first, so that many operations lie between two attempts later.
        assert!(tries(&schedule, Tries::default(), 100_000).len() > 20);
        schedule.record_try(100_000, begun(), Tries::default());
        let mut requested = vec![begun()];
        for n in 1..2000 {
            let now = begun() + Duration::from_millis(500) * n;
            if schedule.is_due(100_000 + n, || now) {
                schedule.record_try(100_000 + n, now, Tries::default());
                requested.push(now);
            }
        }
        let pauses: Vec<_> = requested.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(pauses.len() > 10, "{pauses:?}");
        let clock = Duration::from_millis(500) * CLOCK_INTERVAL;
        assert!(pauses.iter().all(|pause| *pause >= PAUSE.longest && *pause <= PAUSE.longest + clock), "{pauses:?}");

        // From short to long, and short again after it has been on a link.
        let schedule = PromotionSchedule::new(0);
        let overdue = |n, after| {
            schedule.record_try(n, begun(), Tries::default());
            schedule.postpone(n, 1 << 20);
            let at = |pause: Duration| schedule.is_due(n + CLOCK_INTERVAL, || begun() + pause);
            (at(after - Duration::from_nanos(1)), at(after))
        };
        let mut pause = PAUSE.first;
        while pause < PAUSE.longest {
            assert_eq!(overdue(CLOCK_INTERVAL * 100, pause), (false, true));
            pause *= 2;
        }
        assert_eq!(overdue(CLOCK_INTERVAL * 100, PAUSE.longest), (false, true));
        schedule.record_return(CLOCK_INTERVAL * 100);
        assert!(!schedule.is_due(CLOCK_INTERVAL * 100, || begun() + PAUSE.longest), "it has not tried since");
        assert_eq!(overdue(CLOCK_INTERVAL * 100, PAUSE.first), (false, true));
    }

    // Breaks if a busy connection tries more often than time permits, or never again.
    #[test]
    fn a_connection_that_is_left_to_time_tries_by_the_clock_alone() {
        let schedule = PromotionSchedule::new(0);
        schedule.record_try(0, begun(), Tries::default());
        schedule.leave_to_time();
        let soon = || begun() + (PAUSE.first - Duration::from_nanos(1));
        assert!((1..100_000).all(|n| !schedule.is_due(n, soon)));
        assert!(schedule.is_due(CLOCK_INTERVAL * 20_000, || begun() + PAUSE.first));
    }

    // Breaks if a connection that is never to try did so after a while, or if each operation read the clock.
    #[test]
    fn the_clock_is_read_rarely_and_never_before_the_first_attempt() {
        let late = || begun() + PAUSE.longest * 10;
        let never = PromotionSchedule::new(PromotionSchedule::NEVER);
        let ended = PromotionSchedule::new(0);
        ended.record_try(0, begun(), Tries::default());
        ended.end();
        for schedule in [never, ended] {
            assert!((0..100).all(|n| !schedule.is_due(n, || panic!("it reads the clock"))));
        }
        let active = PromotionSchedule::new(0);
        active.record_try(0, begun(), Tries::default());
        active.postpone(0, 1000);
        let checks = (1..=800).filter(|n| active.is_due(*n, late));
        assert_eq!(checks.count(), 100);
    }
}
