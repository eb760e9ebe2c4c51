//! Time as the core sees it: nanoseconds since an epoch that the driver chooses.

use core::ops::{Add, Sub};
use core::time::Duration;

/// A point in time, in nanoseconds since the driver's epoch. Virtual in simulation, monotonic otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Instant(u64);

impl Instant {
    /// The driver's epoch.
    pub const ZERO: Instant = Instant(0);

    /// From nanoseconds since the epoch.
    pub const fn from_nanos(nanos: u64) -> Self {
        Instant(nanos)
    }

    /// Nanoseconds since the epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The earliest of some times. Numbers are compared, because a compiler may compare the undefined payload of a `None`
    /// and ignore the result: valgrind reports that to the program.
    #[inline]
    pub fn earliest<const N: usize>(times: [Option<Instant>; N]) -> Option<Instant> {
        let mut least = u64::MAX;
        for time in times {
            least = least.min(time.map_or(u64::MAX, Instant::as_nanos));
        }
        (least != u64::MAX).then_some(Instant(least))
    }

    /// Time since `earlier`, or zero if `earlier` is later.
    pub fn saturating_since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, d: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.saturating_since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if no time counts as the earliest one, or the epoch as none.
    #[test]
    fn the_earliest_of_some_times() {
        let at = |nanos| Some(Instant::from_nanos(nanos));
        assert_eq!(Instant::earliest([None, at(7), at(5), None]), at(5));
        assert_eq!(Instant::earliest([at(7), Some(Instant::ZERO)]), Some(Instant::ZERO));
        assert_eq!(Instant::earliest([None, None]), None);
    }
}
