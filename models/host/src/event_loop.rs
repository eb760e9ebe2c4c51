//! The order in which an event loop serves its connections.
//!
//! A loop of [`Batches`](LoopKind::Batches) is that of Redis: it asks for all that is ready, reads and executes each,
//! and writes all answers before it asks again. Connections that become ready meanwhile wait for the next round. In polling systems
//! this is gated service. A loop of [`Deferred`](LoopKind::Deferred) is that of redis-benchmark: after it has read from a connection it
//! watches it for room, and writes when it has asked again. A round has the writes of connections that the one before read from, and
//! reads from others, in the order in which they became ready. A loop of [`Rounds`](LoopKind::Rounds), as in libevent's programs and nginx, asks for all that is ready, too, but
//! answers each connection before it reads the next. A loop of [`Turns`](LoopKind::Turns) asks anew for each.
//!
//! The kernel puts a connection behind those that were ready before. A [link](Found::WhenAsked) puts it nowhere: the library looks at
//! its links when the loop asks, and they come behind what the loop itself has made ready since it asked last. For a
//! deferred loop those are the connections that it writes to.
//!
//! # Invariants
//! * A connection is in a round once, and its step to write comes after its step to read.
//! * A round begins only when the one before is over.

use std::collections::VecDeque;

/// The order of a loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoopKind {
    /// Asks, reads and writes for one after the other.
    #[default]
    Turns,
    /// Asks for all, then reads and writes one after the other.
    Rounds,
    /// Reads all, then writes all.
    Batches,
    /// Asks for all, then reads from some and writes to those that it read from a round before.
    Deferred,
}

/// When a loop finds a connection that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// In the order in which connections became ready, as the kernel has them.
    InOrder,
    /// When it asks, behind the others, as the library has those on links.
    WhenAsked,
}

/// The part of a connection's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Everything.
    Whole,
    /// It reads, and executes.
    Read,
    /// It writes.
    Write,
}

/// A step of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step<T> {
    /// The connection.
    pub of: T,
    /// The part of its turn.
    pub part: Part,
    /// The loop has asked for all that is ready: the first step of a round, and every one of [`Turns`](LoopKind::Turns).
    pub asks: bool,
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct EventLoop<T> {
    kind: LoopKind,
    /// What is ready and in no round yet, with the part that comes next.
    arrived: VecDeque<(T, Part)>,
    /// As `arrived`, of links.
    on_links: VecDeque<(T, Part)>,
    /// The rest of the round.
    round: VecDeque<(T, Part)>,
    /// Connections that a batch has read from.
    writes: VecDeque<T>,
}

impl<T: Copy> EventLoop<T> {
    /// A loop without connections.
    pub fn new(kind: LoopKind) -> EventLoop<T> {
        EventLoop {
            kind,
            arrived: VecDeque::new(),
            on_links: VecDeque::new(),
            round: VecDeque::new(),
            writes: VecDeque::new(),
        }
    }

    /// A connection is ready.
    pub fn push(&mut self, connection: T, found: Found) {
        let (part, only_arrivals) = match self.kind {
            LoopKind::Turns | LoopKind::Rounds => (Part::Whole, true),
            LoopKind::Batches => (Part::Read, true),
            LoopKind::Deferred => (Part::Read, false),
        };
        // Among arrivals alone there is one order.
        let queue = if only_arrivals || found == Found::InOrder { &mut self.arrived } else { &mut self.on_links };
        queue.push_back((connection, part));
    }

    /// Whether nothing is left to do.
    pub fn is_empty(&self) -> bool {
        self.arrived.is_empty() && self.on_links.is_empty() && self.is_round_over()
    }

    /// Connections that are ready and in no round yet.
    pub fn arrived(&self) -> impl Iterator<Item = &T> {
        self.arrived.iter().chain(&self.on_links).map(|(of, _)| of)
    }

    /// The next step.
    pub fn poll(&mut self) -> Option<Step<T>> {
        if self.kind == LoopKind::Turns {
            let (of, part) = self.arrived.pop_front()?;
            return Some(Step { of, part, asks: true });
        }
        let asks = self.is_round_over();
        if asks {
            std::mem::swap(&mut self.round, &mut self.arrived);
            self.round.append(&mut self.on_links);
        }
        let Some((of, part)) = self.round.pop_front() else {
            let of = self.writes.pop_front()?;
            return Some(Step { of, part: Part::Write, asks: false });
        };
        match (self.kind, part) {
            (LoopKind::Batches, Part::Read) => self.writes.push_back(of),
            (LoopKind::Deferred, Part::Read) => self.arrived.push_back((of, Part::Write)),
            _ => {}
        }
        Some(Step { of, part, asks })
    }

