//! The choice when the short connections to a service ask for links: early, as other connections do, or so late that
//! most of them never do.
//!
//! A link costs both helper threads some work, and pays for it within a few requests if processors are free to do that
//! work beside the program. No figure of the system shows in advance whether they are, so both are tried, and the time that
//! connections live decides: programs that open one short connection after the other wait for its answers.
//!
//! Connections of fewer than [`FEW_CALLS`] calls are not timed, and stay on TCP: there a link is ready only when they end.
//!
//! Invariant: the choice that is not in use is tried for at most one window in each interval, which doubles as long as it
//! loses.

use std::net::SocketAddr;
use std::time::Duration;

use netacc_device::Instant;
use parking_lot::Mutex;

use crate::lifetimes::{slot_of, SLOTS};

/// Connections with fewer calls stay on TCP. Arbitrary: about as many as are made while a link is requested and made.
pub const FEW_CALLS: u32 = 8;
/// The lives of so many connections are compared, over at least this time. Arbitrary.
const CONNECTIONS: u32 = 32;
const WINDOW: Duration = Duration::from_millis(4);
/// After so many a trial ends that is far behind. Arbitrary.
const FEW: u32 = 8;
/// A longer life shows that the program has left its connection alone. Arbitrary.
const IDLE: Duration = Duration::from_millis(10);
/// Making and closing a connection count as so many calls. Arbitrary: about as many system calls of both ends.
const MAKING: u64 = 4;
/// How soon the other choice is tried, first and at the latest. Arbitrary: in five seconds it is a hundredth of the
/// connections, or less, that are made in a trial.
const RETRY: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// When a connection asks for its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// After as many calls as one that may be long.
    Early,
    /// Once it has shown that it is not short.
    Late,
}

/// The choices, by service. Services that share a slot are taken for one, as in [`lifetimes`](crate::lifetimes).
#[derive(Debug)]
pub struct Asking {
    /// [`SLOTS`] of them. Not in the process's state itself, which is made on the stack: a program may have given a forked child
    /// a small one.
    slots: Box<[Mutex<Choice>]>,
}

/// A connection that is timed.
#[derive(Debug)]
pub struct Timed {
    ask: Ask,
    begun: Instant,
}

impl Timed {
    /// When it asks for its link.
    pub fn ask(&self) -> Ask {
        self.ask
    }
}

impl Default for Asking {
    fn default() -> Asking {
        Asking { slots: (0..SLOTS).map(|_| Mutex::new(Choice::new())).collect() }
    }
}

impl Asking {
    /// A short connection to `service` is made at `now`. `None`: another thread has the choice, and this connection asks late.
    pub fn begin(&self, service: &SocketAddr, now: Instant) -> Option<Timed> {
        let choice = self.slots[slot_of(service)].try_lock()?;
        Some(Timed { ask: choice.in_use, begun: now })
    }

    /// It has ended at `now`, after so many calls.
    pub fn end(&self, service: &SocketAddr, timed: &Timed, now: Instant, calls: u64) {
        if let Some(mut choice) = self.slots[slot_of(service)].try_lock() {
            choice.record(now, timed.ask, now.saturating_since(timed.begun), calls);
        }
    }
}

/// The measurements of one service's connections.
#[derive(Debug)]
struct Choice {
    in_use: Ask,
    phase: Phase,
    /// Nanoseconds of life for each call.
    early_ns: Option<u64>,
    late_ns: Option<u64>,
    window: Window,
    decided_at: Instant,
    interval: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The choice in use was the better one.
    Decided,
    /// It is compared with the other one.
    Trial,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    begun: Instant,
    connections: u32,
    lived_ns: u64,
    calls: u64,
}

impl Window {
    const fn new(begun: Instant) -> Window {
        Window { begun, connections: 0, lived_ns: 0, calls: 0 }
    }

    fn cost(&self) -> u64 {
        self.lived_ns / self.calls.max(1)
    }
}

impl Choice {
    const fn new() -> Choice {
        Choice {
            in_use: Ask::Late,
            phase: Phase::Decided,
            early_ns: None,
            late_ns: None,
            window: Window::new(Instant::ZERO),
            decided_at: Instant::ZERO,
            interval: RETRY,
        }
    }

    /// A connection that has asked so has ended.
    fn record(&mut self, now: Instant, ask: Ask, lived: Duration, calls: u64) {
        // A program that leaves its connections alone gains nothing by links; but that a link has stalled counts against it.
        if ask != self.in_use || lived > IDLE && ask == Ask::Late {
            return;
        }
        if self.window.connections == 0 {
            self.window.begun = now;
        }
        self.window.connections += 1;
        self.window.lived_ns += lived.min(IDLE).as_nanos() as u64;
        self.window.calls += calls + MAKING;
        let is_full = self.window.connections >= CONNECTIONS && now.saturating_since(self.window.begun) >= WINDOW;
        if is_full || self.phase == Phase::Trial && self.is_far_behind() {
            self.end_window(now);
        }
    }

