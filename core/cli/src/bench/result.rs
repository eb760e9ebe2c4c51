//! The result of a benchmark, in the form of its JSON.
//!
//! Others read this format (README, notebooks, CI): fields may be added, but keep their names and
//! meaning.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::link::LinkBytes;
use super::machine::Machine;
use super::paths::REFERENCE;
use super::stats::{median, ratio, tidy, Ratio};

/// One `netacc bench` command's result.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// The load: redis, memcached, echo, many, stream or connect.
    pub bench: String,
    /// The measured tests: only redis and memcached have more than one.
    pub test: String,
    /// The command's settings.
    pub params: Value,
    /// The machine and the time.
    pub machine: Machine,
    /// The first test's results by path.
    pub paths: Paths,
    /// All tests' results, when there is more than one.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub tests: IndexMap<String, Paths>,
    /// Paths that could not be measured here, with the reason.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub skipped: IndexMap<String, String>,
    /// Doubts about the figures.
    #[serde(default)]
    pub warnings: Vec<String>,
}

impl Report {
    /// Rates and processor time are of this: connect counts whole connections.
    pub(crate) fn counted(&self) -> &'static str {
        match self.bench.as_str() {
            "connect" => "connections",
            _ => "requests",
        }
    }

    /// The results test by test.
    pub fn by_test(&self) -> Vec<(&str, &Paths)> {
        if self.tests.is_empty() {
            vec![(&self.test, &self.paths)]
        } else {
            self.tests.iter().map(|(test, paths)| (test.as_str(), paths)).collect()
        }
    }
}

/// Results by path, in the order in which the paths were measured.
pub type Paths = IndexMap<String, PathResult>;

/// Latencies of requests in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// The slowest of all.
    pub max: f64,
    /// Mean.
    pub avg: f64,
}

/// What many connections of one server take; `many` only.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Crowd {
    /// Bytes for a connection in the server: written memory, and its part of shared memory.
    pub server_bytes: f64,
    /// The same in the clients.
    pub client_bytes: f64,
    /// Share of the connections that were on links two seconds after the first use of the last one; backend paths only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub linked: Option<f64>,
    /// Milliseconds until the server had given out all of its statistics; backend paths only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics_ms: Option<f64>,
}

/// How often the two ends asked for what is ready, and slept, for each request.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Waits {
    /// The client's calls that ask; 0 in modes that do not ask, and not known of redis-benchmark without the library.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_asks: Option<f64>,
    /// Its sleeps: voluntary context switches.
    pub client_sleeps: f64,
    /// Nanoseconds that it has spun while it waited, with its warm-up; under the library only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_spun_ns: Option<f64>,
    /// The server's calls that ask: of our own server with its warm-up, and not of datagrams; of others under the library.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_asks: Option<f64>,
    /// Its sleeps.
    pub server_sleeps: f64,
    /// Nanoseconds that it has spun while it waited; under the library only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_spun_ns: Option<f64>,
    /// Nanoseconds of an `epoll_ctl` that adds or deletes one of the client's connections; in mode `epoll` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interest_change_ns: Option<f64>,
}

/// The two parts of waking the server's thread, which sleeps in `epoll_wait`, by a client that does not sleep; `echo --wakes` only.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Wakes {
    /// Median nanoseconds of a write directly after one that wakes it, which wakes nobody.
    pub other_ns: u64,
    /// By how long the server was idle, shortest first: a processor that is not asleep yet is woken by no interrupt.
    pub by_pause: Vec<Wake>,
}

/// Waking the server after a pause.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Wake {
    /// From its answer until the write begins that wakes it.
    pub pause_ns: u64,
    /// Nanoseconds of a write that wakes it, and how many took so long: the waker's part, and what a write costs anyway.
    pub waking_ns: Vec<(u64, u64)>,
    /// Nanoseconds of the server's processor time for both messages, its sleep included.
    #[serde(default)]
    pub server_cpu_ns: f64,
    /// Nanoseconds from the begin of a write until the thread runs, and how many took so long: its round trip, less that of a message which
    /// finds the server awake.
    pub delay_ns: Vec<(u64, u64)>,
}

/// One measurement of one path.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Run {
    /// The interleaved round, from 1.
    pub round: u32,
    /// Requests (echo and many: round trips, stream: writes, connect: connections) completed.
    pub requests: u64,
    /// Time that they took.
    pub seconds: f64,
    /// Requests per second.
    pub requests_per_s: f64,
    /// Payload bytes one way per second; streams only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<f64>,
    /// Latencies of the requests.
    pub latency_us: Latency,
    /// CPU seconds of the server.
    pub server_cpu_s: f64,
    /// CPU seconds of the client.
    pub client_cpu_s: f64,
    /// Payload bytes on the link; backend paths only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_link: Option<u64>,
    /// Payload bytes on kernel TCP; backend paths only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_tcp: Option<u64>,
    /// The least payload bytes of the requests; backend paths only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_expected: Option<u64>,
    /// Processors that other programs kept busy meanwhile; unknown in older results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_processors: Option<f64>,
    /// How long a cache line took between two processors and back after it, in nanoseconds; unknown in older results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfer_ns: Option<u64>,
    /// What many connections take; `many` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crowd: Option<Crowd>,
    /// How often both ends asked and slept; `echo`, `many`, `memcached` and `redis` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<Waits>,
    /// What waking the server costs; `echo --wakes` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wakes: Option<Wakes>,
    /// Latencies in nanoseconds, and how many requests had each; with `--histogram`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub histogram_ns: Vec<(u64, u64)>,
    /// The reasons why sockets were not on the link, if any were not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

