//! How long a write waits for the answer to an OPEN.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How long writes of a link's streams wait for answers to OPEN, learned from the durations of earlier answers: a time
/// that is enough for a near peer is too short on a long way, or for a slow peer.
#[derive(Debug, Default)]
pub struct AnswerPatience {
    doublings: AtomicU32,
}

impl AnswerPatience {
    /// The initial value. Arbitrary: several wake-ups of a busy machine; it is paid at most a few times in the life of
    /// a link.
    const LEAST: Duration = Duration::from_millis(10);
    const MOST_DOUBLINGS: u32 = 4;

    /// The patience for the next answer.
    pub fn get(&self) -> Duration {
        Self::LEAST * (1 << self.doublings.load(Ordering::Relaxed).min(Self::MOST_DOUBLINGS))
    }

    /// An answer came after so long, or (`None`) not in time.
    pub fn record(&self, answer: Option<Duration>) {
        let patience = self.get();
        let _ = self.doublings.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |doublings| match answer {
            None => (doublings < Self::MOST_DOUBLINGS).then_some(doublings + 1),
            // Half of the patience would still be twice that duration.
            Some(took) if took < patience / 4 => doublings.checked_sub(1),
            Some(_) => None,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if late answers make a link's streams give up for ever, or wait for ever, or if a link that is fast again stays
    // a slow one.
    #[test]
    fn patience_follows_the_answers() {
        let patience = AnswerPatience::default();
        let least = patience.get();
        for _ in 0..10 {
            patience.record(None);
        }
        assert_eq!(patience.get(), least * 16);
        patience.record(Some(least * 8));
        assert_eq!(patience.get(), least * 16, "it took half of that");
        for _ in 0..10 {
            patience.record(Some(Duration::ZERO));
        }
        assert_eq!(patience.get(), least);
    }
}
