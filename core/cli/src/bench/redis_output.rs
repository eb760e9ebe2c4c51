//! Reads the output of redis-benchmark (6.2 and later, without `--csv` or `-q`).
//!
//! The CSV has no 99.9th percentile, so the full output is read. Its "latency by percentile distribution" and
//! "cumulative distribution" are two samplings of one histogram; together they bracket any percentile, which is then
//! interpolated. redis-benchmark's own histogram resolves about 8 µs near 1 ms (4 µs to 8 µs below), and its output has
//! no finer figures. A histogram of its output has them, so it is exact at these latencies only.

use super::error::BenchError;
use super::result::Latency;

/// One test's figures.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RedisTest {
    /// As redis-benchmark prints it: "SET", "LPUSH", "MSET (10 keys)".
    pub(crate) name: String,
    pub(crate) requests: u64,
    pub(crate) requests_per_s: f64,
    pub(crate) latency_us: Latency,
    /// Latencies in nanoseconds, and how many requests had each. Those between two figures of the output count as the
    /// larger one.
    pub(crate) histogram_ns: Vec<(u64, u64)>,
}

/// All tests in the output.
///
/// # Errors
/// A test lacks a figure.
pub(crate) fn parse<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Vec<RedisTest>, BenchError> {
    let mut sections: Vec<Section> = Vec::new();
    for line in lines {
        // Progress overwrites itself with carriage returns; only the last text counts.
        let line = line.trim_end_matches('\r').rsplit('\r').next().unwrap_or_default().trim();
        if let Some(name) = heading(line) {
            sections.push(Section { name: name.to_owned(), ..Section::default() });
        } else if let Some(section) = sections.last_mut() {
            section.read(line);
        }
    }
    sections.into_iter().map(Section::finish).collect()
}

/// The figures of one test so far.
#[derive(Debug, Default)]
struct Section {
    name: String,
    requests: Option<u64>,
    requests_per_s: Option<f64>,
    /// avg, min, p50, p95, p99, max in milliseconds.
    summary: Option<[f64; 6]>,
    /// Requests that took at most so many milliseconds.
    cumulative: Vec<(u64, f64)>,
}

impl Section {
    fn read(&mut self, line: &str) {
        if line.contains("requests completed in") {
            self.requests = first_number(line).map(|requests| requests as u64);
        } else if let Some(rate) = line.strip_prefix("throughput summary:") {
            self.requests_per_s = first_number(rate);
        } else if let Some(point) = cumulative_point(line) {
            self.cumulative.push(point);
        } else if let Some(figures) = six_numbers(line) {
            self.summary = Some(figures);
        }
    }

    fn finish(self) -> Result<RedisTest, BenchError> {
        let missing = |what: &str| BenchError::RedisOutput(format!("{}: no {what}", self.name));
        let requests = self.requests.ok_or_else(|| missing("number of requests"))?;
        let [avg, _min, p50, p95, p99, max] = self.summary.ok_or_else(|| missing("latency summary"))?;
        let p999 = percentile(&self.cumulative, 0.999).ok_or_else(|| missing("latency distribution"))?;
        let requests_per_s = self.requests_per_s.ok_or_else(|| missing("throughput summary"))?;
        if !requests_per_s.is_finite() || requests_per_s <= 0.0 {
            return Err(missing("meaningful rate: too few requests to take any time"));
        }
        let us = |ms: f64| (ms * 1e6).round() / 1e3;
        // Interpolation must not contradict the summary, which comes from the histogram itself.
        let p999 = p999.clamp(p99.min(max), max);
        Ok(RedisTest {
            requests,
            requests_per_s,
            latency_us: Latency {
                p50: us(p50),
                p95: us(p95),
                p99: us(p99),
                p999: us(p999),
                max: us(max),
                avg: us(avg),
            },
            histogram_ns: histogram_ns(self.cumulative, requests, &[(0.95, p95), (0.99, p99)], max),
            name: self.name,
        })
    }
}

fn heading(line: &str) -> Option<&str> {
    line.strip_prefix("====== ")?.strip_suffix(" ======")
}

fn first_number(text: &str) -> Option<f64> {
    text.split_whitespace().next()?.parse().ok()
}

