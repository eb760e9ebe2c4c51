//! The requests of a client, and their times.
//!
//! A [`Source`] is one connection's plan: it names the next request and when it is due, and takes answers. Everything is
//! drawn from its own seed with integer arithmetic, so a run asks the same on every machine.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use netacc_device::middleware::SplitMix64;
use netacc_device::Instant;
use netacc_host::ProcessorConfig;
use netacc_parameters::fixed::exponential;

/// Messages of equally likely lengths, and how likely they are among [`Sizes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeBin {
    /// Relative to the other bins' weights.
    pub weight: u32,
    /// Shortest, in bytes; at least 1.
    pub min_bytes: u32,
    /// Longest, in bytes.
    pub max_bytes: u32,
}

/// A distribution of lengths of messages.
///
/// Invariant: some bin has weight, and in each `1 <= min_bytes <= max_bytes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(Vec<SizeBin>);

impl Sizes {
    /// Always so many bytes. `None` for 0.
    pub fn fixed(bytes: u32) -> Option<Sizes> {
        Sizes::new(vec![SizeBin { weight: 1, min_bytes: bytes, max_bytes: bytes }])
    }

    /// Of these bins. `None` if none has weight, or one has no lengths or the length 0.
    pub fn new(bins: Vec<SizeBin>) -> Option<Sizes> {
        let sane = |b: &SizeBin| b.min_bytes >= 1 && b.min_bytes <= b.max_bytes;
        let weight: u64 = bins.iter().map(|b| u64::from(b.weight)).sum();
        (weight > 0 && bins.iter().all(sane)).then_some(Sizes(bins))
    }

    /// The greatest length.
    pub(crate) fn longest(&self) -> u32 {
        self.0.iter().map(|bin| bin.max_bytes).max().unwrap_or(0)
    }

    fn draw(&self, rng: &mut SplitMix64) -> u32 {
        // A fixed length takes nothing from the sequence.
        if let [SizeBin { min_bytes, max_bytes, .. }] = self.0[..] {
            if min_bytes == max_bytes {
                return min_bytes;
            }
        }
        let total: u64 = self.0.iter().map(|b| u64::from(b.weight)).sum();
        let mut at = rng.next_u64() % total.max(1);
        for bin in &self.0 {
            let weight = u64::from(bin.weight);
            if at < weight {
                let span = u64::from(bin.max_bytes - bin.min_bytes) + 1;
                return bin.min_bytes + (rng.next_u64() % span) as u32;
            }
            at -= weight;
        }
        unreachable!("`at` is below the sum of the weights")
    }
}

/// A span of time that may vary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Always the same.
    Fixed(Duration),
    /// Exponentially distributed, with this mean.
    Exponential(Duration),
}

impl Pause {
    fn draw(self, rng: &mut SplitMix64) -> Duration {
        match self {
            Pause::Fixed(pause) => pause,
            Pause::Exponential(mean) => {
                let nepers = u128::from(exponential(rng.next_u64()));
                Duration::from_nanos(u64::try_from((mean.as_nanos() * nepers) >> 32).unwrap_or(u64::MAX))
            }
        }
    }
}

/// A request of a recorded load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// When it is due, from the beginning of the run.
    pub at: Instant,
    /// Bytes of the request, at least 1.
    pub request_bytes: u32,
    /// Bytes of its response, at least 1.
    pub response_bytes: u32,
}

/// A request that is due once its client's host has received others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependent {
    /// Bytes of the request, at least 1.
    pub request_bytes: u32,
    /// Bytes of its response, at least 1.
    pub response_bytes: u32,
    /// All of these come before.
    pub after: Vec<Received>,
}

/// So many requests of a conversation have been read by its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Received {
    /// The conversation, by its number in the run.
    pub conversation: u32,
    /// From its first request on.
    pub requests: u64,
}

/// When requests come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// A request when one was answered, and a pause has passed: so many at a time at most. The latency of the first ones
    /// counts from when they were due.
    Closed {
        /// Requests unanswered at a time; at least 1.
        depth: u32,
        /// Between an answer and the next request.
        think: Pause,
    },
    /// Requests that come whether or not earlier ones were answered. Their latency counts from when they were due.
    Open {
        /// Between requests.
        interval: Pause,
    },
    /// Recorded ones, in order of time. Their latency counts from when they were due.
    Trace(Vec<Recorded>),
    /// One after the other, each once what it depends on has been received: steps of a collective operation. Their
    /// latency counts from then.
    After(Vec<Dependent>),
}

