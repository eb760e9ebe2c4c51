//! A run as a table, with or without histograms, and as JSON.

use std::fmt::Display;

use serde::Serialize;

use super::measured::{Latencies, Measured};
use super::{histogram, LatError};

/// The report on a path.
#[derive(Debug, Serialize)]
pub(crate) struct Path {
    pub(super) path: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_ns: Option<Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) link_share: Option<f64>,
    /// Recorded values in nanoseconds, and how often each came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) histogram: Option<Latencies>,
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
    deviation: f64,
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
                    deviation: h.stdev(),
                };
                Path { path, error: None, latency_ns: Some(summary), link_share, histogram: Some(histogram) }
            }
            Err(error) => {
                Path { path, error: Some(error.to_string()), latency_ns: None, link_share: None, histogram: None }
            }
        }
    }
}

impl Path {
    /// In the table.
    fn row(&self) -> String {
        let Some(s) = &self.latency_ns else {
            return format!("{:<9} not measured: {}", self.path, self.error.as_deref().unwrap_or(""));
        };
        let us = |ns: u64| format!("{:.2}", ns as f64 / 1000.0);
        let share = self.link_share.map_or("-".to_owned(), |share| format!("{:.1} %", 100.0 * share));
        let [min, p50, p90, p99, p999, max] = [s.min, s.p50, s.p90, s.p99, s.p999, s.max].map(us);
        format!("{:<9} {:>8} {min:>8} {p50:>8} {p90:>8} {p99:>8} {p999:>8} {max:>8}  {share:>7}", self.path, s.count)
    }
}

/// A program on the kernel's sockets, and the same one under the library.
const PAIRS: [[&str; 2]; 2] = [["tcp", "stack"], ["udp", "udp-stack"]];

/// The paths of one size.
#[derive(Debug, Serialize)]
struct OfSize {
    size: u32,
    paths: Vec<Path>,
}

impl OfSize {
    /// How much longer the kernel's sockets take.
    fn ratios(&self) -> impl Iterator<Item = String> + '_ {
        let summary = |name| self.paths.iter().find(|path| path.path == name)?.latency_ns.as_ref();
        PAIRS.into_iter().filter_map(move |[kernel, stack]| {
            let [k, s] = [summary(kernel)?, summary(stack)?];
            let shown = |of: &Summary| format!("{:.2} us, deviation {:.2} us", of.mean / 1000.0, of.deviation / 1000.0);
            let ratio = k.mean / s.mean;
            Some(format!(
                "{} bytes: {kernel} takes {} on average, {stack} {}: {ratio:.1} times as long",
                self.size,
                shown(k),
                shown(s)
            ))
        })
    }
}

/// A whole run.
#[derive(Debug)]
pub(crate) struct Report {
    count: u32,
    /// All sizes were requested, not one.
    many: bool,
    sizes: Vec<OfSize>,
}

#[derive(Serialize)]
struct Json<'a> {
    version: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u32>,
    count: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    paths: Option<&'a [Path]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sizes: Option<&'a [OfSize]>,
}

/// Of the JSON.
const VERSION: u32 = 1;

impl Report {
    /// Each path with its size, in the order of measurement.
    pub(super) fn measured(&self) -> impl Iterator<Item = (u32, &Path)> {
        self.sizes.iter().flat_map(|of| of.paths.iter().map(|path| (of.size, path)))
    }

    pub(super) fn sizes(&self) -> Vec<u32> {
        self.sizes.iter().map(|of| of.size).collect()
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn new(count: u32, many: bool) -> Report {
        Report { count, many, sizes: Vec::new() }
    }

    pub(crate) fn add(&mut self, size: u32, paths: Vec<Path>) {
        self.sizes.push(OfSize { size, paths });
    }

    /// Whether each path was measured.
    pub(crate) fn is_whole(&self) -> bool {
        self.sizes.iter().flat_map(|of| &of.paths).all(|path| path.error.is_none())
    }

    /// One object: with `size` and `paths` for a single size, with a list `sizes` of these for all.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string(&self.object()).expect("plain data")
    }