impl Run {
    fn link_bytes(&self) -> Option<LinkBytes> {
        Some(LinkBytes { link: self.bytes_link?, tcp: self.bytes_tcp? })
    }
}

/// One path's measurements in all rounds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PathResult {
    /// Median of the rounds.
    pub requests_per_s: f64,
    /// Payload bytes one way per second, median of the rounds; streams only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<f64>,
    /// Each the median of the rounds; `max` too, and the worst of all is in `runs`.
    pub latency_us: Latency,
    /// Half of the median round trip; echo only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub one_way_us: Option<f64>,
    /// CPU seconds of the server for a million requests, median of the rounds.
    pub server_cpu_s_per_million: f64,
    /// CPU seconds of the client for a million requests, median of the rounds.
    pub client_cpu_s_per_million: f64,
    /// CPU seconds of the server for a GiB; streams only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_cpu_s_per_gib: Option<f64>,
    /// CPU seconds of the client for a GiB; streams only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_cpu_s_per_gib: Option<f64>,
    /// Requests per second to TCP's of the same round; `null` when TCP was not measured.
    pub ratio_to_tcp: Option<Ratio>,
    /// Median latency to TCP's.
    pub ratio_p50_to_tcp: Option<Ratio>,
    /// 99th percentile to TCP's.
    pub ratio_p99_to_tcp: Option<Ratio>,
    /// Server CPU per request to TCP's.
    pub ratio_server_cpu_to_tcp: Option<Ratio>,
    /// Client CPU per request to TCP's.
    pub ratio_client_cpu_to_tcp: Option<Ratio>,
    /// Share of the payload bytes that went over the link; `null` for paths without one, and when
    /// there is no proof.
    pub link_share: Option<f64>,
    /// What many connections take, each figure the median of the rounds; `many` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crowd: Option<Crowd>,
    /// Every measurement as it was.
    pub runs: Vec<Run>,
}

/// The optional figures of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Requests and their latencies only.
    Requests,
    /// Round trips between two processes.
    PingPong,
    /// Bytes one way.
    Bulk,
}

/// Summarises the runs of one test: `runs[path]` holds one run for each round.
pub(crate) fn summarise(runs: IndexMap<String, Vec<Run>>, kind: Kind) -> Paths {
    let reference = runs.get(REFERENCE).cloned();
    runs.into_iter().map(|(path, runs)| (path, summarise_path(runs, reference.as_deref(), kind))).collect()
}

fn summarise_path(runs: Vec<Run>, reference: Option<&[Run]>, kind: Kind) -> PathResult {
    let middle = |figure: &dyn Fn(&Run) -> f64| tidy(median(runs.iter().map(figure)).unwrap_or(0.0));
    let to_tcp = |figure: &dyn Fn(&Run) -> f64| {
        let of = |runs: &[Run]| runs.iter().map(figure).collect::<Vec<_>>();
        ratio(&of(&runs), &of(reference?))
    };
    let per_million = |seconds: f64, run: &Run| seconds * 1e6 / run.requests.max(1) as f64;
    let per_gib = |seconds: f64, run: &Run| {
        let bytes = run.bytes_per_s.unwrap_or(0.0) * run.seconds;
        seconds * f64::from(1 << 30) / bytes.max(1.0)
    };
    let bulk = kind == Kind::Bulk;
    let latency_us = Latency {
        p50: middle(&|run| run.latency_us.p50),
        p95: middle(&|run| run.latency_us.p95),
        p99: middle(&|run| run.latency_us.p99),
        p999: middle(&|run| run.latency_us.p999),
        max: middle(&|run| run.latency_us.max),
        avg: middle(&|run| run.latency_us.avg),
    };
    let expected: u64 = runs.iter().filter_map(|run| run.bytes_expected).sum();
    let link_bytes = runs.iter().filter_map(Run::link_bytes).reduce(LinkBytes::and);
    PathResult {
        requests_per_s: middle(&|run| run.requests_per_s),
        bytes_per_s: bulk.then(|| middle(&|run| run.bytes_per_s.unwrap_or(0.0))),
        latency_us,
        one_way_us: (kind == Kind::PingPong).then_some(latency_us.p50 / 2.0),
        server_cpu_s_per_million: middle(&|run| per_million(run.server_cpu_s, run)),
        client_cpu_s_per_million: middle(&|run| per_million(run.client_cpu_s, run)),
        server_cpu_s_per_gib: bulk.then(|| middle(&|run| per_gib(run.server_cpu_s, run))),
        client_cpu_s_per_gib: bulk.then(|| middle(&|run| per_gib(run.client_cpu_s, run))),
        ratio_to_tcp: to_tcp(&|run| run.requests_per_s),
        ratio_p50_to_tcp: to_tcp(&|run| run.latency_us.p50),
        ratio_p99_to_tcp: to_tcp(&|run| run.latency_us.p99),
        ratio_server_cpu_to_tcp: to_tcp(&|run| per_million(run.server_cpu_s, run)),
        ratio_client_cpu_to_tcp: to_tcp(&|run| per_million(run.client_cpu_s, run)),
        link_share: link_bytes.and_then(|bytes| bytes.share(expected)).map(tidy),
        crowd: summarise_crowds(&runs),
        runs,
    }
}

