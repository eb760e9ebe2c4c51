//! `netacc bench-peer`: the two ends of our own loads, as programs of their own.
//!
//! These are ordinary, unmodified programs: they use libc's sockets (through `std`, `socket2` and `nix`) and nothing of
//! NetACC. This is a rule: a crate that makes raw system calls, such as `rustix`, would bypass the preload library, and
//! with NetACC-specific code the load would not be one of a real program.
//!
//! The protocol with the parent, one line for each message: the server writes `READY <pid> <address>` and then serves
//! until it is stopped; a server of `echo` that waits for readiness writes `SERVED <answers> <asks>` when a client has
//! gone. The client connects, warms up, writes `READY <pid>`, begins at `GO`, writes `RESULT <json>`, and keeps its
//! connections open until the next line or the end of its input.

mod connect;
mod conversation;
pub(crate) mod datagrams;
mod echo;
mod memcached;
mod socket;
mod stream;
mod wait;
mod wakes;

use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::args::{MemcachedTest, Mode};
use super::cpu;
use super::result::{Latency, Wakes};
use socket::Address;

/// One end of a load; started by `netacc bench`.
#[derive(Debug, Args)]
pub struct PeerArgs {
    /// Which end.
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Becomes another program, which the kernel ends when its parent dies
    Guard {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<std::ffi::OsString>,
    },
    /// An end of a load of datagrams
    Datagrams {
        #[command(subcommand)]
        role: datagrams::Datagrams,
    },
    /// Listens and serves
    Server {
        #[command(flatten)]
        load: LoadArgs,
        #[arg(long)]
        listen: Address,
    },
    /// Connects and measures
    Client {
        #[command(flatten)]
        load: LoadArgs,
        #[arg(long)]
        connect: Address,
        /// Connections of other clients, which are numbered before those of this one
        #[arg(long, default_value_t = 0)]
        first: usize,
        #[command(flatten)]
        length: LengthArgs,
    },
}

/// The loads that have peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LoadName {
    Echo,
    Stream,
    Connect,
    /// A client only: the server is memcached.
    Memcached,
}

impl LoadName {
    pub(crate) fn name(self) -> &'static str {
        match self {
            LoadName::Echo => "echo",
            LoadName::Stream => "stream",
            LoadName::Connect => "connect",
            LoadName::Memcached => "memcached",
        }
    }
}

#[derive(Debug, Clone, Copy, Args)]
struct LoadArgs {
    #[arg(long, value_enum)]
    load: LoadName,
    #[arg(long)]
    size: usize,
    #[arg(long, value_enum)]
    mode: Mode,
    #[arg(long)]
    clients: usize,
    /// Of memcached
    #[arg(long, value_enum)]
    test: Option<MemcachedTest>,
    /// Requests in a message, of memcached
    #[arg(long, default_value_t = 1)]
    pipeline: usize,
    /// Requests on each connection, of short ones
    #[arg(long, default_value_t = 0)]
    requests_per_connection: u32,
    /// Watch a connection anew after each message
    #[arg(long)]
    rewatch: bool,
    /// Measure wakes of the server with this process id, too
    #[arg(long)]
    wakes: Option<i32>,
}

#[derive(Debug, Clone, Copy, Args)]
#[group(required = true, multiple = false)]
struct LengthArgs {
    #[arg(long)]
    requests: Option<u64>,
    #[arg(long)]
    seconds: Option<f64>,
}

/// A client's measurements.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) requests: u64,
    pub(crate) seconds: f64,
    /// Latencies in nanoseconds, and how many requests had each.
    latencies: Vec<(u64, u64)>,
    pub(crate) cpu_s: f64,
    /// Calls that asked for what is ready; 0 in modes that do not ask.
    pub(crate) waits: u64,
    /// How often its threads slept.
    pub(crate) sleeps: u64,
    /// Nanoseconds of a call that changes what is asked for; 0 in modes without such calls.
    pub(crate) interest_change_ns: f64,
    /// What waking the server costs, if that was measured.
    pub(crate) wakes: Option<Wakes>,
}

