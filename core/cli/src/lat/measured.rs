//! The measurement of one path: a histogram of latencies, and the share of bytes that went over the link.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The measurement of one path.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) histogram: Latencies,
    /// The share of the measured bytes that went over the link; `None` without the library.
    pub(crate) link_share: Option<f64>,
}

/// Half round trips, or other times, in nanoseconds, to three digits: recorded values and how often each came.
#[derive(Debug, Serialize, Deserialize)]
#[serde(from = "Vec<(u64, u64)>", into = "Vec<(u64, u64)>")]
pub(crate) struct Latencies(pub(super) Histogram<u64>);

impl Clone for Latencies {
    fn clone(&self) -> Self {
        Latencies(self.0.clone())
    }
}

impl Default for Latencies {
    fn default() -> Self {
        // Up to an hour; longer values are recorded as an hour.
        Latencies(Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("bounds and digits are allowed"))
    }
}

impl Latencies {
    pub(crate) fn record_round_trip(&mut self, round_trip: Duration) {
        self.record(round_trip / 2);
    }

    /// A time that is no round trip.
    pub(crate) fn record(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1));
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }
}

impl From<Latencies> for Vec<(u64, u64)> {
    fn from(latencies: Latencies) -> Self {
        latencies.0.iter_recorded().map(|value| (value.value_iterated_to(), value.count_at_value())).collect()
    }
}

impl From<Vec<(u64, u64)>> for Latencies {
    fn from(pairs: Vec<(u64, u64)>) -> Self {
        let mut latencies = Latencies::default();
        pairs.into_iter().for_each(|(value, count)| latencies.0.saturating_record_n(value, count));
        latencies
    }
}

/// Messages that were in flight together, a number of them at a time.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Round {
    pub(crate) messages: u32,
    pub(crate) seconds: f64,
    /// The share of the bytes that went over a link; none of raw writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) link_share: Option<f64>,
}

impl Round {
    pub(crate) fn new(messages: u32, elapsed: Duration) -> Round {
        Round { messages, seconds: elapsed.as_secs_f64(), link_share: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_survive_being_written_and_read() {
        let mut latencies = Latencies::default();
        for micros in [3, 3, 9, 1000] {
            latencies.record_round_trip(Duration::from_micros(2 * micros));
        }
        let text = serde_json::to_string(&latencies).expect("plain data");
        let back: Latencies = serde_json::from_str(&text).expect("as written");
        assert_eq!((back.0.len(), back.0.value_at_quantile(0.5) / 100), (4, 30), "half of a round trip");
        let pairs = Vec::from(back);
        assert_eq!((pairs.len(), &pairs), (3, &Vec::from(latencies)));
    }
}
