//! The choice of the cheaper way of waiting: to spin before a sleep, or to sleep at once.
//!
//! On a machine with a free processor a spinner sees an event within a microsecond, and a sleeper has to be woken. On a
//! busy machine a spinner stands in the way of its own peer, or loses its time slice, and a sleeper is put before
//! threads that compute. No figure of the system distinguishes these two machines, with a quota or a low priority
//! either. So both ways are tried, and the waiting time for each event decides.
//!
//! Invariant: the way that is not in use is tried for at most one [`WINDOW`] (or until one spin is preempted) in each
//! interval. Each way has an interval of its own, which doubles, or more, as long as that way loses: how long sleeping has been the
//! worse one says nothing about how soon spinning is worth a trial. Spinning that has won is tried as soon as at first, once it is not in use;
//! sleeping is tried as rarely as before, unless spins cost more than it did.

use netacc_device::Instant;
use std::time::Duration;

/// A way to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strategy {
    /// Spin, then sleep.
    Spin,
    /// Sleep at once.
    Sleep,
}

impl Strategy {
    fn other(self) -> Strategy {
        match self {
            Strategy::Spin => Strategy::Sleep,
            Strategy::Sleep => Strategy::Spin,
        }
    }
}

/// One wait that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// The way in which the wait began.
    pub(super) strategy: Strategy,
    /// Whether a spin in it has lost a time slice.
    pub(super) lost_slice: bool,
    pub(super) waited: Duration,
    /// How many events it brought, with those that the program has found without a wait since the wait before.
    pub(super) events: u64,
}

/// Waits are compared over at least this long. Arbitrary: more than a time slice of the kernel's scheduler.
const WINDOW: Duration = Duration::from_millis(4);
/// And at least over this many waits. Arbitrary.
const WAITS: u64 = 32;
/// After so many waits a trial ends that is far behind. Arbitrary.
const FEW_WAITS: u64 = 8;
/// A wait that takes longer shows that no peer had anything to send. Arbitrary: longer than several time slices.
const IDLE: Duration = Duration::from_millis(10);
/// How soon the other way is tried, first and at the latest. Arbitrary: the latter makes a lost time slice in each trial
/// cost less than 1 %.
const RETRY: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// Waits that take longer do not pay for spinning, unless they are clearly shorter than those that sleep: then the peer has to
/// be woken each time, and will not have to if it spins, too. Arbitrary: about the wake-up of a sleeper in virtual machines.
const WORTH_NS: u64 = 80_000;
/// Waits that take longer never pay for spinning. Arbitrary: about what a sleep and a wake-up cost on a slow machine.
pub(super) const MAX_SPIN_NS: u64 = 120_000;
/// A sleep and a wake-up cost at least this much, so that spins below it are not compared. Arbitrary: about what two system
/// calls and two switches of context take.
const SLEEP_FLOOR_NS: u64 = 2_500;

/// The measurements of the two ways.
#[derive(Debug)]
pub(super) struct Choice {
    in_use: Strategy,
    phase: Phase,
    /// Nanoseconds waited an event.
    spin_ns: Option<u64>,
    sleep_ns: Option<u64>,
    window: Window,
    decided_at: Instant,
    /// How long spinning is not tried while the process sleeps, and the reverse.
    spin_interval: Duration,
    sleep_interval: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The way in use was the better one.
    Decided,
    /// The way in use is compared with the other one.
    Trial,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    begun: Instant,
    waited_ns: u64,
    waits: u64,
    events: u64,
}

impl Window {
    fn new(begun: Instant) -> Window {
        Window { begun, waited_ns: 0, waits: 0, events: 0 }
    }
}

impl Choice {
    pub(super) const fn new() -> Choice {
        let begun = Instant::ZERO;
        Choice {
            in_use: Strategy::Spin,
            phase: Phase::Decided,
            spin_ns: None,
            sleep_ns: None,
            window: Window { begun, waited_ns: 0, waits: 0, events: 0 },
            decided_at: begun,
            spin_interval: RETRY,
            sleep_interval: RETRY,
        }
    }

    /// How to wait next.
    pub(super) fn strategy(&self) -> Strategy {
        self.in_use
    }

    /// Whether the way in use is on trial.
    pub(super) fn is_trial(&self) -> bool {
        self.phase == Phase::Trial
    }

