//! Saving in the background, as Redis' BGSAVE: a thread forks, and the child writes what it has of memory while the program goes on.
//!
//! The fork keeps its thread from work while the kernel copies page tables. The child then needs a core's time, which it gets in
//! slices, in turn with the program's threads. Until it ends, a page that is written first is copied.
//!
//! # Invariants
//! * One child at a time. A save that is due while one runs begins after it.
//! * A save begins with the first work of its thread after it is due, as an event loop forks between two events.

use std::time::Duration;

use netacc_device::middleware::SplitMix64;
use netacc_device::Instant;
use netacc_parameters::Distribution;

use crate::ProcessorConfig;

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct Saving {
    interval: Duration,
    fork: Distribution,
    save: Duration,
    slice: Duration,
    /// When the next save is due.
    due: Instant,
    /// The child's work that is left.
    left: Duration,
    random: SplitMix64,
}

impl Saving {
    /// That of a host's program; `None` if it never saves.
    pub fn of(config: &ProcessorConfig) -> Option<Saving> {
        (!config.save_interval.is_zero()).then(|| Saving {
            interval: config.save_interval,
            fork: config.fork.clone(),
            save: config.save,
            slice: config.save_slice.max(Duration::from_nanos(1)),
            due: Instant::ZERO + config.save_interval,
            left: Duration::ZERO,
            random: SplitMix64::new(config.seed ^ 1 << 38),
        })
    }

    /// The thread that saves is about to work: if a save is due it forks first, and this is how long that takes.
    pub fn fork(&mut self, now: Instant) -> Option<Duration> {
        if now < self.due || self.is_running() {
            return None;
        }
        self.due = now + self.interval;
        self.left = self.save;
        let random = &mut self.random;
        Some(self.fork.draw(&mut || random.next_u64()))
    }

    /// Whether a child has work left.
    pub fn is_running(&self) -> bool {
        !self.left.is_zero()
    }

    /// The next slice of the child's work.
    pub fn take_slice(&mut self) -> Duration {
        let slice = self.left.min(self.slice);
        self.left -= slice;
        slice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    // Breaks if a save begins too early, twice, or beside another one, or a child does other than its work.
    #[test]
    fn one_child_at_a_time() {
        let config = ProcessorConfig {
            save_interval: ms(100),
            fork: ms(5).into(),
            save: ms(7),
            save_slice: ms(3),
            ..ProcessorConfig::free()
        };
        let mut saving = Saving::of(&config).expect("it saves");
        assert_eq!((saving.fork(at(99)), saving.is_running()), (None, false));
        assert_eq!((saving.fork(at(130)), saving.is_running()), (Some(ms(5)), true));
        assert_eq!(saving.fork(at(131)), None);
        assert_eq!([saving.take_slice(), saving.take_slice()], [ms(3), ms(3)]);
        assert_eq!(saving.fork(at(300)), None, "the child is still there");
        assert_eq!((saving.take_slice(), saving.is_running()), (ms(1), false));
        assert_eq!(saving.fork(at(301)), Some(ms(5)));
        assert!(Saving::of(&ProcessorConfig::free()).is_none());
    }
}
