//! Spinning before a sleep: whether, and for how long.

mod choice;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use netacc_config::PollBudget;
use netacc_device::{Instant, MODERATION};
use parking_lot::Mutex;

use crate::os::clock::now;
use crate::os::deferral;
use choice::{Choice, Sample, Strategy, MAX_SPIN_NS};

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
    /// How long waits have spun.
    spun_ns: AtomicU64,
    /// Events that were found without a wait since the last sample.
    found: AtomicU64,
}

/// How long a wait spins while spinning is on trial: a peer that sleeps has to wake up meanwhile.
const TRIAL_SPIN_NS: u64 = 200_000;
/// A gap this long between two readings of the clock means that the thread was preempted, by another thread or below the
/// machine. The spin is over.
const PREEMPTED_NS: u64 = 30_000;
/// A gap this long means that it has lost a time slice to another thread. Arbitrary: less than the scheduler's slices of some
/// milliseconds, and more than what interrupts and hypervisors take.
const LOST_SLICE_NS: u64 = 1_000_000;

/// A wait that may spin before it sleeps.
pub struct Waiting<'a> {
    policy: &'a SpinPolicy,
    begun: Instant,
    strategy: Strategy,
    lost_slice: bool,
    /// How long it spins at most; zero before it spins.
    budget: u64,
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
            spun_ns: AtomicU64::new(0),
            found: AtomicU64::new(0),
        }
    }

    /// The program asked for events, and so many were there already. A process that is awake in time finds most of its events
    /// so, and one that sleeps finds them after its waits: without these events its waits would seem the cheaper ones.
    pub fn found(&self, events: usize) {
        if self.fixed_ns.is_none() {
            self.found.fetch_add(events as u64, Ordering::Relaxed);
        }
    }

    /// A wait begins.
    pub fn begin(&self, begun: Instant) -> Waiting<'_> {
        let strategy = if self.spins.load(Ordering::Relaxed) { Strategy::Spin } else { Strategy::Sleep };
        Waiting { policy: self, begun, strategy, lost_slice: false, budget: 0 }
    }

    /// Whether a wait that begins now sleeps at once, because sleeping is the better way lately.
    #[inline]
    pub fn sleeps_at_once(&self) -> bool {
        match self.fixed_ns {
            Some(ns) => ns == 0,
            None => !self.spins.load(Ordering::Relaxed),
        }
    }

    /// How many waits have begun with a spin, and how many without, and how long the spins were, by name in `netacc_ss -s cnt`.
    pub fn counted(&self) -> [(&'static str, u64); 3] {
        let [spun, slept] = &self.waits;
        [("waits_spun", spun), ("waits_slept", slept), ("spun_ns", &self.spun_ns)]
            .map(|(name, count)| (name, count.load(Ordering::Relaxed)))
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
        } else if average > MAX_SPIN_NS {
            0
        } else {
            (2 * average + 10_000).min(MAX_SPIN_NS)
        }
    }

    /// It sleeps at once, whatever the policy is.
    pub fn sleep(&mut self) {
        self.strategy = Strategy::Sleep;
        self.policy.waits[1].fetch_add(1, Ordering::Relaxed);
    }

    /// Spins until `done` returns true (true), or the budget or `deadline` is over (false).
    pub fn spin(&mut self, deadline: Option<Instant>, mut done: impl FnMut() -> bool) -> bool {
        let budget = self.budget();
        self.policy.waits[usize::from(budget == 0)].fetch_add(1, Ordering::Relaxed);
        self.budget = budget;
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
            if deferral::waits() {
                return false;
            }
            let t = now();
            if self.has_ended(t.saturating_since(last).as_nanos() as u64) {
                return done();
            }
            if t.saturating_since(self.begun).as_nanos() as u64 > budget || deadline.is_some_and(|d| t >= d) {
                return false;
            }
            last = t;
        }
    }

    /// Whether a gap between two readings of the clock ends the spin.
    fn has_ended(&mut self, gap: u64) -> bool {
        self.lost_slice |= gap > LOST_SLICE_NS;
        gap > PREEMPTED_NS && self.policy.fixed_ns.is_none()
    }

    /// The wait is over, and has brought so many events.
    pub fn end(self, events: usize) {
        self.end_at(now(), events);
    }

    fn end_at(self, now: Instant, events: usize) {
        let policy = self.policy;
        let waited = now.saturating_since(self.begun);
        policy.average(waited.as_nanos() as u64);
        policy.spun_ns.fetch_add(self.budget.min(waited.as_nanos() as u64), Ordering::Relaxed);
        if policy.fixed_ns.is_some() {
            return;
        }
        let Some(mut choice) = policy.choice.try_lock() else { return };
        let events = policy.found.swap(0, Ordering::Relaxed) + events as u64;
        choice.record(now, Sample { strategy: self.strategy, lost_slice: self.lost_slice, waited, events });
        policy.spins.store(choice.strategy() == Strategy::Spin, Ordering::Relaxed);
        policy.on_trial.store(choice.is_trial(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Two processes that answer each other, on a machine with a processor for each. Times are in nanoseconds.
    #[derive(Clone, Copy)]
    struct PingPong {
        /// From a message to its answer, where both processes are awake.
        exchange: u64,
        /// The wake-up of a sleeper.
        wake_up: u64,
        /// A spin is interrupted once in so many, for so long.
        interrupted: Option<(u32, u64)>,
    }

    /// Programs that do nothing but answer.
    const BARE: PingPong = PingPong { exchange: 1_000, wake_up: 50_000, interrupted: None };
    /// A server with some work for each request, where wake-ups are slow and spins are interrupted.
    const SERVED: PingPong = PingPong { exchange: 15_000, wake_up: 60_000, interrupted: Some((20, 60_000)) };

    impl PingPong {
        /// Returns the mean duration of the last hundred round trips.
        fn run(self, policies: [&SpinPolicy; 2], rounds: u32) -> u64 {
            let mut now = Instant::from_nanos(1_000_000_000);
            let mut begun = [now; 2];
            let mut hundred_before = now;
            for round in 0..rounds {
                if round == rounds - 100 {
                    hundred_before = now;
                }
                for (policy, begun) in policies.iter().zip(&mut begun) {
                    // A message comes for this process, which has waited since its last one.
                    now = now + Duration::from_nanos(self.exchange);
                    let mut waiting = policy.begin(*begun);
                    let waited = now.saturating_since(*begun).as_nanos() as u64;
                    let gap = self.interrupted.filter(|(every, _)| round % every == 0).map_or(0, |(_, gap)| gap);
                    if round > 0 && waited > waiting.budget() {
                        now = now + Duration::from_nanos(self.wake_up);
                    } else if waiting.has_ended(gap) {
                        now = now + Duration::from_nanos(gap + self.wake_up);
                    }
                    waiting.end_at(now, 1);
                    *begun = now;
                }
            }
            now.saturating_since(hundred_before).as_nanos() as u64 / 100
        }
    }

    fn sleeping() -> SpinPolicy {
        let policy = SpinPolicy::new(PollBudget::Adaptive);
        policy.average_ns.store(2 * BARE.wake_up, Ordering::Relaxed);
        policy.spins.store(false, Ordering::Relaxed);
        policy
    }

    // Breaks if two processes that sleep for each message go on like that, although both could spin: each finds its peer
    // asleep, so that its own spins end before the answer comes.
    #[test]
    fn two_sleepers_find_that_they_can_spin() {
        assert_eq!(BARE.run([&sleeping(), &sleeping()], 50_000), 2 * BARE.exchange);
    }

    // Breaks if one short interruption ends a trial of spinning, or if it must be as short with a peer that sleeps as with one
    // that does not.
    #[test]
    fn a_server_and_its_client_find_it_on_a_machine_that_interrupts_them() {
        let policies = [sleeping(), sleeping()];
        // The trials of the two do not coincide.
        policies[0].choice.lock().postpone(Duration::from_millis(10));
        let round_trip = SERVED.run(policies.each_ref(), 10_000);
        // A few of these round trips are interrupted.
        assert!(round_trip < 2 * SERVED.exchange + SERVED.wake_up / 2, "{round_trip} ns");
    }

    // Breaks if only the events at the ends of waits count: a sleeper finds all of a batch then, and a spinner the first of it.
    #[test]
    fn an_event_loop_that_sleeps_for_each_batch_finds_that_spinning_is_cheaper() {
        const BATCH: usize = 50;
        let policy = sleeping();
        let mut now = Instant::from_nanos(1_000_000_000);
        for _ in 0..10_000 {
            let waiting = policy.begin(now);
            let (waited, events) = match waiting.strategy {
                Strategy::Sleep => (63_000, BATCH),
                Strategy::Spin => (20_000, 1),
            };
            now = now + Duration::from_nanos(waited);
            waiting.end_at(now, events);
            // The work on an event takes 800 ns; the peer's next ones come meanwhile.
            now = now + Duration::from_nanos(800 * BATCH as u64);
            policy.found(BATCH - events);
        }
        assert_eq!(policy.begin(now).strategy, Strategy::Spin);
    }

    // Breaks if sleeps count as spins, or a spin that found nothing counts for longer than it lasted.
    #[test]
    fn spins_are_counted_by_their_length() {
        let policy = SpinPolicy::new(PollBudget::Fixed(Duration::from_micros(20)));
        let begun = Instant::from_nanos(1_000_000_000);
        let wait = |how: &dyn Fn(&mut Waiting<'_>), lasts: u64| {
            let mut waiting = policy.begin(begun);
            how(&mut waiting);
            waiting.end_at(begun + Duration::from_nanos(lasts), 1);
            policy.counted()
        };
        let spun = [("waits_spun", 1), ("waits_slept", 0), ("spun_ns", 5_000)];
        assert_eq!(wait(&|waiting| assert!(waiting.spin(None, || true)), 5_000), spun);
        // It spins for 20 us, and sleeps for the rest.
        let slept_too = [("waits_spun", 2), ("waits_slept", 0), ("spun_ns", 25_000)];
        assert_eq!(wait(&|waiting| assert!(!waiting.spin(Some(begun), || false)), 900_000), slept_too);
        let slept = [("waits_spun", 2), ("waits_slept", 1), ("spun_ns", 25_000)];
        assert_eq!(wait(&|waiting| waiting.sleep(), 900_000), slept);
    }

    #[test]
    fn two_spinners_stay_awake() {
        let policies = [(); 2].map(|()| SpinPolicy::new(PollBudget::Adaptive));
        assert_eq!(BARE.run(policies.each_ref(), 50_000), 2 * BARE.exchange);
    }
}