/// The carrier of a conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// A connection that lasts, or short ones.
    #[default]
    Stream,
    /// UDP datagrams, one for each request. A closed loop waits for answers; without answers it sends the next datagram when the call
    /// that sent the one before is over.
    Datagrams {
        /// Whether the server answers each with one of its own.
        answered: bool,
    },
    /// RDMA verbs, without the core: one message on a queue pair for each request.
    Verbs {
        /// How messages are sent.
        verb: Verb,
        /// Whether the server answers each with one of its own. Without answers a request is over when its completion is polled.
        answered: bool,
    },
}

/// How messages of verbs are sent, and how their receiver learns of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// By RDMA writes: the receiver polls memory.
    Write,
    /// By SENDs: the receiver polls its completion queue.
    Send,
}

/// What one call of a program moves on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Calls {
    /// All that there is: requests that are made or read together are written or answered by one call.
    #[default]
    Joined,
    /// One message.
    Single,
}

/// A client that asks a server, on one connection that lasts, on many short ones, or by datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversation {
    /// Its carrier.
    pub transport: Transport,
    /// Whether its connections are promoted. If not, they stay on TCP.
    pub promoted: bool,
    /// What its programs' calls move, on connections.
    pub calls: Calls,
    /// The costs of its calls, if they are others than its hosts': it is on another stack.
    pub costs: Option<Arc<ProcessorConfig>>,
    /// Host of the client.
    pub client: u32,
    /// Host of the server.
    pub server: u32,
    /// Lengths of requests; a recorded load has its own.
    pub request: Sizes,
    /// Lengths of responses; a recorded load has its own.
    pub response: Sizes,
    /// Requests on a connection, each made when the one before was answered; then it is closed. `arrival`, `start`, `until` and
    /// `count` are of connections. `None`: one connection for all requests.
    pub requests_per_connection: Option<NonZeroU32>,
    /// When requests come.
    pub arrival: Arrival,
    /// No request is due before.
    pub start: Instant,
    /// None is due after.
    pub until: Option<Instant>,
    /// At most so many.
    pub count: Option<u64>,
    /// Decides lengths and pauses.
    pub seed: u64,
    /// The server's own work for each request, where its host has processors.
    pub service: Duration,
    /// The client's own work for each answer, where its host has processors.
    pub client_service: Duration,
    /// The client's own work after it has written: it delays nothing that was written.
    pub client_after_write: Duration,
    /// The server's own work of each round of its event loop: each time that it asks for what is ready.
    pub round_service: Duration,
    /// The same of the client.
    pub client_round_service: Duration,
    /// More work of the server for a turn that finds its connection's state displaced from the caches.
    pub cold_service: Duration,
    /// The same of the client.
    pub client_cold_service: Duration,
}

impl Conversation {
    /// `count` requests on a connection that is promoted, each when the one before was answered. `None` for empty requests or responses.
    pub fn closed(
        client: u32,
        server: u32,
        request_bytes: u32,
        response_bytes: u32,
        count: u32,
    ) -> Option<Conversation> {
        Some(Conversation {
            transport: Transport::Stream,
            promoted: true,
            calls: Calls::default(),
            costs: None,
            client,
            server,
            request: Sizes::fixed(request_bytes)?,
            response: Sizes::fixed(response_bytes)?,
            requests_per_connection: None,
            arrival: Arrival::Closed { depth: 1, think: Pause::Fixed(Duration::ZERO) },
            start: Instant::ZERO,
            until: None,
            count: Some(u64::from(count)),
            seed: 0,
            service: Duration::ZERO,
            client_service: Duration::ZERO,
            client_after_write: Duration::ZERO,
            round_service: Duration::ZERO,
            client_round_service: Duration::ZERO,
            cold_service: Duration::ZERO,
            client_cold_service: Duration::ZERO,
        })
    }

    /// One connection of those that this client makes, which begins now.
    pub(crate) fn one_connection(&self, now: Instant, requests: NonZeroU32, seed: u64) -> Conversation {
        Conversation {
            requests_per_connection: None,
            arrival: Arrival::Closed { depth: 1, think: Pause::Fixed(Duration::ZERO) },
            start: now,
            until: None,
            count: Some(u64::from(requests.get())),
            seed,
            ..self.clone()
        }
    }

