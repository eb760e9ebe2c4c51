//! A thread of a stack that does the work of segments, on a core of its own: that of a user-space stack, which polls its NIC and
//! exchanges bytes with the program's threads through shared memory.
//!
//! # Invariants
//! * It works on one segment at a time, in the order in which they come to it, and is idle only while none is left.
//!
//! Not modelled: the order of what comes from the NIC and from programs, which it polls in turn.

use std::time::Duration;

use netacc_device::middleware::SplitMix64;
use netacc_device::Instant;
use netacc_parameters::Distribution;

use crate::ProcessorConfig;

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct StackThread {
    segment: Distribution,
    segment_size_bytes: u32,
    /// The end of the work that has come so far.
    until: Instant,
    busy: Duration,
    random: SplitMix64,
}

impl StackThread {
    /// That of a host; `None` if the program's threads do the work of segments.
    pub fn of(config: &ProcessorConfig) -> Option<StackThread> {
        config.stack_thread.then(|| StackThread {
            segment: config.segment.clone(),
            segment_size_bytes: config.segment_size_bytes.max(1),
            until: Instant::ZERO,
            busy: Duration::ZERO,
            random: SplitMix64::new(config.seed ^ 1 << 39),
        })
    }

    /// Bytes come to it, as full segments and a rest; at least one segment. Returns when it has done their work.
    pub fn pass(&mut self, now: Instant, bytes: u64) -> Instant {
        let segments = bytes.div_ceil(u64::from(self.segment_size_bytes)).max(1);
        let segments = u32::try_from(segments).unwrap_or(u32::MAX);
        let random = &mut self.random;
        let time = self.segment.sum(segments, &mut || random.next_u64());
        self.busy += time;
        self.until = self.until.max(now) + time;
        self.until
    }

    /// The time that its work has taken; work that has come counts completely.
    pub fn busy(&self) -> Duration {
        self.busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(segment: Distribution) -> StackThread {
        let config =
            ProcessorConfig { stack_thread: true, segment, segment_size_bytes: 1000, ..ProcessorConfig::free() };
        StackThread::of(&config).expect("it has one")
    }

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    // Breaks if it works on two segments at once, idles while one waits, or counts a rest for nothing.
    #[test]
    fn segments_take_their_turn() {
        let mut thread = of(Duration::from_nanos(100).into());
        assert_eq!(thread.pass(at(10), 1), at(110));
        assert_eq!(thread.pass(at(20), 1001), at(310));
        assert_eq!(thread.pass(at(500), 2000), at(700));
        assert_eq!(thread.pass(at(500), 0), at(800));
        assert_eq!(thread.busy(), Duration::from_nanos(600));
        assert!(StackThread::of(&ProcessorConfig::free()).is_none());
    }

    /// The mean wait, in nanoseconds, of segments that come at random with this mean interval.
    fn mean_wait(segment: Distribution, interval: Duration) -> f64 {
        let mut thread = of(segment);
        let mut random = SplitMix64::new(5);
        let (mut now, mut waits, count) = (Instant::ZERO, 0.0, 200_000);
        let between = Distribution::exponential(interval);
        for _ in 0..count {
            now = now + between.draw(&mut || random.next_u64());
            let begins = thread.until.max(now);
            thread.pass(now, 1);
            waits += (begins - now).as_nanos() as f64;
        }
        waits / f64::from(count)
    }

    // Breaks if the wait is another than that of M/G/1 (Pollaczek and Khinchine) at half load: half a mean for constant work, a mean
    // for exponential work.
    #[test]
    fn segments_wait_as_in_m_g_1() {
        let mean = Duration::from_nanos(1000);
        for (segment, expected) in [(mean.into(), 500.0), (Distribution::exponential(mean), 1000.0)] {
            let wait = mean_wait(segment, 2 * mean);
            assert!((wait / expected - 1.0).abs() < 0.03, "{wait} ns, expected {expected}");
        }
    }
}