impl Outcome {
    /// The outcome of several clients that measured at the same time. `None` if there are none.
    pub(crate) fn merge(parts: impl IntoIterator<Item = Outcome>) -> Option<Outcome> {
        parts.into_iter().reduce(|mut all, part| {
            all.requests += part.requests;
            all.seconds = all.seconds.max(part.seconds);
            all.latencies.extend(part.latencies);
            all.cpu_s += part.cpu_s;
            all.waits += part.waits;
            all.sleeps += part.sleeps;
            all.interest_change_ns = all.interest_change_ns.min(part.interest_change_ns);
            all
        })
    }

    /// The latencies of all requests.
    pub(crate) fn latency_us(&self) -> Latency {
        let mut tally = Tally::new();
        for (latency, count) in &self.latencies {
            tally.0.saturating_record_n(*latency, *count);
        }
        tally.latency()
    }

    /// Latencies in nanoseconds, and how many requests had each.
    pub(crate) fn histogram(&self) -> &[(u64, u64)] {
        &self.latencies
    }
}

/// Runs one end.
///
/// # Errors
/// Those of the sockets. The parent shows them together with the rest of stderr.
pub fn run(args: PeerArgs) -> io::Result<()> {
    match args.role {
        Role::Guard { command } => guard(&command),
        Role::Datagrams { role } => datagrams::run(&role),
        Role::Server { load, listen } => {
            let listener = listen.listen()?;
            send_line(&format!("READY {} {}", std::process::id(), Address::of(&listener)?))?;
            match load.load {
                LoadName::Echo => echo::serve(&listener, load),
                LoadName::Stream => stream::serve(&listener, load),
                LoadName::Connect => connect::serve(&listener, load),
                LoadName::Memcached => Err(io::Error::other("the server of this load is memcached")),
            }
        }
        Role::Client { load, connect, first, length } => match load.load {
            LoadName::Echo => echo::drive(&connect, load, first, length),
            LoadName::Stream => stream::drive(&connect, load, length),
            LoadName::Connect => connect::drive(&connect, load, length),
            LoadName::Memcached => echo::drive_memcached(&connect, load, first, length),
        },
    }
}

/// Makes the kernel end this process when its parent dies, then becomes the program. No server is left behind even if
/// `netacc bench` is killed.
fn guard(command: &[std::ffi::OsString]) -> io::Result<()> {
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
    if nix::unistd::getppid().as_raw() == 1 {
        return Err(io::Error::other("the parent process is gone already"));
    }
    let (program, args) = command.split_first().expect("clap demands at least one");
    let error = Command::new(program).args(args).exec();
    Err(io::Error::new(error.kind(), format!("{}: {error}", program.to_string_lossy())))
}

fn send_line(line: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}

/// The parent's next line, or the end of its input.
fn listen_to_parent() -> io::Result<String> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}

/// Reports to the parent that all connections are warm; returns when measuring is to begin.
fn ready() -> io::Result<()> {
    send_line(&format!("READY {}", std::process::id()))?;
    match listen_to_parent()?.as_str() {
        "GO" => Ok(()),
        other => Err(io::Error::other(format!("'{other}' where GO was expected"))),
    }
}

/// Sends the parent the result, and keeps all connections until the parent has read the statistics.
fn report(tally: &Tally, used: Used) -> io::Result<()> {
    report_asking(tally, used, Asked::default())
}

/// How a client asked for what is ready.
#[derive(Clone, Debug, Default)]
struct Asked {
    /// So often.
    waits: u64,
    /// Nanoseconds of a call that changes what it asks for, measured apart; 0 if there is none.
    interest_change_ns: f64,
    /// What waking the server costs, measured apart.
    wakes: Option<Wakes>,
}

/// As [`report`], by a client that asked for what is ready.
fn report_asking(tally: &Tally, used: Used, asked: Asked) -> io::Result<()> {
    let latencies = tally.0.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect();
    let Used { seconds, cpu_s, sleeps } = used;
    let Asked { waits, interest_change_ns, wakes } = asked;
    let requests = tally.count();
    let outcome = Outcome { requests, seconds, latencies, cpu_s, waits, sleeps, interest_change_ns, wakes };
    send_line(&format!("RESULT {}", serde_json::to_string(&outcome)?))?;
    listen_to_parent().map(drop)
}

/// When to stop sending.
#[derive(Debug, Clone, Copy)]
enum Stop {
    After(u64),
    At(Instant),
}