    fn end_window(&mut self, now: Instant) {
        let cost = std::mem::replace(&mut self.window, Window::new(now)).cost();
        match self.in_use {
            Ask::Early => self.early_ns = Some(cost),
            Ask::Late => self.late_ns = Some(cost),
        }
        match self.phase {
            Phase::Trial => {
                let wins = self.better() == self.in_use;
                self.interval = if wins { RETRY } else { (2 * self.interval).min(RETRY_MAX) };
                self.in_use = self.better();
                self.phase = Phase::Decided;
                self.decided_at = now;
            }
            Phase::Decided if now >= self.decided_at + self.interval || self.has_worsened() => {
                self.in_use = match self.in_use {
                    Ask::Early => Ask::Late,
                    Ask::Late => Ask::Early,
                };
                self.phase = Phase::Trial;
            }
            Phase::Decided => {}
        }
    }

    /// The better choice, as far as measured. Links must win clearly, because they take processor time of other threads.
    fn better(&self) -> Ask {
        match (self.early_ns, self.late_ns) {
            (Some(early), Some(late)) if early <= late - late / 10 => Ask::Early,
            _ => Ask::Late,
        }
    }

    /// Whether a few connections on trial have cost far more than the others did.
    fn is_far_behind(&self) -> bool {
        let other = match self.in_use {
            Ask::Early => self.late_ns,
            Ask::Late => self.early_ns,
        };
        self.window.connections >= FEW && other.is_some_and(|other| self.window.cost() > other + other / 2)
    }

    /// Whether links, which are in use, cost more than TCP did. The other way round nothing is known: TCP may be slower because the
    /// program waits.
    fn has_worsened(&self) -> bool {
        self.in_use == Ask::Early && self.better() == Ask::Late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine: how long connections of twenty calls live, in microseconds.
    #[derive(Clone, Copy)]
    struct Machine {
        early_us: u64,
        late_us: u64,
    }

    const IDLE_MACHINE: Machine = Machine { early_us: 250, late_us: 400 };
    const BUSY_MACHINE: Machine = Machine { early_us: 900, late_us: 600 };
    const CALLS: u64 = 20;

    fn service() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 1))
    }

    struct Run {
        now: Instant,
        early: u32,
        late: u32,
    }

    /// Connections one after the other.
    fn run(asking: &Asking, machine: Machine, begun: Instant, lasting: Duration) -> Run {
        let mut run = Run { now: begun, early: 0, late: 0 };
        while run.now < begun + lasting {
            let timed = asking.begin(&service(), run.now).expect("no other thread");
            let us = match timed.ask() {
                Ask::Early => {
                    run.early += 1;
                    machine.early_us
                }
                Ask::Late => {
                    run.late += 1;
                    machine.late_us
                }
            };
            run.now = run.now + Duration::from_micros(us);
            asking.end(&service(), &timed, run.now, CALLS);
        }
        run
    }

    const SECONDS: Duration = Duration::from_secs(20);

    #[test]
    fn links_are_used_where_connections_end_sooner_with_them() {
        let asking = Asking::default();
        let first = run(&asking, IDLE_MACHINE, Instant::ZERO, SECONDS);
        let Run { early, late, .. } = run(&asking, IDLE_MACHINE, first.now, SECONDS);
        assert!(early > 50 * late, "{early} early, {late} late");
    }

    #[test]
    fn a_busy_machine_loses_less_than_a_hundredth_of_its_connections_to_trials() {
        let asking = Asking::default();
        let Run { early, late, .. } = run(&asking, BUSY_MACHINE, Instant::ZERO, SECONDS);
        assert!(early > 0 && early * 100 < late, "{early} early, {late} late");
    }

    /// Breaks if links that are a little faster take the processor time of other programs.
    #[test]
    fn links_must_win_clearly() {
        let asking = Asking::default();
        let machine = Machine { early_us: 380, late_us: 400 };
        let Run { early, late, .. } = run(&asking, machine, Instant::ZERO, SECONDS);
        assert!(early * 50 < late, "{early} early, {late} late");
    }

    #[test]
    fn a_machine_that_becomes_busy_leaves_links_within_a_second() {
        let asking = Asking::default();
        let idle = run(&asking, IDLE_MACHINE, Instant::ZERO, SECONDS);
        let change = run(&asking, BUSY_MACHINE, idle.now, Duration::from_secs(1));
        let Run { early, late, .. } = run(&asking, BUSY_MACHINE, change.now, SECONDS);
        assert!(early * 100 < late, "{early} early, {late} late");
    }

    /// Breaks if a link that stalls each connection stays in use, because such lives are taken for pauses of the program.
    #[test]
    fn stalls_on_links_count_against_them() {
        let asking = Asking::default();
        let machine = Machine { early_us: 50_000, late_us: 400 };
        let Run { early, late, .. } = run(&asking, machine, Instant::ZERO, SECONDS);
        assert!(early > 0 && early <= 8 * FEW && late > 1_000, "{early} early, {late} late");
    }

    #[test]
    fn a_program_that_pauses_on_its_connections_tries_no_links() {
        let machine = Machine { early_us: 20_000, late_us: 20_000 };
        assert_eq!(run(&Asking::default(), machine, Instant::ZERO, SECONDS).early, 0);
    }
}
