//! `netacc_ss --record`: a process's statistics as time series, until it ends or the user interrupts.
//!
//! The record has its name from the first sample on, as unfinished. So whoever looks sees the rows that there are, and a
//! recorder that was killed leaves them.

use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use netacc_config::stats::{Counters, Snapshot};
use serde::Serialize;
use serde_json::{json, Map, Value};

use super::args::Recording;
use super::client::{fetch, FetchError};
use crate::bench::Machine;
use crate::record::{Draft, Header, Kind, Lines, RecordError, Status, Table};

/// The reason why nothing is recorded.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("signals cannot be handled: {0}")]
    Signals(#[from] ctrlc::Error),
}

/// Records, and returns the exit status.
pub(super) fn run(wanted: &Recording) -> u8 {
    match record(wanted) {
        Ok(()) => 0,
        Err(failed) => {
            eprintln!("netacc_ss: {failed}");
            match failed {
                Failed::Fetch(error) => error.status(),
                Failed::Record(RecordError::Exists(_)) => super::USAGE_STATUS,
                Failed::Record(_) | Failed::Signals(_) => super::OTHER_STATUS,
            }
        }
    }
}

fn record(wanted: &Recording) -> Result<(), Failed> {
    let draft = Draft::begin(&wanted.folder)?;
    let interrupted = interruptions()?;
    let machine = Machine::here();
    let began = Instant::now();
    // The configuration is asked for once.
    let first = fetch(wanted.pid, &format!("{},cfg", wanted.sections.request()))?;
    let mut header = header(wanted, &first, &machine);
    let mut tables = Tables::new(&draft, wanted, &first)?;
    tables.add(Duration::ZERO, &first)?;
    header.tables = tables.listed(false);
    let folder = draft.publish(&header)?;
    eprintln!("netacc_ss: recording process {} into {} until it ends or Ctrl-C", wanted.pid, folder.display());
    let mut missing = 0;
    for sample in 1.. {
        let at = wanted.every.saturating_mul(sample);
        if wanted.length.is_some_and(|length| at > length) || !sleep_until(began + at, &interrupted) {
            break;
        }
        let asked = began.elapsed();
        match fetch(wanted.pid, &wanted.sections.request()) {
            Ok(snapshot) => tables.add(asked, &snapshot)?,
            Err(FetchError::NoSuchProcess(_) | FetchError::NotAccelerated(_)) => {
                header.warnings.push("the process ended".to_owned());
                break;
            }
            Err(error) => {
                missing += 1;
                eprintln!("netacc_ss: {error}");
            }
        }
    }
    if missing > 0 {
        header.warnings.push(format!("{missing} samples are missing, because the process gave no answer"));
    }
    header.tables = tables.listed(true);
    header.end(Status::Complete);
    Ok(header.write(&folder)?)
}

fn header(wanted: &Recording, first: &Snapshot, machine: &Machine) -> Header {
    let mut header = Header::new(Kind::Ss, format!("netacc_ss: {}", first.program), machine);
    header.status = Status::Unfinished;
    header.configuration = first.cfg.clone().unwrap_or_default();
    header.parameters = json!({
        "pid": wanted.pid,
        "program": first.program,
        "backend": first.backend,
        "sections": wanted.sections.request(),
        "every_ms": u64::try_from(wanted.every.as_millis()).unwrap_or(u64::MAX),
    });
    header
}

/// A message for each signal that asks this program to end.
fn interruptions() -> Result<Receiver<()>, ctrlc::Error> {
    let (sender, receiver) = channel();
    ctrlc::set_handler(move || {
        // The receiver lives as long as the program.
        let _ = sender.send(());
    })?;
    Ok(receiver)
}

/// Whether to go on.
fn sleep_until(when: Instant, interrupted: &Receiver<()>) -> bool {
    let rest = when.saturating_duration_since(Instant::now());
    interrupted.recv_timeout(rest) == Err(RecvTimeoutError::Timeout)
}

/// The files, by section.
struct Tables {
    counters: Option<Lines>,
    reasons: Option<Lines>,
    memory: Option<Lines>,
    queue_pairs: Option<Lines>,
    sockets: Option<Lines>,
    datagram_sockets: Option<Lines>,
}

impl Tables {
    /// Those of the sections that were requested.
    fn new(draft: &Draft, wanted: &Recording, first: &Snapshot) -> Result<Tables, RecordError> {
        let mut kept = first.clone();
        wanted.sections.keep_only(&mut kept);
        let file = |there: bool, name: &str| there.then(|| draft.lines(&format!("{name}.jsonl"))).transpose();
        Ok(Tables {
            counters: file(kept.cnt.is_some(), "counters")?,
            reasons: file(kept.reasons.is_some(), "reasons")?,
            memory: file(kept.mem.is_some(), "memory")?,
            queue_pairs: file(kept.qp.is_some(), "queue-pairs")?,
            sockets: file(kept.sock.is_some(), "sockets")?,
            datagram_sockets: file(kept.udp.is_some(), "udp-sockets")?,
        })
    }

    fn add(&mut self, at: Duration, snapshot: &Snapshot) -> Result<(), RecordError> {
        let maps = [
            (&mut self.counters, &snapshot.cnt),
            (&mut self.reasons, &snapshot.reasons),
            (&mut self.memory, &snapshot.mem),
        ];
        for (file, counters) in maps {
            add_counters(file, at, counters.as_ref())?;
        }
        add_items(&mut self.queue_pairs, at, snapshot.qp.as_deref())?;
        add_items(&mut self.sockets, at, snapshot.sock.as_deref())?;
        add_items(&mut self.datagram_sockets, at, snapshot.udp.as_deref())
    }

    /// For the header; without the rows while they are still written.
    fn listed(&self, ended: bool) -> Vec<Table> {
        let all = [
            (&self.counters, "counters", "counters of the process"),
            (&self.reasons, "reasons", "connections that were not accelerated, by reason"),
            (&self.memory, "memory", "registered memory, limits and rings"),
            (&self.queue_pairs, "queue-pairs", "links: a row for each one at each time"),
            (&self.sockets, "sockets", "TCP sockets: a row for each one at each time"),
            (&self.datagram_sockets, "udp-sockets", "UDP sockets: a row for each one at each time"),
        ];
        let listed = |(lines, name, what): (&Option<Lines>, &str, &str)| {
            let table = lines.as_ref()?.table(name, what);
            Some(Table { rows: table.rows.filter(|_| ended), ..table })
        };
        all.into_iter().filter_map(listed).collect()
    }
}

fn add_counters(file: &mut Option<Lines>, at: Duration, counters: Option<&Counters>) -> Result<(), RecordError> {
    let (Some(file), Some(counters)) = (file, counters) else { return Ok(()) };
    let counters = counters.iter().map(|(name, count)| (name.clone(), Value::from(*count)));
    file.add(&timed(at, counters))
}

fn add_items(file: &mut Option<Lines>, at: Duration, items: Option<&[impl Serialize]>) -> Result<(), RecordError> {
    let (Some(file), Some(items)) = (file, items) else { return Ok(()) };
    for item in items {
        let Ok(Value::Object(fields)) = serde_json::to_value(item) else { continue };
        file.add(&timed(at, fields))?;
    }
    Ok(())
}

/// A row: the time since the first sample, and the rest.
fn timed(at: Duration, fields: impl IntoIterator<Item = (String, Value)>) -> Map<String, Value> {
    let at_ns = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
    [("at_ns".to_owned(), Value::from(at_ns))].into_iter().chain(fields).collect()
}