    /// Whether it can be run: a recorded load is in order, has no empty messages and lasts, and an open one takes time.
    pub(crate) fn is_sane(&self) -> bool {
        if self.transport != Transport::Stream && self.requests_per_connection.is_some() {
            return false;
        }
        match &self.arrival {
            Arrival::Closed { depth, .. } => *depth >= 1,
            Arrival::Open { interval: Pause::Fixed(mean) | Pause::Exponential(mean) } => !mean.is_zero(),
            Arrival::Trace(all) => {
                self.requests_per_connection.is_none()
                    && all.is_sorted_by_key(|r| r.at)
                    && all.iter().all(|r| r.request_bytes.min(r.response_bytes) >= 1)
            }
            Arrival::After(all) => {
                let sane = |d: &Dependent| {
                    d.request_bytes.min(d.response_bytes) >= 1 && d.after.iter().all(|received| received.requests >= 1)
                };
                self.transport == Transport::Stream && self.requests_per_connection.is_none() && all.iter().all(sane)
            }
        }
    }
}

/// A request that is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// When its latency begins.
    pub(crate) begun: Instant,
    pub(crate) request_bytes: u32,
    pub(crate) response_bytes: u32,
}

/// The plan of one connection.
#[derive(Debug)]
pub(crate) struct Source {
    plan: Conversation,
    rng: SplitMix64,
    made: u64,
    /// When requests are due: of a closed loop those that are not waiting for an answer, of dependent ones those that
    /// wait for nothing more, else the next one.
    due: BinaryHeap<Reverse<Instant>>,
    /// Of dependent requests that are not due: what each still waits for, the first one first.
    waiting: VecDeque<usize>,
}

impl Source {
    pub(crate) fn new(plan: Conversation) -> Source {
        let rng = SplitMix64::new(plan.seed);
        let waiting = match &plan.arrival {
            Arrival::After(all) => all.iter().map(|dependent| dependent.after.len()).collect(),
            _ => VecDeque::new(),
        };
        let mut source = Source { plan, rng, made: 0, due: BinaryHeap::new(), waiting };
        match source.plan.arrival {
            Arrival::Closed { depth, .. } => (0..depth).for_each(|_| source.plan_for(source.plan.start)),
            Arrival::Open { interval } => {
                let first = source.plan.start + interval.draw(&mut source.rng);
                source.plan_for(first);
            }
            Arrival::Trace(_) => source.plan_recorded(),
            Arrival::After(_) => source.plan_dependent(source.plan.start),
        }
        source
    }

    /// Whether no request is due, now or later.
    pub(crate) fn is_over(&self) -> bool {
        self.due().is_none() && self.waiting.is_empty()
    }

