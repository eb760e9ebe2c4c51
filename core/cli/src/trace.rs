//! `netacc trace`: where the time of each message goes, between running processes.

pub mod args;
mod capture;
mod recording;
mod show;

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use netacc_trace::message::{Messages, Process};
use netacc_trace::perfetto;

use crate::bench::Machine;
use crate::record::{Draft, RecordError};
use crate::ss::{accelerated, fetch, FetchError};
use args::TraceArgs;
use capture::{capture, Capture, Plan};
use recording::Traced;
use show::Shown;

/// Exit status if no message was seen as a whole.
const NOTHING_SEEN: u8 = 7;

/// The reason why there is no trace. Prints as one line.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A process gave no answer.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// None is there.
    #[error("no accelerated process is running: start programs with netacc_run")]
    NoProcess,
    /// The windows do not fit.
    #[error("--every must not be shorter than --window")]
    Overlap,
    /// No memory for events.
    #[error("no memory for events: {0}")]
    Memory(#[source] io::Error),
    /// A process cannot be traced.
    #[error("process {pid} cannot be traced: {error}")]
    Refused {
        /// The process.
        pid: u32,
        /// Its answer.
        error: String,
    },
    /// A record cannot be written.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A file cannot be written.
    #[error("{path}: {source}")]
    Write {
        /// The file.
        path: String,
        /// The system's error.
        source: io::Error,
    },
}

impl TraceError {
    fn status(&self) -> u8 {
        match self {
            TraceError::Fetch(error) => error.status(),
            TraceError::NoProcess => 1,
            TraceError::Overlap | TraceError::Record(RecordError::Exists(_)) => 2,
            _ => 5,
        }
    }
}

/// Set by an interrupt: the trace ends, and what it has is shown.
static STOP: AtomicBool = AtomicBool::new(false);

/// `netacc trace`.
pub fn run(args: &TraceArgs) -> ExitCode {
    // A second interrupt has no handler to wait for: windows are short.
    let _ = ctrlc::set_handler(|| STOP.store(true, Ordering::Relaxed));
    match trace(args) {
        Ok(0) => {
            eprintln!("netacc trace: no message was seen as a whole: is there traffic, and are both ends traced?");
            ExitCode::from(NOTHING_SEEN)
        }
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netacc trace: {error}");
            ExitCode::from(error.status())
        }
    }
}

/// Returns how many messages were seen.
fn trace(args: &TraceArgs) -> Result<u64, TraceError> {
    if args.every < args.window {
        return Err(TraceError::Overlap);
    }
    // Before the trace, so that a place which cannot be written costs none.
    let draft = args.record.as_deref().map(Draft::begin).transpose()?;
    // Not its load: that is the traced programs.
    let machine = Machine::described();
    let plan = Plan { duration: args.duration, window: args.window, every: args.every };
    let progress = !args.json && io::stderr().is_terminal();
    let captured =
        capture(processes(&args.pids)?, !args.pids.is_empty(), plan, progress, &|| STOP.load(Ordering::Relaxed))?;
    let messages = Messages::of(&captured.windows);
    let shown = Shown::of(&captured.processes, &messages, captured.lost);
    if let Some(path) = &args.perfetto {
        write_timeline(path, &captured, &messages, args.timeline_messages)?;
    }
    if let Some(draft) = draft {
        let requests = show::by_parties(&messages.messages).into_iter();
        let times = requests.map(|(parties, requests)| {
            (parties, requests.iter().map(|one| (one.request.window, one.total())).collect())
        });
        let traced = Traced {
            processes: &captured.processes,
            messages: &messages.messages,
            requests: &times.collect::<Vec<_>>(),
            windows: captured.windows.len(),
            warnings: shown.warnings(),
            complete: !STOP.load(Ordering::Relaxed),
        };
        recording::write(draft, args, &machine, &traced)?;
    }
    let text = if args.json { serde_json::to_string_pretty(&shown).unwrap_or_default() + "\n" } else { shown.render() };
    // The reader may have gone.
    let _ = io::stdout().write_all(text.as_bytes());
    Ok(shown.count())
}

/// The processes to trace.
fn processes(pids: &[u32]) -> Result<Vec<Process>, TraceError> {
    let found = if pids.is_empty() {
        accelerated()?
    } else {
        let named = |pid: &u32| Ok((*pid, fetch(*pid, "mem")?.program));
        pids.iter().map(named).collect::<Result<_, FetchError>>()?
    };
    if found.is_empty() {
        return Err(TraceError::NoProcess);
    }
    Ok(found.into_iter().map(|(pid, program)| Process { pid, program }).collect())
}

fn write_timeline(path: &Path, captured: &Capture, messages: &Messages, most: usize) -> Result<(), TraceError> {
    let failed = |source| TraceError::Write { path: path.display().to_string(), source };
    let mut out = BufWriter::new(File::create(path).map_err(failed)?);
    let messages = &messages.messages[..messages.messages.len().min(most)];
    let end = messages.iter().map(|message| message.end()).max().unwrap_or(0);
    let events = captured.windows.iter().flat_map(|window| &window.events).filter(|stamped| stamped.time <= end);
    let mut events: Vec<_> = events.copied().collect();
    events.sort_by_key(|stamped| stamped.time);
    perfetto::write(&mut out, &captured.processes, &events, messages).and_then(|()| out.flush()).map_err(failed)
}
