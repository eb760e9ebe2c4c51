//! The tables of a trace, and the same as JSON.

use comfy_table::{presets, Cell, CellAlignment, Table};
use hdrhistogram::Histogram;
use netacc_proto::Reason;
use netacc_trace::clocks::Relation;
use netacc_trace::events::Trace;
use netacc_trace::message::{Message, Messages, Path, Process};
use netacc_trace::request::{requests, Request};
use netacc_trace::stage::Stage;
use netacc_trace::summary::{by_connection, by_group, StageSummary, SLOWEST};
use serde::Serialize;

/// A trace, summarised.
#[derive(Serialize)]
pub(super) struct Shown {
    /// Messages from one program to another on one path.
    messages: Vec<ShownGroup>,
    /// The slowest connections, if they were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    connections: Vec<ShownConnection>,
    /// Requests and their answers, where both were seen.
    requests: Vec<ShownRequests>,
    /// Messages that did not end in their window.
    cut: u64,
    /// Events that were lost.
    lost_events: u64,
}

/// The clocks of two hosts, whose traces were joined. Times are in nanoseconds.
#[derive(Clone, Serialize)]
pub(super) struct Clocks {
    first: String,
    second: String,
    /// The second one minus the first one.
    difference: f64,
    /// Its growth, in nanoseconds a second.
    drift_per_s: f64,
    /// Times between the hosts are wrong by at most so much.
    uncertainty: f64,
}

impl Clocks {
    pub(super) fn new(first: &Trace, second: &Trace, relation: &Relation) -> Clocks {
        Clocks {
            first: first.host.clone(),
            second: second.host.clone(),
            difference: relation.difference,
            drift_per_s: relation.drift * 1e9,
            uncertainty: relation.uncertainty,
        }
    }
}

/// A trace with what is to be known about it.
#[derive(Serialize)]
pub(super) struct Noted<'a> {
    #[serde(flatten)]
    shown: &'a Shown,
    #[serde(skip_serializing_if = "Option::is_none")]
    clocks: Option<Clocks>,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct ShownGroup {
    from: String,
    to: String,
    path: String,
    messages: u64,
    stages: Vec<StageSummary>,
}

#[derive(Serialize)]
struct ShownConnection {
    from: String,
    to: String,
    path: String,
    ports: [u16; 2],
    messages: u64,
    mean: f64,
    p99: u64,
    largest_stage: &'static str,
    largest_stage_mean: f64,
}

#[derive(Serialize)]
struct ShownRequests {
    client: String,
    server: String,
    path: String,
    requests: u64,
    /// The stages of both messages, and the server's time between them.
    stages: Vec<ShownPart>,
}

#[derive(Serialize)]
struct ShownPart {
    part: String,
    mean: f64,
    p50: u64,
    p99: u64,
}

impl Shown {
    /// With the slowest `connections`.
    pub(super) fn of(processes: &[Process], messages: &Messages, lost_events: u64, connections: usize) -> Shown {
        let name = |process: usize| name(processes, process);
        let groups = by_group(&messages.messages).into_iter().map(|(group, summary)| ShownGroup {
            from: name(group.from),
            to: name(group.to),
            path: path_name(group.path),
            messages: summary.messages,
            stages: summary.stages,
        });
        let messages_shown = groups.collect();
        let requests =
            by_parties(&messages.messages).into_iter().map(|((client, server, path), requests)| ShownRequests {
                client: name(client),
                server: name(server),
                path: path_name(path),
                requests: requests.len() as u64,
                stages: parts(&requests),
            });
        let slowest = by_connection(&messages.messages).into_iter().take(connections).map(|one| ShownConnection {
            from: name(one.group.from),
            to: name(one.group.to),
            path: path_name(one.group.path),
            ports: one.ports,
            messages: one.messages,
            mean: one.mean,
            p99: one.p99,
            largest_stage: one.largest.0.name(),
            largest_stage_mean: one.largest.1,
        });
        Shown {
            messages: messages_shown,
            connections: slowest.collect(),
            requests: requests.collect(),
            cut: messages.cut,
            lost_events,
        }
    }

    /// How many messages there are.
    pub(super) fn count(&self) -> u64 {
        self.messages.iter().map(|group| group.messages).sum()
    }

    /// All of it.
    pub(super) fn with(&self, clocks: Option<Clocks>, warnings: Vec<String>) -> Noted<'_> {
        Noted { shown: self, clocks, warnings }
    }

    /// Tables for people.
    pub(super) fn render(&self, clocks: Option<&Clocks>, warnings: &[String]) -> String {
        let mut text = String::new();
        if let Some(Clocks { first, second, difference, drift_per_s, uncertainty }) = clocks {
            text += &format!(
                "clock of {second}: {:.3} ms ahead of {first}'s, {:.3} µs more each second; times between the hosts are known to \
                 {:.2} µs\n\n",
                difference / 1e6,
                drift_per_s / 1e3,
                uncertainty / 1e3
            );
        }
        for group in &self.messages {
            let ShownGroup { from, to, path, messages, .. } = group;
            text += &format!("{from} to {to}, {path}: {messages} messages, µs\n{}\n\n", group.table());
        }
        if !self.connections.is_empty() {
            text += &format!("slowest connections, µs\n{}\n\n", connections(&self.connections));
        }
        for requests in &self.requests {
            let ShownRequests { client, server, path, requests: count, .. } = requests;
            text += &format!("{client} asks {server}, {path}: {count} requests, µs\n{}\n\n", requests.table());
        }
        for warning in warnings {
            text += &format!("WARNING: {warning}\n");
        }
        text
    }

    /// Doubts about the figures.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let counted = self.count();
        if self.cut * 20 > counted {
            warnings.push(format!(
                "{} messages did not end in their window, beside {counted} that did: slow ones are missing. Use a longer \
                 --window; or the other end is not traced.",
                self.cut
            ));
        }
        if self.lost_events > 0 {
            warnings.push(format!("{} events were lost. Use a shorter --window.", self.lost_events));
        }
        warnings
    }
}