    /// The same, to be written elsewhere.
    pub(super) fn object(&self) -> impl Serialize + '_ {
        let (version, count) = (VERSION, self.count);
        match &self.sizes[..] {
            [OfSize { size, paths }] if !self.many => {
                Json { version, size: Some(*size), count, paths: Some(paths), sizes: None }
            }
            sizes => Json { version, size: None, count, paths: None, sizes: Some(sizes) },
        }
    }

    /// For people: a table, and the histograms of the measured paths if requested.
    pub(crate) fn text(&self, histograms: bool) -> String {
        let mut lines = match &self.sizes[..] {
            [OfSize { size, .. }] if !self.many => vec![format!(
                "half round trips of {size} bytes, in microseconds; machines that are emulated, or busy, compare only"
            )],
            _ => {
                vec!["half round trips, in microseconds; machines that are emulated, or busy, compare only".to_owned()]
            }
        };
        lines.push("within one run".to_owned());
        let bytes = |size: &dyn Display| if self.many { format!("{size:>8} ") } else { String::new() };
        lines.push(format!(
            "{}{:<9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}  {:>7}",
            bytes(&"bytes"),
            "path",
            "count",
            "min",
            "p50",
            "p90",
            "p99",
            "p99.9",
            "max",
            "on link"
        ));
        lines.extend(self.measured().map(|(size, path)| bytes(&size) + &path.row()));
        lines.extend(self.sizes.iter().flat_map(OfSize::ratios));
        for (size, path) in self.measured().filter(|_| histograms) {
            let Some(histogram) = &path.histogram else { continue };
            lines.push(format!("\n{}, {size} bytes:", path.path));
            lines.extend(histogram::rows(&histogram.0));
        }
        lines.join("\n") + "\n"
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn measured(micros: &[u64]) -> Result<Measured, LatError> {
        let mut histogram = Latencies::default();
        micros.iter().for_each(|micros| histogram.record_round_trip(Duration::from_micros(2 * micros)));
        Ok(Measured { histogram, link_share: None })
    }

    #[test]
    fn the_kernels_sockets_and_the_library_are_compared() {
        let mut report = Report::new(4, false);
        let paths = [("udp-stack", [2, 2, 4, 4]), ("udp", [20, 20, 40, 40]), ("tcp", [9; 4])];
        report.add(64, paths.map(|(path, micros)| Path::new(path, measured(&micros))).into());
        let expected =
            "64 bytes: udp takes 30.01 us, deviation 10.00 us on average, udp-stack 3.00 us, deviation 1.00 us: \
                        10.0 times as long\n";
        assert!(report.text(false).ends_with(expected), "{}", report.text(false));
    }

    fn report(sizes: &[u32], many: bool) -> Report {
        let mut report = Report::new(4, many);
        for size in sizes {
            report.add(*size, vec![Path::new("send", measured(&[2, 3, 3, 9])), Path::new("tcp", measured(&[20; 4]))]);
        }
        report
    }

    #[test]
    fn a_path_that_failed_makes_the_run_incomplete() {
        let mut report = report(&[64], false);
        assert!(report.is_whole());
        report.add(128, vec![Path::new("write", Err(LatError::Disconnected))]);
        assert!(!report.is_whole());
        assert!(report.text(true).contains("write     not measured: the link ended\n"), "{}", report.text(true));
    }

    /// Breaks if readers of the JSON of one size had to handle several.
    #[test]
    fn json_has_one_size_as_ever_and_many_in_a_list() {
        assert!(report(&[64], false)
            .json()
            .starts_with(r#"{"version":1,"size":64,"count":4,"paths":[{"path":"send","#));
        let read = |report: Report| serde_json::from_str::<serde_json::Value>(&report.json()).expect("as written");
        let keys =
            |value: &serde_json::Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
        let one = read(report(&[64], false));
        assert_eq!(keys(&one), ["count", "paths", "size", "version"]);
        assert_eq!(
            (one["size"].as_u64(), one["count"].as_u64(), one["version"].as_u64()),
            (Some(64), Some(4), Some(1))
        );
        assert_eq!(keys(&one["paths"][0]), ["histogram", "latency_ns", "path"]);
        let many = read(report(&[2, 4], true));
        assert_eq!(keys(&many), ["count", "sizes", "version"]);
        assert_eq!((many["sizes"][1]["size"].as_u64(), &many["sizes"][1]["paths"]), (Some(4), &one["paths"]));
        assert_eq!(keys(&read(report(&[2], true))), ["count", "sizes", "version"], "all that were wanted");
    }

    #[test]
    fn the_table_has_a_row_for_each_size_and_path() {
        let one = report(&[64], false).text(false);
        let lines: Vec<&str> = one.lines().collect();
        assert_eq!(lines.len(), 5, "{one}");
        assert!(lines[0].starts_with("half round trips of 64 bytes, in microseconds;"), "{one}");
        assert_eq!(lines[3], "send             4     2.00     3.00     9.01     9.01     9.01     9.01        -");
        let many = report(&[2, 8_388_608], true).text(false);
        let firsts: Vec<Vec<&str>> =
            many.lines().skip(2).map(|line| line.split_whitespace().take(2).collect()).collect();
        assert_eq!(firsts, [["bytes", "path"], ["2", "send"], ["2", "tcp"], ["8388608", "send"], ["8388608", "tcp"]]);
        let shown = report(&[2], true).text(true);
        assert!(shown.contains("\nsend, 2 bytes:\n") && shown.contains("\ntcp, 2 bytes:\n"), "{shown}");
    }
}
