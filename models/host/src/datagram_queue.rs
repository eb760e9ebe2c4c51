//! The datagrams that wait for a program at a socket.
//!
//! # Invariants
//! * There are never more than its limit. A datagram that finds the queue full is dropped, and counted.

use std::collections::VecDeque;

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct DatagramQueue<T> {
    waiting: VecDeque<T>,
    limit: usize,
    dropped: u64,
}

impl<T> DatagramQueue<T> {
    /// An empty queue of so many at most.
    pub fn new(limit: u32) -> DatagramQueue<T> {
        DatagramQueue { waiting: VecDeque::new(), limit: limit as usize, dropped: 0 }
    }

    /// A datagram arrives. `false` if it was dropped.
    pub fn push(&mut self, datagram: T) -> bool {
        let fits = self.waiting.len() < self.limit;
        if fits {
            self.waiting.push_back(datagram);
        } else {
            self.dropped += 1;
        }
        fits
    }

    /// The program takes the oldest one.
    pub fn pop(&mut self) -> Option<T> {
        self.waiting.pop_front()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Those that were dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use netacc_device::middleware::SplitMix64;
    use netacc_device::Instant;
    use netacc_parameters::Distribution;

    use super::*;
    use crate::{ProcessorConfig, Processors};

    /// The share that is dropped of datagrams that come after such times, at a program with one thread that polls.
    fn dropped_share(between: &Distribution, service: &Distribution, limit: u32, count: u64) -> f64 {
        let mut processors = Processors::new(ProcessorConfig { spin: Duration::MAX, ..ProcessorConfig::free() });
        let mut queue = DatagramQueue::new(limit);
        let mut random = SplitMix64::new(31);
        let mut draw = |of: &Distribution| of.draw(&mut || random.next_u64());
        let mut arrival = Instant::ZERO + draw(between);
        let (mut now, mut arrived) = (Instant::ZERO, 0);
        while arrived < count {
            while processors.poll_done(now).is_some() {
                if !queue.is_empty() {
                    processors.wake(now, 0);
                }
            }
            if arrival <= now {
                arrived += 1;
                queue.push(());
                processors.wake(now, 0);
                arrival = now + draw(between);
            }
            while let Some(thread) = processors.poll_start(now) {
                queue.pop().expect("it was woken for one");
                processors.work(now, thread, draw(service));
            }
            now = processors.next_deadline().into_iter().fold(arrival, Instant::min);
        }
        queue.dropped() as f64 / count as f64
    }

    // Breaks if the queue is longer or shorter than its limit, or one that is dropped takes the program's time: M/M/1/K loses
    // (1 - r) r^K / (1 - r^(K + 1)), where K counts the one that is served, too.
    #[test]
    fn datagrams_are_lost_as_in_m_m_1_k() {
        let mean = Duration::from_nanos(1000);
        for (load, limit) in [(0.8, 4), (1.25, 4), (0.8, 9)] {
            let between = Distribution::exponential(Duration::from_nanos((1000.0 / load) as u64));
            let share = dropped_share(&between, &Distribution::exponential(mean), limit, 400_000);
            let k = limit as i32 + 1;
            let expected = (1.0 - load) * f64::powi(load, k) / (1.0 - f64::powi(load, k + 1));
            assert!((share / expected - 1.0).abs() < 0.05, "load {load}, limit {limit}: {share}, expected {expected}");
        }
    }

    // Breaks if a program is slower or faster than its work while more comes than it can take: all but so much is lost.
    #[test]
    fn a_program_takes_one_over_its_work() {
        let ns = |ns| Distribution::from(Duration::from_nanos(ns));
        let share = dropped_share(&ns(100), &ns(300), 277, 300_000);
        assert!((share - 2.0 / 3.0).abs() < 0.001, "{share}");
    }
}