    fn is_round_over(&self) -> bool {
        self.round.is_empty() && self.writes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netacc_device::middleware::SplitMix64;

    fn steps(of: &mut EventLoop<u32>) -> Vec<(u32, Part, bool)> {
        std::iter::from_fn(|| of.poll()).map(|step| (step.of, step.part, step.asks)).collect()
    }

    // Breaks if a loop answers before it has read all that was ready, or lets later connections into a round.
    #[test]
    fn a_batch_is_read_before_it_is_answered() {
        let mut of = EventLoop::new(LoopKind::Batches);
        (0..2).for_each(|number| of.push(number, Found::InOrder));
        assert_eq!(of.poll(), Some(Step { of: 0, part: Part::Read, asks: true }));
        of.push(2, Found::InOrder);
        let rest = [(1, Part::Read, false), (0, Part::Write, false), (1, Part::Write, false)];
        let next = [(2, Part::Read, true), (2, Part::Write, false)];
        assert_eq!(steps(&mut of), [&rest[..], &next[..]].concat());
        assert!(of.is_empty());
    }

    // Breaks if a loop of turns divides one.
    #[test]
    fn turns_are_whole() {
        let mut of = EventLoop::new(LoopKind::Turns);
        (0..2).for_each(|number| of.push(number, Found::InOrder));
        assert_eq!(steps(&mut of), [(0, Part::Whole, true), (1, Part::Whole, true)]);
    }

    // Breaks if a loop of rounds divides turns, asks for each, or lets later connections into a round.
    #[test]
    fn a_round_asks_once() {
        let mut of = EventLoop::new(LoopKind::Rounds);
        (0..2).for_each(|number| of.push(number, Found::InOrder));
        assert_eq!(of.poll(), Some(Step { of: 0, part: Part::Whole, asks: true }));
        of.push(2, Found::InOrder);
        assert_eq!(steps(&mut of), [(1, Part::Whole, false), (2, Part::Whole, true)]);
        assert!(of.is_empty());
    }

    // Breaks if a loop writes in the round in which it has read, or before what was ready earlier.
    #[test]
    fn a_deferred_write_is_in_the_next_round() {
        let mut of = EventLoop::new(LoopKind::Deferred);
        (0..2).for_each(|number| of.push(number, Found::InOrder));
        assert_eq!(of.poll(), Some(Step { of: 0, part: Part::Read, asks: true }));
        of.push(2, Found::InOrder);
        let rest = [(1, Part::Read, false), (0, Part::Write, true), (2, Part::Read, false), (1, Part::Write, false)];
        assert_eq!(steps(&mut of), [&rest[..], &[(2, Part::Write, true)]].concat());
        assert!(of.is_empty());
    }

    // Breaks if what comes on links during a round is found before the loop asks, among the writes that it has made ready itself: then
    // these are spread over the next round, and the peer finds few of them at a time.
    #[test]
    fn what_comes_on_links_is_found_behind_the_deferred_writes() {
        for (found, kind) in [
            (Found::InOrder, LoopKind::Deferred),
            (Found::WhenAsked, LoopKind::Deferred),
            (Found::WhenAsked, LoopKind::Batches),
        ] {
            let mut of = EventLoop::new(kind);
            (0..3).for_each(|number| of.push(number, found));
            assert_eq!(of.poll(), Some(Step { of: 0, part: Part::Read, asks: true }));
            of.push(3, found);
            assert!(of.arrived().any(|number| *number == 3) && !of.is_empty());
            let order: Vec<_> = steps(&mut of).into_iter().map(|(number, part, _)| (number, part)).collect();
            let (read, write) = (|number| (number, Part::Read), |number| (number, Part::Write));
            let expected = match found {
                Found::InOrder => [read(1), read(2), write(0), read(3), write(1), write(2), write(3)],
                Found::WhenAsked => [read(1), read(2), write(0), write(1), write(2), read(3), write(3)],
            };
            assert_eq!(order, expected, "{found:?} {kind:?}");
        }
    }

    // Breaks if a round takes in what comes during it, or leaves out what came before: with Poisson arrivals, rounds that cost a
    // time beside the work, and a loop that never sleeps, the mean wait is that of a gated queue with vacations, rate * E[S^2] / (2 (1 -
    // load)) + ask / 2 + load * ask / (1 - load) (Takagi, Analysis of polling systems, 1986).
    #[test]
    fn poisson_arrivals_wait_as_in_a_gated_queue() {
        let (service, ask) = (1000.0, 700.0);
        for load in [0.3, 0.7] {
            let rate = load / service;
            let mut random = SplitMix64::new(9);
            let mut pause = move || -(1.0 - (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64).ln() / rate;
            let mut of = EventLoop::new(LoopKind::Batches);
            let (mut now, mut due, mut waited) = (0.0, pause(), 0.0);
            let (mut arrivals, mut served) = (Vec::new(), 0u32);
            while served < 400_000 {
                if of.is_round_over() {
                    now += ask;
                }
                while due <= now {
                    of.push(arrivals.len(), Found::InOrder);
                    arrivals.push(due);
                    due += pause();
                }
                // Reading is the work here, and writing takes no time.
                while let Some(step) = of.poll() {
                    if step.part == Part::Read {
                        waited += now - arrivals[step.of];
                        now += service;
                        served += 1;
                    }
                    if of.is_round_over() {
                        break;
                    }
                }
            }
            let mean = waited / f64::from(served);
            let expected = rate * service * service / (2.0 * (1.0 - load)) + ask / 2.0 + load * ask / (1.0 - load);
            assert!((mean / expected - 1.0).abs() < 0.03, "load {load}: {mean} for {expected}");
        }
    }
}