    /// A wait ended at `now`.
    pub(super) fn record(&mut self, now: Instant, sample: Sample) {
        if sample.strategy != self.in_use || sample.waited > IDLE && !sample.lost_slice {
            return;
        }
        self.window.waited_ns += sample.waited.as_nanos() as u64;
        self.window.waits += 1;
        self.window.events += sample.events.max(1);
        let is_lost = self.phase == Phase::Trial && (sample.lost_slice || self.is_far_behind());
        let is_short = self.window.waits < WAITS || now.saturating_since(self.window.begun) < WINDOW;
        if is_short && !is_lost {
            return;
        }
        let Window { waited_ns, waits, events, .. } = std::mem::replace(&mut self.window, Window::new(now));
        let cost = waited_ns / events;
        match self.in_use {
            Strategy::Spin => self.spin_ns = Some(cost),
            Strategy::Sleep => self.sleep_ns = Some(cost),
        }
        match self.phase {
            Phase::Trial if !is_lost && self.is_better(cost) => {
                // If the peer does not begin to spin, this has not been worth it. Sleeping is tried soon in any case once spins
                // cost more than it does: that it has won once, perhaps against a spin that was held up, is no reason to do so.
                if self.in_use == Strategy::Spin && cost <= WORTH_NS {
                    self.spin_interval = RETRY;
                }
                self.decide(now);
            }
            Phase::Trial => self.give_up(now, if sample.lost_slice { 4 } else { 2 }),
            // Such waits do not spin, or in vain. Spinning is on trial again later, and for longer.
            Phase::Decided if self.in_use == Strategy::Spin && self.is_worthless(cost) => self.give_up(now, 2),
            Phase::Decided if self.is_due(cost, waited_ns / waits, now) => {
                self.in_use = self.in_use.other();
                self.phase = Phase::Trial;
            }
            Phase::Decided => {
                if self.in_use == Strategy::Spin && cost <= WORTH_NS && self.is_better(cost) {
                    self.spin_interval = RETRY;
                }
            }
        }
    }

    /// The way in use has lost: the other one is used from now on, and for so many times as long as when this one has lost before.
    /// Trials that have cost a time slice are made less soon.
    fn give_up(&mut self, now: Instant, times: u32) {
        let interval = self.interval_of_use();
        *interval = (times * *interval).min(RETRY_MAX);
        self.in_use = self.in_use.other();
        self.decide(now);
    }

    /// How long the way in use is not tried once it has lost.
    fn interval_of_use(&mut self) -> &mut Duration {
        match self.in_use {
            Strategy::Spin => &mut self.spin_interval,
            Strategy::Sleep => &mut self.sleep_interval,
        }
    }

    /// Whether a few events on trial have cost far more than the other way does: the trial need not last longer.
    fn is_far_behind(&self) -> bool {
        // A few spins may have lost much by chance. Sleeps take longer by the wake-up, each of them.
        let (other, times) = match self.in_use {
            Strategy::Spin => (self.sleep_ns, 4),
            Strategy::Sleep => (self.spin_ns, 2),
        };
        let cost = self.window.waited_ns / self.window.events.max(1);
        let is_worthless = self.in_use == Strategy::Spin && self.is_worthless(cost);
        self.window.waits >= FEW_WAITS && (is_worthless || other.is_some_and(|other| cost > times * other))
    }

    /// Whether spins of this cost are not worth the processor's time.
    fn is_worthless(&self, cost: u64) -> bool {
        let saves = self.sleep_ns.is_some_and(|sleep| 4 * cost <= 3 * sleep);
        cost > MAX_SPIN_NS || cost > WORTH_NS && !saves
    }

    /// Whether the way on trial, at this cost, beats the other one. Sleeping must win clearly, because a spinner's
    /// answers come sooner than the cost of its waits shows, if its peer sends at a rate of its own.
    fn is_better(&self, cost: u64) -> bool {
        match self.in_use {
            Strategy::Spin => !self.is_worthless(cost) && self.sleep_ns.is_none_or(|sleep| cost <= sleep),
            Strategy::Sleep => self.spin_ns.is_none_or(|spin| cost <= spin - spin / 10),
        }
    }

