//! Pauses between attempts.

use core::time::Duration;

/// The pause before an operation that has failed is tried again: twice as long each time, up to a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// After the first failure.
    pub first: Duration,
    /// At most.
    pub longest: Duration,
}

impl Backoff {
    /// The next pause; `before` is the last one, if there was one.
    pub fn after(&self, before: Option<Duration>) -> Duration {
        before.map_or(self.first, |before| before.saturating_mul(2).min(self.longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_the_bound() {
        let backoff = Backoff { first: Duration::from_secs(2), longest: Duration::from_secs(7) };
        let pauses = core::iter::successors(Some(backoff.after(None)), |pause| Some(backoff.after(Some(*pause))));
        assert!(pauses.take(4).map(|pause| pause.as_secs()).eq([2, 4, 7, 7]));
    }
}
