//! The record of a trace: a series for each direction and for the requests of each pair, and a table of messages.

use std::collections::BTreeMap;

use netacc_trace::message::{Message, Process};
use netacc_trace::stage::{Stage, Stages};
use serde::Serialize;
use serde_json::json;

use super::args::TraceArgs;
use super::show::{name, path_name, Parties};
use crate::bench::Machine;
use crate::record::{Draft, Header, Kind, RecordError, Run, Series, Status};

const MESSAGES: &str = "messages.jsonl";

/// What is written.
pub(super) struct Traced<'a> {
    pub(super) processes: &'a [Process],
    pub(super) messages: &'a [Message],
    /// The windows and latencies of requests, by client, server and path.
    pub(super) requests: &'a [(Parties, Vec<(usize, u64)>)],
    /// How many windows there were.
    pub(super) windows: usize,
    pub(super) warnings: Vec<String>,
    pub(super) complete: bool,
}

/// The windows of a trace are so many runs at most: their differences show how certain a figure is.
const RUNS: usize = 10;

impl Traced<'_> {
    fn run_of(&self, window: usize) -> usize {
        window * RUNS.min(self.windows) / self.windows.max(1)
    }
}

/// A row of the table.
#[derive(Serialize)]
struct Row<'a> {
    window: usize,
    start_ns: u64,
    connection: String,
    from: &'a str,
    to: &'a str,
    path: &'a str,
    bytes: u64,
    #[serde(flatten)]
    stages_ns: BTreeMap<&'static str, u64>,
}

/// Writes the record.
pub(super) fn write(draft: Draft, args: &TraceArgs, machine: &Machine, traced: &Traced<'_>) -> Result<(), RecordError> {
    let mut header = Header::new(Kind::Trace, "netacc trace: stages of messages".to_owned(), machine);
    header.end(if traced.complete { Status::Complete } else { Status::Unfinished });
    let seconds = |time: std::time::Duration| time.as_secs_f64();
    header.parameters = json!({
        "duration_s": seconds(args.duration), "window_s": seconds(args.window), "every_s": seconds(args.every),
    });
    header.warnings.clone_from(&traced.warnings);
    let mut rows = draft.lines(MESSAGES)?;
    let origin = traced.messages.iter().map(|message| message.start).min().unwrap_or(0);
    let mut directions: BTreeMap<String, Runs<Stages>> = BTreeMap::new();
    for message in traced.messages {
        let party = |process: usize| label(traced.processes, process);
        let (from, to, path) =
            (party(message.sender.process), party(message.receiver.process), path_name(message.path));
        let stages = Stage::ALL.into_iter().map(|stage| (stage.name(), message.stages.get(stage)));
        rows.add(&Row {
            window: message.window,
            start_ns: message.start - origin,
            connection: format!("{:016x}", message.connection),
            from: &from,
            to: &to,
            path: &path,
            bytes: message.length,
            stages_ns: stages.collect(),
        })?;
        let runs = directions.entry(format!("{from} to {to}, {path}")).or_default();
        runs.entry(traced.run_of(message.window)).or_default().push(message.stages);
    }
    for (name, runs) in directions {
        let runs = runs.into_iter().map(|(number, messages)| {
            let latencies = histogram(&draft, &name, number, messages.iter().map(Stages::total))?;
            let means = Stage::ALL.into_iter().map(|stage| (mean_name(stage), mean(&messages, stage)));
            Ok(Run { histograms: latencies, figures: means.collect(), ..Run::default() })
        });
        let runs = runs.collect::<Result<_, _>>()?;
        header.series.push(Series { name, of: "messages".to_owned(), link_share: None, runs });
    }
    header.series.extend(requests(&draft, traced)?);
    let what = "Each message that was seen as a whole: when its sender called, and its stages, in nanoseconds.";
    header.tables.push(rows.table("messages", what));
    draft.publish(&header).map(drop)
}

/// Values by the number of their run.
type Runs<T> = BTreeMap<usize, Vec<T>>;

/// A series for the requests of each pair of programs.
fn requests(draft: &Draft, traced: &Traced<'_>) -> Result<Vec<Series>, RecordError> {
    let pairs = traced.requests.iter().map(|((client, server, path), times)| {
        let party = |process: usize| label(traced.processes, process);
        let name = format!("{} asks {}, {}", party(*client), party(*server), path_name(*path));
        let mut runs: Runs<u64> = BTreeMap::new();
        for (window, time) in times {
            runs.entry(traced.run_of(*window)).or_default().push(*time);
        }
        let runs = runs
            .into_iter()
            .map(|(number, times)| Ok(Run { histograms: histogram(draft, &name, number, times)?, ..Run::default() }));
        let runs = runs.collect::<Result<_, RecordError>>()?;
        Ok(Series { name, of: "requests".to_owned(), link_share: None, runs })
    });
    pairs.collect()
}

/// The file with the latencies of a run.
fn histogram(
    draft: &Draft,
    name: &str,
    run: usize,
    times: impl IntoIterator<Item = u64>,
) -> Result<BTreeMap<&'static str, String>, RecordError> {
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    for time in times {
        *counts.entry(time).or_default() += 1;
    }
    let counts: Vec<_> = counts.into_iter().collect();
    Ok(BTreeMap::from([("latency", draft.histogram(&format!("latency-{name}-{run}"), &counts)?)]))
}

fn mean(messages: &[Stages], stage: Stage) -> f64 {
    messages.iter().map(|stages| stages.get(stage) as f64).sum::<f64>() / messages.len().max(1) as f64
}

/// The name of the figure: the unit is its end.
fn mean_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Call => "call_ns",
        Stage::Copy => "copy_ns",
        Stage::Held => "held_ns",
        Stage::Post => "post_ns",
        Stage::Wire => "wire_ns",
        Stage::Completion => "completion_ns",
        Stage::Wake => "wake_ns",
        Stage::Kernel => "kernel_ns",
        Stage::Ready => "ready_ns",
        Stage::Read => "read_ns",
    }
}

/// A process by the name of its program, so that records of the same programs can be compared; with its number where
/// several have that name.
fn label(processes: &[Process], process: usize) -> String {
    let Some(one) = processes.get(process) else { return String::new() };
    match processes.iter().filter(|other| other.program == one.program).count() {
        1 => one.program.clone(),
        _ => name(processes, process),
    }
}
