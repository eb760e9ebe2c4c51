//! Spinning: for how long, and when not at all.

use std::sync::atomic::{AtomicU64, Ordering};

use netacc_config::PollBudget;
use netacc_device::{Instant, MODERATION};

use crate::os::clock::now;

/// How long to spin before sleeping.
///
/// Adaptive: an average of how long recent waits took, spinning and sleeping alike. Short waits are worth a spin
/// somewhat longer than they take; long ones are not worth any. A spinner that notices it was preempted (more
/// runnable threads than processors) stops spinning for a while.
pub struct SpinPolicy {
    fixed_ns: Option<u64>,
    average_ns: AtomicU64,
    crowded_until_ns: AtomicU64,
}

/// Longest adaptive spin. Arbitrary: about what a sleep and a wake-up cost on a slow machine.
const MAX_SPIN_NS: u64 = 50_000;
/// Waits longer than this do not pay for spinning.
const WORTH_NS: u64 = 40_000;
/// A gap this long between two looks at the clock means that the thread was preempted.
const PREEMPTED_NS: u64 = 30_000;
/// Longest time spent yielding before a sleep. Arbitrary: several time slices of threads that do little at a time.
const YIELD_NS: u64 = 200_000;
/// How long not to spin after a preemption.
const CROWDED_NS: u64 = 5_000_000;

impl SpinPolicy {
    /// From the configuration.
    pub fn new(budget: PollBudget) -> SpinPolicy {
        SpinPolicy {
            fixed_ns: match budget {
                PollBudget::Adaptive => None,
                PollBudget::Fixed(d) => Some(d.as_nanos() as u64),
            },
            average_ns: AtomicU64::new(10_000),
            crowded_until_ns: AtomicU64::new(0),
        }
    }

    /// Nanoseconds to spin in a wait that begins now.
    pub fn budget(&self, now: Instant) -> u64 {
        if let Some(ns) = self.fixed_ns {
            return ns;
        }
        if now.as_nanos() < self.crowded_until_ns.load(Ordering::Relaxed) {
            return 0;
        }
        let average = self.average_ns.load(Ordering::Relaxed);
        if average > WORTH_NS {
            0
        } else {
            (2 * average + 10_000).min(MAX_SPIN_NS)
        }
    }

    fn is_crowded(&self, now: Instant) -> bool {
        self.fixed_ns.is_none()
            && now.as_nanos() < self.crowded_until_ns.load(Ordering::Relaxed)
            && self.average_ns.load(Ordering::Relaxed) < YIELD_NS
    }

    /// More threads want to run than there are processors: let them, and look again afterwards. Cheaper than being
    /// put to sleep and woken, and what they send meanwhile arrives in one batch.
    fn yield_until(&self, begun: Instant, deadline: Option<Instant>, mut done: impl FnMut() -> bool) -> bool {
        loop {
            // SAFETY: no arguments.
            unsafe { libc::sched_yield() };
            if done() {
                return true;
            }
            let t = now();
            if t.saturating_since(begun).as_nanos() as u64 > YIELD_NS || deadline.is_some_and(|d| t >= d) {
                return false;
            }
        }
    }

    /// Whether waits are short lately: one that begins now is worth a second system call if it turns out to be long.
    pub fn is_busy(&self) -> bool {
        self.average_ns.load(Ordering::Relaxed) < MODERATION.as_nanos() as u64 / 4
    }

    /// A wait took this long.
    pub fn record(&self, waited_ns: u64) {
        let average = self.average_ns.load(Ordering::Relaxed);
        let sample = waited_ns.min(1_000_000);
        self.average_ns.store(average - average / 8 + sample / 8, Ordering::Relaxed);
    }

    /// The spinner was preempted.
    fn crowded(&self, now: Instant) {
        self.crowded_until_ns.store(now.as_nanos() + CROWDED_NS, Ordering::Relaxed);
    }

    /// Spins until `done` says so (true), or the budget or `deadline` is over (false).
    pub fn spin(&self, begun: Instant, deadline: Option<Instant>, mut done: impl FnMut() -> bool) -> bool {
        let budget = self.budget(begun);
        if budget == 0 {
            return done() || self.is_crowded(begun) && self.yield_until(begun, deadline, done);
        }
        let mut last = begun;
        loop {
            for _ in 0..8 {
                if done() {
                    return true;
                }
                std::hint::spin_loop();
            }
            let t = now();
            let gap = t.saturating_since(last).as_nanos() as u64;
            if gap > PREEMPTED_NS && self.fixed_ns.is_none() {
                self.crowded(t);
                return done();
            }
            if t.saturating_since(begun).as_nanos() as u64 > budget || deadline.is_some_and(|d| t >= d) {
                return false;
            }
            last = t;
        }
    }
}
