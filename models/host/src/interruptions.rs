//! Interruptions of one core: the operating system's ticks, interrupts, and work of others in the background.
//!
//! Each comes when it comes, whether or not the core works. Work that it hits takes so much longer. Two that come at once are served one
//! after the other.

use std::time::Duration;

use netacc_device::middleware::SplitMix64;
use netacc_device::Instant;
use netacc_parameters::Distribution;

/// The times between interruptions of one kind.
#[derive(Clone, Debug)]
enum Interval {
    Periodic(Duration),
    Random(Distribution),
}

/// Interruptions of one kind.
#[derive(Clone, Debug)]
struct Kind {
    interval: Interval,
    length: Distribution,
    /// When the next one begins.
    next: Instant,
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct Interruptions {
    kinds: Vec<Kind>,
    /// The end of those that have begun by the last call.
    until: Instant,
    random: SplitMix64,
}

impl Interruptions {
    /// Of a core without any.
    pub(crate) fn new(seed: u64) -> Interruptions {
        Interruptions { kinds: Vec::new(), until: Instant::ZERO, random: SplitMix64::new(seed) }
    }

    /// Adds a kind that comes after equal times, the first one at a random time. Without effect for no interval, or no length.
    pub(crate) fn add_periodic(&mut self, interval: Duration, length: &Distribution) {
        if !interval.is_zero() && !length.is_zero() {
            let ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
            let next = Instant::from_nanos(self.random.next_u64() % ns);
            self.kinds.push(Kind { interval: Interval::Periodic(interval), length: length.clone(), next });
        }
    }

    /// Adds a kind that comes after exponentially distributed times of this mean. Without effect for no interval, or no length.
    pub(crate) fn add_random(&mut self, mean: Duration, length: &Distribution) {
        if !mean.is_zero() && !length.is_zero() {
            let interval = Distribution::exponential(mean);
            let next = Instant::ZERO + draw(&interval, &mut self.random);
            self.kinds.push(Kind { interval: Interval::Random(interval), length: length.clone(), next });
        }
    }

    /// When work of `time` ends that the core is given now.
    pub(crate) fn end_of_work(&mut self, now: Instant, time: Duration) -> Instant {
        while let Some((begun, length)) = self.take_before(now) {
            self.until = self.until.max(begun) + length;
        }
        let mut end = now.max(self.until) + time;
        while let Some((_, length)) = self.take_before(end) {
            end = end + length;
        }
        self.until = self.until.max(now);
        end
    }

    /// The next interruption that begins before a time: when, and how long it is.
    fn take_before(&mut self, time: Instant) -> Option<(Instant, Duration)> {
        let kind = self.kinds.iter_mut().filter(|kind| kind.next < time).min_by_key(|kind| kind.next)?;
        let (begun, length) = (kind.next, draw(&kind.length, &mut self.random));
        let interval = match &kind.interval {
            Interval::Periodic(interval) => *interval,
            Interval::Random(interval) => draw(interval, &mut self.random),
        };
        // Ends the loop of a caller also where a draw is 0.
        kind.next = begun + interval.max(Duration::from_nanos(1));
        Some((begun, length))
    }
}

fn draw(of: &Distribution, random: &mut SplitMix64) -> Duration {
    of.draw(&mut || random.next_u64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    // Breaks if work without interruptions ends at another time.
    #[test]
    fn without_interruptions_nothing_changes() {
        let mut none = Interruptions::new(1);
        none.add_periodic(Duration::ZERO, &us(5).into());
        none.add_random(us(5), &Distribution::ZERO);
        assert_eq!(none.end_of_work(at(7), us(3)), at(3_007));
    }

    // Breaks if an interruption stretches work that it does not hit, hits twice, or is lost while the core is idle.
    #[test]
    fn a_tick_stretches_what_it_hits() {
        let mut core = Interruptions::new(1);
        core.add_periodic(us(1000), &us(10).into());
        let first = core.kinds[0].next.as_nanos();
        assert_eq!(core.end_of_work(at(0), Duration::from_nanos(first)), at(first), "ends as the tick begins");
        // Begins 2 us into the tick: the rest of it comes first.
        assert_eq!(core.end_of_work(at(first + 2_000), us(5)), at(first + 15_000));
        assert_eq!(core.end_of_work(at(first + 20_000), us(5)), at(first + 25_000));
        // Five ticks within five milliseconds; those make no sixth.
        assert_eq!(core.end_of_work(at(first + 30_000), us(5_000)), at(first + 30_000 + 5_000_000 + 50_000));
    }

    // Breaks if a core does not lose the share of its time that the interruptions take: work of a long time takes 1 / (1 - share)
    // of it.
    #[test]
    fn random_interruptions_take_their_share() {
        let mut core = Interruptions::new(3);
        core.add_random(us(100), &Distribution::exponential(us(25)));
        let took = core.end_of_work(Instant::ZERO, us(10_000_000)).as_nanos() as f64 / 1e3;
        // One of 25 us begins every 100 us: three quarters of the time are left.
        assert!((took / (10_000_000.0 / 0.75) - 1.0).abs() < 0.01, "{took}");
    }
}