/// "99.805% <= 1.079 milliseconds (cumulative count 19961)"
fn cumulative_point(line: &str) -> Option<(u64, f64)> {
    let (_, rest) = line.split_once("% <= ")?;
    let (ms, rest) = rest.split_once(" milliseconds (cumulative count ")?;
    Some((rest.strip_suffix(')')?.parse().ok()?, ms.parse().ok()?))
}

fn six_numbers(line: &str) -> Option<[f64; 6]> {
    let numbers: Vec<f64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    numbers.try_into().ok()
}

/// The requests at each known latency. `shares` are percentiles that are known besides, in milliseconds as all.
fn histogram_ns(mut points: Vec<(u64, f64)>, requests: u64, shares: &[(f64, f64)], max: f64) -> Vec<(u64, u64)> {
    points.extend(shares.iter().map(|(share, ms)| ((requests as f64 * share) as u64, *ms)));
    points.push((requests, max));
    points.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    let mut counted = 0;
    let mut found = Vec::new();
    for (count, ms) in points {
        let count = count.min(requests);
        if count > counted {
            // The cumulative distribution has rounded values, so its last one may exceed the largest.
            found.push(((ms.min(max) * 1e6).round() as u64, count - counted));
            counted = count;
        }
    }
    found
}

/// The latency that this share of the requests did not exceed, interpolated between the known
/// points.
fn percentile(points: &[(u64, f64)], share: f64) -> Option<f64> {
    let mut points = points.to_vec();
    points.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    let wanted = points.last()?.0 as f64 * share;
    let above = points.iter().position(|point| point.0 as f64 >= wanted)?;
    let (count, ms) = points[above];
    let Some((low_count, low_ms)) = above.checked_sub(1).map(|below| points[below]) else {
        return Some(ms);
    };
    let width = (count - low_count) as f64;
    Some(low_ms + (ms - low_ms) * (wanted - low_count as f64) / width.max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `redis-benchmark -c 100 -n 20000 -d 512 -t set,get --precision 3`, unchanged standard output.
    const OUTPUT: &str = include_str!("../../tests/fixtures/redis-benchmark-7.0.15-set-get.txt");

    #[test]
    fn real_output() {
        let tests = parse(OUTPUT.lines()).expect("redis-benchmark 7.0.15 printed this");
        let [set, get] = &tests[..] else { panic!("two tests: {tests:?}") };
        assert_eq!((set.name.as_str(), get.name.as_str()), ("SET", "GET"));
        assert_eq!(set.requests, 20_000);
        assert_eq!(set.requests_per_s, 206_185.56);
        let latency = set.latency_us;
        let summary = [latency.avg, latency.p50, latency.p95, latency.p99, latency.max];
        assert_eq!(summary, [274.0, 255.0, 375.0, 775.0, 1311.0]);
        // 19980 of 20000 lies between (19970, 1.103 ms) and (19982, 1.167 ms).
        assert!((latency.p999 - 1156.3).abs() < 0.1, "{}", latency.p999);
        assert_eq!(get.requests_per_s, 192_307.69);
        let [first, second, third, ..] = set.histogram_ns[..] else { panic!("more than three: {set:?}") };
        assert_eq!([first, second, third], [(127_000, 1), (207_000, 663), (255_000, 9909)]);
        // The 95th percentile of the summary is among them, and nothing is above the largest.
        assert!(set.histogram_ns.contains(&(375_000, 19_000 - 18_828)), "{:?}", set.histogram_ns);
        assert_eq!(set.histogram_ns.last().map(|(ns, _)| *ns), Some(1_311_000));
        assert_eq!(set.histogram_ns.iter().map(|(_, count)| count).sum::<u64>(), 20_000);
        assert!(get.latency_us.p999 >= get.latency_us.p99 && get.latency_us.p999 <= get.latency_us.max);
    }

    #[test]
    fn cut_off_output_is_an_error_and_none_is_no_test() {
        let cut = OUTPUT.split("throughput summary").next().expect("split gives at least one piece");
        let error = parse(cut.lines()).expect_err("figures are missing");
        assert!(error.to_string().contains("SET: no latency summary"), "{error}");
        assert_eq!(parse("".lines()).expect("nothing is wrong with nothing"), []);
    }

    #[test]
    fn percentile_at_the_ends() {
        assert_eq!(percentile(&[], 0.5), None);
        assert_eq!(percentile(&[(10, 1.0)], 0.999), Some(1.0));
        assert_eq!(percentile(&[(0, 0.1), (10, 1.1)], 0.5), Some(0.6));
    }
}