fn summarise_crowds(runs: &[Run]) -> Option<Crowd> {
    let crowds: Vec<Crowd> = runs.iter().filter_map(|run| run.crowd).collect();
    let middle = |figure: &dyn Fn(&Crowd) -> Option<f64>| median(crowds.iter().filter_map(figure)).map(tidy);
    Some(Crowd {
        server_bytes: middle(&|crowd| Some(crowd.server_bytes))?,
        client_bytes: middle(&|crowd| Some(crowd.client_bytes))?,
        linked: middle(&|crowd| crowd.linked),
        statistics_ms: middle(&|crowd| crowd.statistics_ms),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A run with the given rate; everything else follows from it.
    pub(crate) fn run(round: u32, requests_per_s: f64) -> Run {
        let p50 = 1e6 / requests_per_s;
        Run {
            round,
            requests: 1000,
            seconds: 1000.0 / requests_per_s,
            requests_per_s,
            bytes_per_s: None,
            latency_us: Latency { p50, p95: 1.5 * p50, p99: 2.0 * p50, p999: 3.0 * p50, max: 9.0 * p50, avg: p50 },
            server_cpu_s: 0.5,
            client_cpu_s: 0.25,
            bytes_link: None,
            bytes_tcp: None,
            bytes_expected: None,
            other_processors: None,
            transfer_ns: None,
            crowd: None,
            waits: None,
            wakes: None,
            histogram_ns: Vec::new(),
            reasons: Vec::new(),
        }
    }

    #[test]
    fn ratios_pair_the_rounds() {
        let tcp = vec![run(1, 10.0), run(2, 20.0), run(3, 40.0)];
        let mut shm = vec![run(1, 40.0), run(2, 40.0), run(3, 80.0)];
        shm[0].bytes_link = Some(90);
        shm[0].bytes_tcp = Some(10);
        let paths = summarise(IndexMap::from([("tcp".into(), tcp), ("shm".into(), shm)]), Kind::PingPong);
        let shm = &paths["shm"];
        assert_eq!(shm.ratio_to_tcp, Some(Ratio { median: 2.0, min: 2.0, max: 4.0 }));
        assert_eq!(shm.ratio_p99_to_tcp, Some(Ratio { median: 0.5, min: 0.25, max: 0.5 }));
        assert_eq!(shm.requests_per_s, 40.0);
        assert_eq!(shm.server_cpu_s_per_million, 500.0);
        assert_eq!(shm.one_way_us, Some(12_500.0));
        assert_eq!(shm.link_share, Some(0.9));
        assert_eq!(paths["tcp"].ratio_to_tcp, Some(Ratio { median: 1.0, min: 1.0, max: 1.0 }));
        assert_eq!(paths["tcp"].link_share, None);
    }

    #[test]
    fn without_tcp_there_is_no_ratio() {
        let paths = summarise(IndexMap::from([("unix".into(), vec![run(1, 1.0)])]), Kind::Requests);
        assert_eq!(paths["unix"].ratio_to_tcp, None);
        assert_eq!(paths["unix"].one_way_us, None);
    }

    #[test]
    fn figures_of_many_connections_are_medians() {
        let crowd =
            |kib: f64, linked| Crowd { server_bytes: kib, client_bytes: 2.0 * kib, linked, statistics_ms: None };
        let crowds = [crowd(3.0, Some(1.0)), crowd(1.0, None), crowd(2.0, Some(1.0))];
        let runs = (1..).zip(crowds).map(|(round, crowd)| Run { crowd: Some(crowd), ..run(round, 1.0) }).collect();
        let paths = summarise(IndexMap::from([("shm".into(), runs)]), Kind::PingPong);
        assert_eq!(paths["shm"].crowd, Some(crowd(2.0, Some(1.0))));
    }

    #[test]
    fn bulk_has_bytes_and_cpu_per_gib() {
        let mut one = run(1, 1000.0);
        one.bytes_per_s = Some(f64::from(1 << 30));
        let paths = summarise(IndexMap::from([("tcp".into(), vec![one])]), Kind::Bulk);
        assert_eq!(paths["tcp"].bytes_per_s, Some(f64::from(1 << 30)));
        assert_eq!(paths["tcp"].server_cpu_s_per_gib, Some(0.5));
    }
}
