//! The record of a benchmark: its rounds as runs, with whole histograms where the load has them.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::machine::Machine;
use super::result::{Report, Run};
use crate::record::{self, Draft, During, Header, Kind, RecordError, Series, Status, DETAILS};

/// A closed loop hides requests that a stall kept from being sent.
const CLOSED: &str = "a closed loop: the next request waits for the answer, so a stall counts once for each connection";

/// The loads that are closed loops of requests.
const CLOSED_LOOPS: [&str; 4] = ["redis", "memcached", "echo", "many"];

/// Writes the record of a result.
pub(super) fn write(draft: Draft, report: &Report, during: Option<During>) -> Result<(), RecordError> {
    let mut header = header(&title(report), &report.machine, report.params.clone());
    header.load.during = during;
    header.paired = true;
    header.warnings = report.warnings.clone();
    let skipped = report.skipped.iter().map(|(path, reason)| format!("{path} was not measured: {reason}"));
    header.warnings.extend(skipped);
    if CLOSED_LOOPS.contains(&report.bench.as_str()) {
        header.warnings.push(CLOSED.to_owned());
    }
    let many = !report.tests.is_empty();
    for (test, paths) in report.by_test() {
        for (path, result) in paths {
            let name = if many { format!("{test}: {path}") } else { path.clone() };
            let runs = result.runs.iter().map(|run| run_of(&draft, &name, run)).collect::<Result<_, _>>()?;
            let of = if many { test.to_owned() } else { String::new() };
            header.series.push(Series { name, of, link_share: result.link_share, runs });
        }
    }
    finish(draft, header, &without_histograms(report))
}

/// Of a benchmark that has ended now.
pub(super) fn header(title: &str, machine: &Machine, params: Value) -> Header {
    let mut header = Header::new(Kind::Bench, title.to_owned(), machine);
    header.end(Status::Complete);
    header.parameters = params;
    header
}

/// Adds the benchmark's own result, and gives the record its name.
pub(super) fn finish(draft: Draft, mut header: Header, result: &impl Serialize) -> Result<(), RecordError> {
    draft.details(result)?;
    header.details = Some(DETAILS);
    draft.publish(&header).map(drop)
}

/// A run that has a histogram only.
pub(super) fn run_with(draft: &Draft, stem: &str, pairs: &[(u64, u64)]) -> Result<record::Run, RecordError> {
    let name = draft.histogram(&format!("latency-{stem}"), pairs)?;
    Ok(record::Run { histograms: BTreeMap::from([("latency", name)]), ..record::Run::default() })
}

/// Records with the same title can be compared.
fn title(report: &Report) -> String {
    let test = if report.test == report.bench { String::new() } else { format!(" {}", report.test) };
    format!("netacc bench {}{test}", report.bench)
}

fn run_of(draft: &Draft, series: &str, run: &Run) -> Result<record::Run, RecordError> {
    let latency = run.latency_us;
    let in_ns =
        [("50", latency.p50), ("95", latency.p95), ("99", latency.p99), ("99.9", latency.p999), ("100", latency.max)];
    let mut histograms = BTreeMap::new();
    if !run.histogram_ns.is_empty() {
        let name = draft.histogram(&format!("latency-{series}-{}", run.round), &run.histogram_ns)?;
        histograms.insert("latency", name);
    }
    Ok(record::Run {
        rate_per_s: Some(run.requests_per_s),
        histograms,
        percentiles_ns: in_ns.map(|(percent, us)| (percent, us * 1000.0)).into(),
        figures: figures(run),
    })
}

fn figures(run: &Run) -> BTreeMap<&'static str, f64> {
    let of_request = |seconds: f64| seconds * 1e9 / run.requests.max(1) as f64;
    let count = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
    let (crowd, waits) = (run.crowd, run.waits);
    let all = [
        ("requests", Some(run.requests as f64)),
        ("seconds", Some(run.seconds)),
        ("bytes_per_s", run.bytes_per_s),
        ("server_cpu_per_request_ns", Some(of_request(run.server_cpu_s))),
        ("client_cpu_per_request_ns", Some(of_request(run.client_cpu_s))),
        ("bytes_link", count(run.bytes_link)),
        ("bytes_tcp", count(run.bytes_tcp)),
        ("bytes_expected", count(run.bytes_expected)),
        ("other_processors", run.other_processors),
        ("transfer_ns", run.transfer_ns.map(|ns| ns as f64)),
        ("server_bytes", crowd.map(|crowd| crowd.server_bytes)),
        ("client_bytes", crowd.map(|crowd| crowd.client_bytes)),
        ("linked", crowd.and_then(|crowd| crowd.linked)),
        ("statistics_ms", crowd.and_then(|crowd| crowd.statistics_ms)),
        ("client_asks", waits.and_then(|waits| waits.client_asks)),
        ("client_sleeps", waits.map(|waits| waits.client_sleeps)),
        ("client_spun_ns", waits.and_then(|waits| waits.client_spun_ns)),
        ("server_asks", waits.and_then(|waits| waits.server_asks)),
        ("server_sleeps", waits.map(|waits| waits.server_sleeps)),
        ("server_spun_ns", waits.and_then(|waits| waits.server_spun_ns)),
        ("interest_change_ns", waits.and_then(|waits| waits.interest_change_ns)),
    ];
    all.into_iter().filter_map(|(name, figure)| Some((name, figure?))).collect()
}

/// Their files have them.
fn without_histograms(report: &Report) -> Report {
    let mut report = report.clone();
    let of_tests = report.tests.values_mut().flat_map(|paths| paths.values_mut());
    for path in report.paths.values_mut().chain(of_tests) {
        path.runs.iter_mut().for_each(|run| run.histogram_ns.clear());
    }
    report
}
