//! `netacc trace`: where the time of each message goes, between running processes.

pub mod args;
pub(crate) mod capture;
mod recording;
mod show;

use std::fs::File;
use std::io::{self, BufReader, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use netacc_trace::clocks::{join, NotRelated, Relation};
use netacc_trace::events::{SavedWindow, Trace, Unreadable};
use netacc_trace::message::{Messages, Process, Window};
use netacc_trace::perfetto;

use crate::bench::Machine;
use crate::record::{Draft, RecordError};
use crate::ss::{accelerated, fetch, FetchError};
use args::TraceArgs;
use capture::{capture, Capture, Plan};
use recording::Traced;
use show::{Clocks, Shown};

/// The doubt about a trace with more events than are kept.
const FULL: &str = "the trace ended early, with ten million events: use shorter windows";

/// So long a trace waits for another tool's to end. An exporter's takes some milliseconds. Arbitrary.
const PATIENCE: Duration = Duration::from_secs(3);
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
    /// Another tool has the trace of a process.
    #[error("process {pid} cannot be traced: process {tracer} traces it")]
    Taken {
        /// The process.
        pid: u32,
        /// The other tool's.
        tracer: u32,
    },
    /// A file has no trace.
    #[error("{path}: {error}")]
    Unreadable {
        /// The file.
        path: String,
        /// The reason.
        error: Unreadable,
    },
    /// Two traces cannot be joined.
    #[error(transparent)]
    NotRelated(#[from] NotRelated),
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
    fn write(path: &Path) -> impl FnOnce(io::Error) -> TraceError + '_ {
        move |source| TraceError::Write { path: path.display().to_string(), source }
    }

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
    // Before the trace, so that places which cannot be written cost none.
    let draft = args.record.as_deref().map(Draft::begin).transpose()?;
    let file = args.events.as_deref().map(Output::create).transpose()?;
    // Not its load: that is the traced programs.
    let machine = Machine::described();
    let mut seen = match &args.join {
        Some(files) => joined(files)?,
        None => traced(args, file)?,
    };
    let messages = Messages::of(&seen.windows);
    let shown = Shown::of(&seen.processes, &messages, seen.lost, args.connections);
    seen.warnings.extend(shown.warnings());
    if let Some(path) = &args.perfetto {
        write_timeline(path, &seen, &messages, args.timeline_messages)?;
    }
    if let Some(draft) = draft {
        let requests = show::by_parties(&messages.messages).into_iter();
        let times = requests.map(|(parties, requests)| {
            (parties, requests.iter().map(|one| (one.request.window, one.total())).collect())
        });
        let traced = Traced {
            processes: &seen.processes,
            messages: &messages.messages,
            requests: &times.collect::<Vec<_>>(),
            windows: seen.windows.len(),
            warnings: seen.warnings.clone(),
            complete: !STOP.load(Ordering::Relaxed),
        };
        recording::write(draft, args, &machine, &traced)?;
    }
    let text = if args.json {
        serde_json::to_string_pretty(&shown.with(seen.clocks, seen.warnings)).unwrap_or_default() + "\n"
    } else {
        shown.render(seen.clocks.as_ref(), &seen.warnings)
    };
    // The reader may have gone.
    let _ = io::stdout().write_all(text.as_bytes());
    Ok(shown.count())
}

/// What is shown and written.
struct Seen {
    processes: Vec<Process>,
    windows: Vec<Window>,
    lost: u64,
    /// Of two hosts.
    clocks: Option<Clocks>,
    warnings: Vec<String>,
}

/// Traces the processes of this host.
fn traced(args: &TraceArgs, file: Option<Output>) -> Result<Seen, TraceError> {
    let progress = !args.json && io::stderr().is_terminal();
    let plan = Plan { duration: args.duration, window: args.window, every: args.every, progress, patience: PATIENCE };
    let left_out = |error| {
        if !args.pids.is_empty() {
            return Err(error);
        }
        eprintln!("netacc trace: left out: {error}");
        Ok(())
    };
    let Capture { trace, lost, full } =
        capture(processes(&args.pids)?, plan, &left_out, &|| STOP.load(Ordering::Relaxed))?;
    if let Some(mut file) = file {
        let written = trace.write(&mut file.out).and_then(|()| file.out.flush());
        written.map_err(TraceError::write(&file.path))?;
    }
    let windows = trace.windows.into_iter().map(SavedWindow::counted);
    Ok(Seen {
        processes: trace.processes,
        windows: windows.collect(),
        lost,
        clocks: None,
        warnings: if full { vec![FULL.to_owned()] } else { Vec::new() },
    })
}

/// Joins the events of two hosts.
fn joined(files: &[PathBuf]) -> Result<Seen, TraceError> {
    let read = |path: &PathBuf| {
        let wrong = |error: Unreadable| TraceError::Unreadable { path: path.display().to_string(), error };
        let file = File::open(path).map_err(|error| wrong(Unreadable::Io(error)))?;
        Trace::read(BufReader::new(file)).map_err(wrong)
    };
    let traces = files.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let [first, second] = &traces[..] else { return Err(TraceError::NoProcess) };
    let relation = Relation::between(first, second)?;
    let (processes, windows) = join(first, second, &relation);
    let clocks = Clocks::new(first, second, &relation);
    Ok(Seen { processes, windows, lost: 0, clocks: Some(clocks), warnings: Vec::new() })
}

/// A file that is written when the trace is over.
struct Output {
    path: PathBuf,
    out: BufWriter<File>,
}

impl Output {
    fn create(path: &Path) -> Result<Output, TraceError> {
        let file = File::create(path).map_err(TraceError::write(path))?;
        Ok(Output { path: path.to_owned(), out: BufWriter::new(file) })
    }
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

fn write_timeline(path: &Path, seen: &Seen, messages: &Messages, most: usize) -> Result<(), TraceError> {
    let mut file = Output::create(path)?;
    let messages = &messages.messages[..messages.messages.len().min(most)];
    let written = perfetto::write(&mut file.out, &seen.processes, &seen.windows, messages);
    written.and_then(|()| file.out.flush()).map_err(TraceError::write(path))
}
