//! Spinning before a sleep: whether, and for how long.

mod choice;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use netacc_config::PollBudget;
use netacc_device::{Instant, MODERATION};
use parking_lot::Mutex;

use crate::os::clock::now;
use choice::{Choice, Sample, Strategy, WORTH_NS};

/// How the process' threads wait.
///
/// Adaptive in two ways. Whether waits spin at all is a [`Choice`] by what spinning and sleeping have cost lately. How long
/// they spin follows an average of how long recent waits took, spinning and sleeping alike: short waits are worth a spin
/// somewhat longer than they take; long ones are not worth any.
pub struct SpinPolicy {
    fixed_ns: Option<u64>,
    average_ns: AtomicU64,
    /// The decision of `choice`.
    spins: AtomicBool,
    /// Spinning is on trial.
    on_trial: AtomicBool,
    /// Samples that find it locked are left out.
    choice: Mutex<Choice>,
    /// Waits that were to spin, and waits that were to sleep at once.
    waits: [AtomicU64; 2],
}

/// Longest adaptive spin. Arbitrary: about what a sleep and a wake-up cost on a slow machine.
const MAX_SPIN_NS: u64 = 120_000;
/// How long a wait spins while spinning is on trial: a peer that sleeps has to wake up meanwhile.
const TRIAL_SPIN_NS: u64 = 200_000;
/// A gap this long between two readings of the clock means that the thread was preempted.
const PREEMPTED_NS: u64 = 30_000;

/// A wait that may spin before it sleeps.
pub struct Waiting<'a> {
    policy: &'a SpinPolicy,
    begun: Instant,
    strategy: Strategy,
    was_preempted: bool,
}

impl SpinPolicy {
    /// From the configuration.
    pub fn new(budget: PollBudget) -> SpinPolicy {
        SpinPolicy {
            fixed_ns: match budget {
                PollBudget::Adaptive => None,
                PollBudget::Fixed(d) => Some(d.as_nanos() as u64),
            },
            average_ns: AtomicU64::new(10_000),
            spins: AtomicBool::new(true),
            on_trial: AtomicBool::new(false),
            choice: Mutex::new(Choice::new()),
            waits: Default::default(),
        }
    }

    /// A wait begins.
    pub fn begin(&self, begun: Instant) -> Waiting<'_> {
        let strategy = if self.spins.load(Ordering::Relaxed) { Strategy::Spin } else { Strategy::Sleep };
        Waiting { policy: self, begun, strategy, was_preempted: false }
    }

    /// How many waits have begun with a spin, and how many without, by name in `netacc_ss -s cnt`.
    pub fn counted(&self) -> [(&'static str, u64); 2] {
        let [spun, slept] = &self.waits;
        [("waits_spun", spun.load(Ordering::Relaxed)), ("waits_slept", slept.load(Ordering::Relaxed))]
    }

    /// Whether waits are short lately: one that begins now is worth a second system call if it turns out to be long.
    pub fn is_busy(&self) -> bool {
        self.average_ns.load(Ordering::Relaxed) < MODERATION.as_nanos() as u64 / 4
    }

    fn average(&self, waited_ns: u64) {
        let average = self.average_ns.load(Ordering::Relaxed);
        let sample = waited_ns.min(1_000_000);
        self.average_ns.store(average - average / 8 + sample / 8, Ordering::Relaxed);
    }
}

impl Waiting<'_> {
    /// Nanoseconds to spin.
    fn budget(&self) -> u64 {
        if let Some(ns) = self.policy.fixed_ns {
            return ns;
        }
        let average = self.policy.average_ns.load(Ordering::Relaxed);
        if self.strategy == Strategy::Sleep {
            0
        } else if self.policy.on_trial.load(Ordering::Relaxed) {
            // Two sleepers wait for each other's wake-ups, so their average says nothing about spinning.
            TRIAL_SPIN_NS
        } else if average > WORTH_NS {
            0
        } else {
            (2 * average + 10_000).min(MAX_SPIN_NS)
        }
    }

    /// Spins until `done` returns true (true), or the budget or `deadline` is over (false).
    pub fn spin(&mut self, deadline: Option<Instant>, mut done: impl FnMut() -> bool) -> bool {
        let budget = self.budget();
        self.policy.waits[usize::from(budget == 0)].fetch_add(1, Ordering::Relaxed);
        if budget == 0 {
            return done();
        }
        let mut last = self.begun;
        loop {
            for _ in 0..8 {
                if done() {
                    return true;
                }
                std::hint::spin_loop();
            }
            let t = now();
            let gap = t.saturating_since(last).as_nanos() as u64;
            if gap > PREEMPTED_NS && self.policy.fixed_ns.is_none() {
                self.was_preempted = true;
                return done();
            }
            if t.saturating_since(self.begun).as_nanos() as u64 > budget || deadline.is_some_and(|d| t >= d) {
                return false;
            }
            last = t;
        }
    }

    /// The wait is over, and has brought so many events.
    pub fn end(self, events: usize) {
        self.end_at(now(), events);
    }

    fn end_at(self, now: Instant, events: usize) {
        let policy = self.policy;
        let waited = now.saturating_since(self.begun);
        policy.average(waited.as_nanos() as u64);
        if policy.fixed_ns.is_some() {
            return;
        }
        let Some(mut choice) = policy.choice.try_lock() else { return };
        choice.record(
            now,
            Sample { strategy: self.strategy, was_preempted: self.was_preempted, waited, events: events as u32 },
        );
        policy.spins.store(choice.strategy() == Strategy::Spin, Ordering::Relaxed);
        policy.on_trial.store(choice.is_trial(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Nanoseconds from a message to an answer, where both processes are awake; the wake-up of a sleeper takes as long.
    const EXCHANGE_NS: u64 = 1_000;
    const WAKE_UP_NS: u64 = 50_000;

    /// Two processes that answer each other, on a machine with a processor for each. Returns the duration of a
    /// round trip at the end, in nanoseconds.
    fn ping_pong(policies: [&SpinPolicy; 2], rounds: u32) -> u64 {
        let mut now = Instant::from_nanos(1_000_000_000);
        let mut begun = [now; 2];
        let mut round_trip = 0;
        for round in 0..rounds {
            let from = now;
            for (policy, begun) in policies.iter().zip(&mut begun) {
                // A message comes for this process, which has waited since its last one.
                now = now + Duration::from_nanos(EXCHANGE_NS);
                let waiting = policy.begin(*begun);
                if round > 0 && now.saturating_since(*begun).as_nanos() as u64 > waiting.budget() {
                    now = now + Duration::from_nanos(WAKE_UP_NS);
                }
                waiting.end_at(now, 1);
                *begun = now;
            }
            round_trip = now.saturating_since(from).as_nanos() as u64;
        }
        round_trip
    }

    fn sleeping() -> SpinPolicy {
        let policy = SpinPolicy::new(PollBudget::Adaptive);
        policy.average_ns.store(2 * WAKE_UP_NS, Ordering::Relaxed);
        policy
    }

    // Breaks if two processes that sleep for each message go on like that, although both could spin: each finds its peer
    // asleep, so that its own spins end before the answer comes.
    #[test]
    fn two_sleepers_find_that_they_can_spin() {
        assert_eq!(ping_pong([&sleeping(), &sleeping()], 50_000), 2 * EXCHANGE_NS);
    }

    #[test]
    fn two_spinners_stay_awake() {
        let policies = [(); 2].map(|()| SpinPolicy::new(PollBudget::Adaptive));
        assert_eq!(ping_pong(policies.each_ref(), 50_000), 2 * EXCHANGE_NS);
    }
}