impl ShownGroup {
    fn table(&self) -> Table {
        let slowest = format!("slowest 1 in {SLOWEST}");
        let mut table = table(1, &["stage", "mean", "p50", "p99", "max", &slowest]);
        for StageSummary { stage, mean, p50, p99, max, slowest } in &self.stages {
            let times = [*mean, *p50 as f64, *p99 as f64, *max as f64, *slowest];
            table.add_row(row(stage, &times));
        }
        table
    }
}

impl ShownRequests {
    fn table(&self) -> Table {
        let mut table = table(1, &["part", "mean", "p50", "p99"]);
        for ShownPart { part, mean, p50, p99 } in &self.stages {
            table.add_row(row(part, &[*mean, *p50 as f64, *p99 as f64]));
        }
        table
    }
}

fn connections(shown: &[ShownConnection]) -> Table {
    let mut table = table(4, &["from", "to", "path", "ports", "messages", "mean", "p99", "largest stage", "its mean"]);
    for one in shown {
        let ports = format!("{} to {}", one.ports[0], one.ports[1]);
        let mut cells: Vec<Cell> = [&one.from, &one.to, &one.path, &ports].into_iter().map(Cell::new).collect();
        let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
        cells.push(right(one.messages.to_string()));
        cells.extend([one.mean, one.p99 as f64].map(|time| right(format!("{:.2}", time / 1000.0))));
        cells.push(Cell::new(one.largest_stage));
        cells.push(right(format!("{:.2}", one.largest_stage_mean / 1000.0)));
        table.add_row(cells);
    }
    table
}

/// The first `left` columns are of text.
fn table(left: usize, heads: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    let right = |(column, head): (usize, &&str)| {
        let alignment = if column < left { CellAlignment::Left } else { CellAlignment::Right };
        Cell::new(head).set_alignment(alignment)
    };
    table.set_header(heads.iter().enumerate().map(right));
    table
}

/// Times in nanoseconds, shown in microseconds.
fn row(name: &str, times: &[f64]) -> Vec<Cell> {
    let time = |time: &f64| Cell::new(format!("{:.2}", time / 1000.0)).set_alignment(CellAlignment::Right);
    std::iter::once(Cell::new(name)).chain(times.iter().map(time)).collect()
}

/// The program and its number.
pub(super) fn name(processes: &[Process], process: usize) -> String {
    processes.get(process).map_or_else(String::new, |process| format!("{} ({})", process.program, process.pid))
}

/// The path, with the reason for being on the anchor.
pub(super) fn path_name(path: Path) -> String {
    match path {
        Path::Link => "link".into(),
        Path::Anchor(reason) => format!("anchor ({})", Reason::from_code(reason).as_str()),
    }
}

/// The client's process, the server's, and the path of the request.
pub(super) type Parties = (usize, usize, Path);

/// The requests among the messages.
pub(super) fn by_parties(messages: &[Message]) -> Vec<(Parties, Vec<Request<'_>>)> {
    let mut groups = std::collections::BTreeMap::<Parties, Vec<Request<'_>>>::new();
    for request in requests(messages) {
        let Message { sender, receiver, path, .. } = request.request;
        groups.entry((sender.process, receiver.process, *path)).or_default().push(request);
    }
    groups.into_iter().collect()
}

fn parts(requests: &[Request<'_>]) -> Vec<ShownPart> {
    let mut parts = Vec::new();
    let mut add = |part: String, of: &dyn Fn(&Request<'_>) -> u64| {
        let times: Vec<u64> = requests.iter().map(of).collect();
        if times.iter().any(|time| *time > 0) {
            parts.push(summarise(part, &times));
        }
    };
    for stage in Stage::ALL {
        add(format!("request: {}", stage.name()), &|request| request.request.stages.get(stage));
    }
    add("server's program".into(), &|request| request.serving());
    for stage in Stage::ALL {
        add(format!("answer: {}", stage.name()), &|request| request.answer.stages.get(stage));
    }
    add("total".into(), &|request| request.total());
    parts
}

fn summarise(part: String, times: &[u64]) -> ShownPart {
    let mut histogram = Histogram::<u64>::new(3).expect("three digits are allowed");
    for time in times {
        // A histogram without bounds grows as far as it must.
        let _ = histogram.record(*time);
    }
    let mean = times.iter().map(|time| *time as f64).sum::<f64>() / times.len().max(1) as f64;
    ShownPart { part, mean, p50: histogram.value_at_quantile(0.5), p99: histogram.value_at_quantile(0.99) }
}
