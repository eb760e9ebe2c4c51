//! The command line of `netacc trace`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

/// The stages of messages between running processes.
///
/// The processes record events in windows of time, all of them in the same ones, and continue undisturbed in between. Both
/// ends of a connection have to be traced: without -p, all accelerated processes are. Messages that begin in the first
/// half of a window are counted.
#[derive(Debug, Args)]
#[command(after_help = STAGES)]
pub struct TraceArgs {
    /// The processes; all accelerated ones if none is named
    #[arg(short, long = "pid", value_name = "PID")]
    pub pids: Vec<u32>,

    /// How long to trace
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = time)]
    pub duration: Duration,

    /// Length of a window, at most: one with 30,000 events closes early. Longer ones are needed where messages take more than a
    /// few milliseconds
    #[arg(long, default_value = "10ms", value_name = "TIME", value_parser = time)]
    pub window: Duration,

    /// Time from one window to the next; as long as a window to record everything
    #[arg(long, default_value = "500ms", value_name = "TIME", value_parser = time)]
    pub every: Duration,

    /// Also write a record of the trace to this new folder, for netacc report and notebooks
    #[arg(long, value_name = "DIR")]
    pub record: Option<PathBuf>,

    /// Also write every event to this file, to join it with that of another host
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,

    /// Trace nothing: join the events that two hosts have written at the same time
    #[arg(long, num_args = 2, value_names = ["FILE", "FILE"], conflicts_with_all = ["pids", "duration", "window", "every", "events"])]
    pub join: Option<Vec<PathBuf>>,

    /// Also write the timeline, as JSON for https://ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    pub perfetto: Option<PathBuf>,

    /// The most messages in the timeline
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    pub timeline_messages: usize,

    /// Also show so many connections, the slowest first
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub connections: usize,

    /// One JSON document instead of tables
    #[arg(long)]
    pub json: bool,
}

const STAGES: &str = "\
Stages:
  call        the sender's call, until the copy begins (on the anchor: all of the call)
  copy        into the link's ring
  held        at the sender: for credit, for room in the queue, or for more bytes (cork)
  post        to the device, for a receiver that is awake
  wire        under way, while the receiver polls for it
  completion  posted, while the receiver is busy with other work
  wake        the receiver's thread was asleep: from the post, which wakes it, until it has handled the completion
  kernel      on the anchor: in the kernels and between them
  ready       handled, until the program calls to receive
  read        the receiver's call, until the program has the bytes

Two hosts:
  netacc trace --duration 10s --events FILE        on both, at the same time (within a second)
  netacc trace --join FILE FILE                    on one of them: the stages of messages between them

Exit status: 0 traced; 1 no such process, or none is accelerated; 2 wrong usage; 3 a process is not accelerated;
4 not permitted; 5 something else failed; 7 no message was seen as a whole";

pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if time.is_zero() {
        Err("must be longer than 0".into())
    } else {
        Ok(time)
    }
}