impl Stop {
    /// For one of several clients that share the work.
    fn new(length: LengthArgs, start: Instant, index: u64, clients: u64) -> Self {
        match (length.requests, length.seconds) {
            (Some(all), _) => Stop::After(all / clients + u64::from(index < all % clients)),
            (None, seconds) => Stop::At(start + Duration::from_secs_f64(seconds.unwrap_or(1.0))),
        }
    }

    /// Whether to send another request, after so many, at this time.
    fn goes_on(self, sent: u64, now: Instant) -> bool {
        match self {
            Stop::After(count) => sent < count,
            Stop::At(end) => now < end,
        }
    }
}

/// Latencies, at three significant digits from 1 ns to a minute.
#[derive(Debug, Clone)]
struct Tally(Histogram<u64>);

impl Tally {
    fn new() -> Self {
        /// Longer than any timeout within a load; longer values count as this.
        const LONGEST_NS: u64 = 60_000_000_000;
        Tally(Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("the bounds are constants"))
    }

    fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX).max(1));
    }

    fn add(&mut self, other: &Tally) {
        self.0 += &other.0;
    }

    fn count(&self) -> u64 {
        self.0.len()
    }

    fn latency(&self) -> Latency {
        let us = |ns: u64| ns as f64 / 1e3;
        Latency {
            p50: us(self.0.value_at_quantile(0.5)),
            p95: us(self.0.value_at_quantile(0.95)),
            p99: us(self.0.value_at_quantile(0.99)),
            p999: us(self.0.value_at_quantile(0.999)),
            max: us(self.0.max()),
            avg: (self.0.mean().round()) / 1e3,
        }
    }
}

/// The resources of the measured part.
#[derive(Debug, Clone, Copy)]
struct Used {
    /// On the wall.
    seconds: f64,
    cpu_s: f64,
    sleeps: u64,
}

/// Measures what a part uses.
#[derive(Debug)]
struct Meter {
    start: Instant,
    cpu: f64,
    sleeps: u64,
}

impl Meter {
    fn start() -> Self {
        Meter { cpu: cpu::of_self(), sleeps: cpu::sleeps_of_self(), start: Instant::now() }
    }

    /// Ends the part.
    fn stop(&self) -> Used {
        let seconds = self.start.elapsed().as_secs_f64();
        Used { seconds, cpu_s: cpu::of_self() - self.cpu, sleeps: cpu::sleeps_of_self() - self.sleeps }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_share_all_requests() {
        let length = LengthArgs { requests: Some(10), seconds: None };
        let start = Instant::now();
        let sum: u64 = (0..3)
            .map(|index| match Stop::new(length, start, index, 3) {
                Stop::After(count) => count,
                Stop::At(_) => panic!("a number was given"),
            })
            .sum();
        assert_eq!(sum, 10);
    }

    /// Breaks if the percentiles of several clients were those of one, or each were counted once.
    #[test]
    fn outcomes_of_several_clients_are_one() {
        let outcome = |requests, seconds, latencies| Outcome {
            requests,
            seconds,
            latencies,
            cpu_s: 0.5,
            waits: 3,
            sleeps: 4,
            interest_change_ns: seconds,
            wakes: None,
        };
        let parts = [outcome(98, 1.0, vec![(1000, 98)]), outcome(2, 2.0, vec![(1000, 1), (64_000, 1)])];
        let all = Outcome::merge(parts).expect("there are two");
        assert_eq!((all.requests, all.seconds, all.cpu_s), (100, 2.0, 1.0));
        assert_eq!((all.waits, all.sleeps, all.interest_change_ns), (6, 8, 1.0));
        let latency = all.latency_us();
        assert_eq!((latency.p50, latency.p99), (1.0, 1.0));
        assert!((latency.max / 64.0 - 1.0).abs() < 0.01, "{latency:?}");
        assert!(Outcome::merge([]).is_none());
    }

    #[test]
    fn tally_keeps_microseconds_and_bounds() {
        let mut tally = Tally::new();
        for us in 1..=1000 {
            tally.record(Duration::from_micros(us));
        }
        tally.record(Duration::from_secs(3600));
        tally.record(Duration::ZERO);
        let latency = tally.latency();
        assert_eq!(tally.count(), 1002);
        assert!((latency.p50 / 500.0 - 1.0).abs() < 0.01 && (latency.p95 / 950.0 - 1.0).abs() < 0.01, "{latency:?}");
        assert!(latency.max >= 60e6 && latency.max < 61e6, "{latency:?}");
    }
}
