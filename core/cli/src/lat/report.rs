//! Histograms of latencies, and how they are shown.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::tcp::Measured;
use super::LatError;

/// Half round trips in nanoseconds, to three digits: recorded values and how often each came.
#[derive(Debug, Serialize, Deserialize)]
#[serde(from = "Vec<(u64, u64)>", into = "Vec<(u64, u64)>")]
pub(crate) struct Latencies(Histogram<u64>);

impl Clone for Latencies {
    fn clone(&self) -> Self {
        Latencies(self.0.clone())
    }
}

impl Default for Latencies {
    fn default() -> Self {
        // Up to an hour; what is longer is recorded as that.
        Latencies(Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("bounds and digits are allowed"))
    }
}

impl Latencies {
    pub(crate) fn record_round_trip(&mut self, round_trip: Duration) {
        let half = u64::try_from(round_trip.as_nanos() / 2).unwrap_or(u64::MAX);
        self.0.saturating_record(half.max(1));
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

/// What is told of a path.
#[derive(Debug, Serialize)]
pub(crate) struct Path {
    path: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_ns: Option<Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    link_share: Option<f64>,
    /// Recorded values in nanoseconds, and how often each came.
    #[serde(skip_serializing_if = "Option::is_none")]
    histogram: Option<Latencies>,
}

#[derive(Debug, Serialize)]
struct Summary {
    count: u64,
    min: u64,
    p50: u64,
    p90: u64,
    p99: u64,
    p999: u64,
    max: u64,
    mean: f64,
}

impl Path {
    pub(crate) fn new(path: &'static str, measured: Result<Measured, LatError>) -> Path {
        match measured {
            Ok(Measured { histogram, link_share }) => {
                let h = &histogram.0;
                let summary = Summary {
                    count: h.len(),
                    min: h.min(),
                    p50: h.value_at_quantile(0.5),
                    p90: h.value_at_quantile(0.9),
                    p99: h.value_at_quantile(0.99),
                    p999: h.value_at_quantile(0.999),
                    max: h.max(),
                    mean: h.mean(),
                };
                Path { path, error: None, latency_ns: Some(summary), link_share, histogram: Some(histogram) }
            }
            Err(error) => {
                Path { path, error: Some(error.to_string()), latency_ns: None, link_share: None, histogram: None }
            }
        }
    }
}

/// A whole run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    version: u32,
    size: u32,
    count: u32,
    paths: Vec<Path>,
}

impl Report {
    pub(crate) fn new(size: u32, count: u32, paths: Vec<Path>) -> Report {
        Report { version: 1, size, count, paths }
    }

    /// Whether each path was measured.
    pub(crate) fn is_whole(&self) -> bool {
        self.paths.iter().all(|path| path.error.is_none())
    }

    pub(crate) fn print(&self, json: bool) {
        if json {
            return println!("{}", serde_json::to_string(self).expect("plain data"));
        }
        println!(
            "half round trips of {} bytes, in microseconds; machines that are emulated, or busy, compare only",
            self.size
        );
        println!("within one run");
        println!(
            "{:<9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}  {:>7}",
            "path", "count", "min", "p50", "p90", "p99", "p99.9", "max", "on link"
        );
        let us = |ns: u64| format!("{:.2}", ns as f64 / 1000.0);
        for path in &self.paths {
            match (&path.latency_ns, &path.error) {
                (Some(s), _) => {
                    let share = path.link_share.map_or("-".to_owned(), |share| format!("{:.1} %", 100.0 * share));
                    let [min, p50, p90, p99, p999, max] = [s.min, s.p50, s.p90, s.p99, s.p999, s.max].map(us);
                    println!(
                        "{:<9} {:>8} {min:>8} {p50:>8} {p90:>8} {p99:>8} {p999:>8} {max:>8}  {share:>7}",
                        path.path, s.count
                    );
                }
                (None, error) => println!("{:<9} not measured: {}", path.path, error.as_deref().unwrap_or("")),
            }
        }
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

    #[test]
    fn a_path_that_failed_makes_the_run_incomplete() {
        let good = || Path::new("tcp", Ok(Measured { histogram: Latencies::default(), link_share: None }));
        assert!(Report::new(64, 1, vec![good()]).is_whole());
        assert!(!Report::new(64, 1, vec![good(), Path::new("write", Err(LatError::Disconnected))]).is_whole());
    }
}