    /// Whether the other way is to be tried: its time has come, or spins cost clearly more than sleeps did. `cost` is that of
    /// an event, `wait` the mean duration of a wait, in nanoseconds.
    fn is_due(&self, cost: u64, wait: u64, now: Instant) -> bool {
        match self.in_use {
            Strategy::Sleep => now >= self.decided_at + self.spin_interval,
            Strategy::Spin if wait <= SLEEP_FLOOR_NS => false,
            Strategy::Spin => {
                let is_worse = self.sleep_ns.is_some_and(|sleep| cost > 2 * sleep);
                now >= self.decided_at + self.sleep_interval || is_worse && now >= self.decided_at + RETRY
            }
        }
    }

    /// Makes the interval longer until the other way is tried.
    #[cfg(test)]
    pub(super) fn postpone(&mut self, by: Duration) {
        self.spin_interval += by;
        self.sleep_interval += by;
    }

    fn decide(&mut self, now: Instant) {
        self.phase = Phase::Decided;
        self.window = Window::new(now);
        self.decided_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine: the time of a wait by each way. A spin is preempted once in so many, for so long.
    struct Machine {
        spin_ns: u64,
        sleep_ns: u64,
        preempted: Option<(u64, u64)>,
    }

    const IDLE_MACHINE: Machine = Machine { spin_ns: 500, sleep_ns: 6_000, preempted: None };
    const BUSY_MACHINE: Machine = Machine { spin_ns: 50_000, sleep_ns: 6_000, preempted: Some((20, 3_000_000)) };

    struct Run {
        now: u64,
        /// Nanoseconds spent by strategy: spin, sleep.
        spent: [u64; 2],
    }

    fn run(choice: &mut Choice, machine: &Machine, begun: u64, lasting: Duration) -> Run {
        let mut run = Run { now: begun, spent: [0; 2] };
        let mut spins = 0;
        while run.now < begun + lasting.as_nanos() as u64 {
            let strategy = choice.strategy();
            let mut waited = match strategy {
                Strategy::Spin => machine.spin_ns,
                Strategy::Sleep => machine.sleep_ns,
            };
            let mut lost_slice = false;
            if let Some((every, slice)) = machine.preempted.filter(|_| strategy == Strategy::Spin) {
                spins += 1;
                lost_slice = spins % every == 0;
                waited += if lost_slice { slice } else { 0 };
            }
            run.spent[strategy as usize] += waited;
            run.now += waited + 500;
            let waited = Duration::from_nanos(waited);
            choice.record(Instant::from_nanos(run.now), Sample { strategy, lost_slice, waited, events: 1 });
        }
        run
    }

    const SECONDS: Duration = Duration::from_secs(10);

    #[test]
    fn an_idle_machine_spins_always() {
        let run = run(&mut Choice::new(), &IDLE_MACHINE, 0, SECONDS);
        assert_eq!(run.spent[Strategy::Sleep as usize], 0);
    }

    #[test]
    fn a_busy_machine_loses_less_than_a_hundredth_by_spins() {
        let mut choice = Choice::new();
        let start = run(&mut choice, &BUSY_MACHINE, 0, SECONDS);
        let run = run(&mut choice, &BUSY_MACHINE, start.now, SECONDS);
        let [spin, sleep] = run.spent;
        assert!(spin * 100 < sleep, "{spin} ns spinning, {sleep} ns asleep");
    }

    #[test]
    fn a_machine_that_becomes_idle_spins_again_within_two_intervals() {
        let mut choice = Choice::new();
        let busy = run(&mut choice, &BUSY_MACHINE, 0, SECONDS);
        let change = run(&mut choice, &IDLE_MACHINE, busy.now, 2 * RETRY_MAX);
        let after = run(&mut choice, &IDLE_MACHINE, change.now, SECONDS);
        assert_eq!(after.spent[Strategy::Sleep as usize], 0);
    }

    // Breaks if a process that has spun for long, and loses some time slices to a thread that seldom runs, sleeps for as long
    // as it has not tried to.
    #[test]
    fn rare_interruptions_do_not_end_spinning() {
        let idle = Machine { spin_ns: 8_000, sleep_ns: 60_000, preempted: None };
        let interrupted = Machine { preempted: Some((3, 3_000_000)), ..idle };
        let mut choice = Choice::new();
        let mut end = run(&mut choice, &idle, 0, SECONDS).now;
        let mut spent = [0; 2];
        for _ in 0..20 {
            for (machine, ms) in [(&interrupted, 10), (&idle, 490)] {
                let run = run(&mut choice, machine, end, Duration::from_millis(ms));
                end = run.now;
                spent = [spent[0] + run.spent[0], spent[1] + run.spent[1]];
            }
        }
        let [spin, sleep] = spent;
        assert!(sleep * 10 < spin, "{spin} ns spinning, {sleep} ns asleep");
    }

    // Breaks if a trial of sleeping lasts although a few sleeps show that it is the worse way: an event loop that found its
    // events awake spent a thirtieth of its time so, and had its slowest answers then.
    #[test]
    fn sleeps_that_cost_twice_as_much_are_few() {
        let machine = Machine { spin_ns: 8_000, sleep_ns: 20_000, preempted: None };
        let [_, sleep] = run(&mut Choice::new(), &machine, 0, SECONDS).spent;
        let trials = (SECONDS.as_nanos() / RETRY_MAX.as_nanos()) as u64
            + u64::from((RETRY_MAX.as_nanos() / RETRY.as_nanos()).ilog2())
            + 2;
        assert!(sleep / machine.sleep_ns <= trials * FEW_WAITS, "{} sleeps", sleep / machine.sleep_ns);
    }

    // Breaks if sleeping is tried as often as at first each time that it has won against spins that something held up for a moment.
    #[test]
    fn a_spin_that_is_held_up_changes_little() {
        let machine = Machine { spin_ns: 8_000, sleep_ns: 20_000, preempted: None };
        let held_up = Machine { spin_ns: 60_000, ..machine };
        let mut choice = Choice::new();
        let mut end = run(&mut choice, &machine, 0, SECONDS).now;
        let interval = choice.sleep_interval;
        for _ in 0..10 {
            for (machine, lasting) in [(&held_up, Duration::from_millis(10)), (&machine, Duration::from_millis(1_000))]
            {
                end = run(&mut choice, machine, end, lasting).now;
            }
            assert_eq!(choice.strategy(), Strategy::Spin);
        }
        assert!(choice.sleep_ns.is_some() && choice.sleep_interval >= interval, "{choice:?}");
    }

    #[test]
    fn a_machine_that_becomes_busy_sleeps_within_a_tenth_of_a_second() {
        let mut choice = Choice::new();
        let idle = run(&mut choice, &IDLE_MACHINE, 0, SECONDS);
        run(&mut choice, &BUSY_MACHINE, idle.now, Duration::from_millis(100));
        assert_eq!(choice.strategy(), Strategy::Sleep);
    }

    #[test]
    fn spins_that_are_never_preempted_are_compared_too() {
        // The peer runs on the same processor, and only once the spinner sleeps.
        let one_processor = Machine { spin_ns: 56_000, sleep_ns: 6_000, preempted: None };
        let mut choice = Choice::new();
        let start = run(&mut choice, &one_processor, 0, SECONDS);
        let [spin, sleep] = run(&mut choice, &one_processor, start.now, SECONDS).spent;
        assert!(spin * 100 < sleep, "{spin} ns spinning, {sleep} ns asleep");
    }

    // Breaks if a process whose peer takes its time spins in vain for more than a hundredth of the time.
    #[test]
    fn long_waits_are_slept_through() {
        let slow_peer = Machine { spin_ns: 1_000_000, sleep_ns: 1_050_000, preempted: None };
        let mut choice = Choice::new();
        let start = run(&mut choice, &slow_peer, 0, SECONDS);
        let [spin, sleep] = run(&mut choice, &slow_peer, start.now, SECONDS).spent;
        assert!(spin * 100 < sleep, "{spin} ns spinning, {sleep} ns asleep");
    }

    #[test]
    fn pauses_of_the_peer_decide_nothing() {
        let mut choice = Choice::new();
        let waited = Duration::from_millis(50);
        for i in 0..1_000u64 {
            let strategy = choice.strategy();
            choice
                .record(Instant::from_nanos(i * 50_000_000), Sample { strategy, lost_slice: false, waited, events: 1 });
        }
        assert_eq!(choice.strategy(), Strategy::Spin);
        assert_eq!(choice.spin_ns, None);
    }
}