    /// When the next request is due. `None` until an answer comes, or for ever.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due.peek().map(|Reverse(at)| *at).filter(|_| self.plan.count.is_none_or(|most| self.made < most))
    }

    /// The next request, if it is due.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Request> {
        let due = self.due().filter(|at| *at <= now)?;
        self.due.pop();
        let number = self.made as usize;
        self.made += 1;
        if let Arrival::Trace(all) = &self.plan.arrival {
            let Recorded { request_bytes, response_bytes, .. } = *all.get(number)?;
            self.plan_recorded();
            return Some(Request { begun: due, request_bytes, response_bytes });
        }
        if let Arrival::After(all) = &self.plan.arrival {
            let Dependent { request_bytes, response_bytes, .. } = *all.get(number)?;
            return Some(Request { begun: due, request_bytes, response_bytes });
        }
        let request_bytes = self.plan.request.draw(&mut self.rng);
        let response_bytes = self.plan.response.draw(&mut self.rng);
        let begun = match self.plan.arrival {
            Arrival::Open { interval } => {
                let next = due + interval.draw(&mut self.rng);
                self.plan_for(next);
                due
            }
            // A connection that could not be used in time made its first requests late, and they have waited.
            Arrival::Closed { depth, .. } if self.made <= u64::from(depth) => due,
            _ => now,
        };
        Some(Request { begun, request_bytes, response_bytes })
    }

    /// No more requests are made.
    pub(crate) fn end(&mut self) {
        self.due.clear();
        self.waiting.clear();
    }

    /// One of those that a dependent request waits for has been received. `number` is the request's.
    pub(crate) fn handle_received(&mut self, number: usize, now: Instant) {
        let Arrival::After(all) = &self.plan.arrival else { return };
        let planned = all.len() - self.waiting.len();
        if let Some(left) = number.checked_sub(planned).and_then(|at| self.waiting.get_mut(at)) {
            *left = left.saturating_sub(1);
        }
        self.plan_dependent(now);
    }

    /// Those requests are due that wait for nothing, up to the first that does.
    fn plan_dependent(&mut self, now: Instant) {
        while self.waiting.front() == Some(&0) {
            self.waiting.pop_front();
            self.plan_for(now);
        }
    }

    /// A request was answered.
    pub(crate) fn handle_answer(&mut self, now: Instant) {
        if let Arrival::Closed { think, .. } = self.plan.arrival {
            let next = now + think.draw(&mut self.rng);
            self.plan_for(next);
        }
    }

    fn plan_for(&mut self, at: Instant) {
        if self.plan.until.is_none_or(|until| at <= until) {
            self.due.push(Reverse(at));
        }
    }

    fn plan_recorded(&mut self) {
        if let Arrival::Trace(all) = &self.plan.arrival {
            if let Some(next) = all.get(self.made as usize) {
                let at = next.at.max(self.plan.start);
                self.plan_for(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    fn conversation(arrival: Arrival) -> Conversation {
        let base = Conversation::closed(0, 1, 100, 200, 1).expect("lengths above 0");
        Conversation { arrival, count: None, ..base }
    }

    // Breaks if the logarithm is wrong: mean and second moment of the exponential distribution, and its median.
    #[test]
    fn exponential_pauses() {
        let mut rng = SplitMix64::new(1);
        let pause = Pause::Exponential(us(100));
        let mut drawn: Vec<f64> = (0..200_000).map(|_| pause.draw(&mut rng).as_nanos() as f64 / 1e5).collect();
        let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
        let second = drawn.iter().map(|x| x * x).sum::<f64>() / drawn.len() as f64;
        drawn.sort_by(f64::total_cmp);
        let median = drawn[drawn.len() / 2];
        assert!((mean - 1.0).abs() < 0.01, "{mean}");
        assert!((second - 2.0).abs() < 0.05, "{second}");
        assert!((median - std::f64::consts::LN_2).abs() < 0.01, "{median}");
    }

    // Breaks if a closed loop has more than its depth unanswered, does not pause, or asks beyond its count.
    #[test]
    fn a_closed_loop_waits_for_answers() {
        let at = |n| Instant::ZERO + us(n);
        let plan = conversation(Arrival::Closed { depth: 2, think: Pause::Fixed(us(5)) });
        let mut source = Source::new(Conversation { count: Some(3), ..plan });
        assert!(source.take(at(0)).is_some() && source.take(at(0)).is_some());
        assert_eq!((source.due(), source.take(at(1))), (None, None));
        source.handle_answer(at(10));
        source.handle_answer(at(11));
        assert_eq!(source.due(), Some(at(15)));
        assert_eq!(source.take(at(14)), None);
        assert!(source.take(at(15)).is_some());
        assert_eq!(source.due(), None);
    }

    // Breaks if the time that a closed loop waits for its connection, before its first requests, is nobody's latency.
    #[test]
    fn first_requests_wait_for_their_connection() {
        let at = |n| Instant::ZERO + us(n);
        let plan = conversation(Arrival::Closed { depth: 2, think: Pause::Fixed(Duration::ZERO) });
        let mut source = Source::new(Conversation { start: at(3), ..plan });
        let first: Vec<Option<Instant>> = (0..2).map(|_| source.take(at(20)).map(|r| r.begun)).collect();
        assert_eq!(first, [Some(at(3)); 2]);
        source.handle_answer(at(30));
        assert_eq!(source.take(at(31)).map(|r| r.begun), Some(at(31)));
    }

    // Breaks if requests of an open loop wait for answers, or their latency begins when they could be sent.
    #[test]
    fn an_open_loop_does_not_wait() {
        let at = |n| Instant::ZERO + us(n);
        let plan = conversation(Arrival::Open { interval: Pause::Fixed(us(10)) });
        let mut source = Source::new(Conversation { until: Some(at(30)), ..plan });
        assert_eq!(source.take(at(9)), None);
        let taken: Vec<Instant> = std::iter::from_fn(|| source.take(at(100))).map(|r| r.begun).collect();
        assert_eq!(taken, [at(10), at(20), at(30)]);
        assert_eq!(source.due(), None);
    }

    // Breaks if lengths are drawn otherwise than by weight, or from outside their bin.
    #[test]
    fn lengths_by_weight() {
        let bin = |weight, min_bytes, max_bytes| SizeBin { weight, min_bytes, max_bytes };
        let sizes = Sizes::new(vec![bin(9, 10, 19), bin(0, 50, 50), bin(1, 100, 100)]).expect("sane");
        let mut rng = SplitMix64::new(7);
        let drawn: Vec<u32> = (0..10_000).map(|_| sizes.draw(&mut rng)).collect();
        assert!(drawn.iter().all(|b| (10..20).contains(b) || *b == 100));
        let long = drawn.iter().filter(|b| **b == 100).count();
        assert!((900..1100).contains(&long), "{long}");
        assert!((10..20).all(|b| drawn.contains(&b)));
        assert_eq!(Sizes::new(vec![bin(0, 1, 1)]), None);
        assert_eq!(Sizes::new(vec![bin(1, 2, 1)]), None);
        assert_eq!(Sizes::fixed(0), None);
    }

    // Breaks if a dependent request did not wait for all, overtook the one before it, or a plan that waits were over.
    #[test]
    fn dependent_requests_wait_for_what_they_depend_on() {
        let at = |n| Instant::ZERO + us(n);
        let on = |count: u32| (0..count).map(|conversation| Received { conversation, requests: 1 }).collect();
        let one = |request_bytes, count| Dependent { request_bytes, response_bytes: 1, after: on(count) };
        let plan = conversation(Arrival::After(vec![one(10, 0), one(20, 2), one(30, 1)]));
        assert!(plan.is_sane());
        let mut source = Source::new(Conversation { start: at(3), ..plan.clone() });
        let taken = |source: &mut Source, now| {
            std::iter::from_fn(|| source.take(at(now))).map(|r| (r.begun, r.request_bytes)).collect::<Vec<_>>()
        };
        assert_eq!(taken(&mut source, 5), [(at(3), 10)]);
        source.handle_received(2, at(6));
        source.handle_received(1, at(7));
        assert_eq!((taken(&mut source, 8), source.is_over()), (vec![], false));
        source.handle_received(1, at(9));
        assert_eq!(taken(&mut source, 10), [(at(9), 20), (at(9), 30)]);
        assert!(source.is_over());
        // What comes twice, or for a request that there is not, changes nothing.
        source.handle_received(1, at(11));
        source.handle_received(7, at(11));
        assert_eq!(taken(&mut source, 12), []);
        let bad = |dependent| conversation(Arrival::After(vec![dependent])).is_sane();
        assert!(!bad(one(0, 0)));
        assert!(!bad(Dependent { after: vec![Received { conversation: 0, requests: 0 }], ..one(1, 0) }));
        let datagrams = Transport::Datagrams { answered: true };
        assert!(!Conversation { transport: datagrams, ..plan }.is_sane());
    }

    // Breaks if recorded requests are asked at other times, or with other lengths, or an empty one is accepted.
    #[test]
    fn a_recorded_load_is_replayed() {
        let at = |n| Instant::ZERO + us(n);
        let one = |n, request_bytes| Recorded { at: at(n), request_bytes, response_bytes: 7 };
        let mut source = Source::new(conversation(Arrival::Trace(vec![one(3, 10), one(3, 20), one(8, 30)])));
        let taken: Vec<(Instant, u32)> =
            std::iter::from_fn(|| source.take(at(20))).map(|r| (r.begun, r.request_bytes)).collect();
        assert_eq!(taken, [(at(3), 10), (at(3), 20), (at(8), 30)]);
        assert!(!conversation(Arrival::Trace(vec![one(3, 0)])).is_sane());
        assert!(!conversation(Arrival::Trace(vec![one(3, 1), one(2, 1)])).is_sane());
    }
}
