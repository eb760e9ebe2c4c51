//! `netacc lat`: measures the half round trip between two hosts, as ib_write_lat and ib_send_lat do, in one run: raw on
//! the RDMA device, through our whole stack, and over kernel TCP.
//!
//! One end runs `netacc lat --serve`, the other names its address. Paths:
//! * `write`: RDMA WRITE, and the peer polls its memory (ib_write_lat);
//! * `message`: WRITE WITH IMMEDIATE, and the peer takes the completion, like a message of the protocol;
//! * `send`: SEND into memory of the receive, and the peer takes the completion (ib_send_lat);
//! * `stack`: a program with a TCP socket, both ends under `netacc_run`;
//! * `tcp`: the same program without;
//! * `udp-stack` and `udp`: the same over UDP, with and without the library (`--udp`).
//!
//! With one size, or with all powers of two (`-a`), as a table with or without histograms, or as JSON.

mod costs;
mod histogram;
mod measured;
mod raw;
mod recording;
mod report;
mod tcp;
mod udp;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use clap::{Args, ValueEnum};
use netacc_config::Config;

use crate::bench::{busy_with, is_busy, progress_bar, warn, Machine, Others, Tools};
use crate::record::{Draft, RecordError};
use report::{Path, Report};

/// The largest message, as in perftest's tools.
const MAX_SIZE: u32 = 8 << 20;

/// The server's default TCP port: perftest's own. It accepts raw links on the next one.
const DEFAULT_PORT: u16 = 18_515;

/// Arguments of `netacc lat`.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit status: 0 if every path was measured; 1 if one could not be, with an error message; 2 for wrong arguments.")]
pub struct LatArgs {
    /// This host's address with --serve, the server's without
    address: IpAddr,
    /// Answer clients, until interrupted
    #[arg(long)]
    serve: bool,
    /// The server's TCP port; raw links are accepted at the next one
    #[arg(long, default_value_t = DEFAULT_PORT, value_parser = clap::value_parser!(u16).range(1..=45_535))]
    port: u16,
    /// Bytes of a message; on raw links in whole words of 8
    #[arg(long, short, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SIZE)))]
    size: u32,
    /// All powers of two from 2 bytes to 8 MiB, as with ib_write_lat -a
    #[arg(long, short, conflicts_with = "size")]
    all_sizes: bool,
    /// The largest of all sizes
    #[arg(long, requires = "all_sizes", value_parser = clap::value_parser!(u32).range(2..=i64::from(MAX_SIZE)))]
    max_size: Option<u32>,
    /// Round trips to measure on each path
    #[arg(long, short = 'n', default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    count: u32,
    /// UDP instead of TCP and raw links: under netacc_run, and on the kernel alone
    #[arg(long, conflicts_with = "paths")]
    udp: bool,
    /// Paths to measure, in this order [default: all but those of UDP] (repeatable)
    #[arg(long = "path", value_enum)]
    paths: Vec<PathName>,
    /// This host's address that the device serves, if there are several (default: the one that leads to the server)
    #[arg(long)]
    from: Option<IpAddr>,
    /// This host's RDMA device for raw links, if there are several: its name, instead of its address
    #[arg(long, conflicts_with_all = ["from", "serve"])]
    device: Option<String>,
    /// Costs of the device and of the stack on it as JSON: commands, posts, round trips, rates (netacc calibrate reads them)
    #[arg(long, conflicts_with_all = ["serve", "size", "all_sizes", "udp", "paths", "histogram", "json", "record"])]
    costs: bool,
    /// Rounds of --costs, in each of which everything is measured once
    #[arg(long, requires = "costs", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// A histogram of each path after the table
    #[arg(long, short = 'H', conflicts_with = "json")]
    histogram: bool,
    /// One JSON object instead of text, with whole histograms
    #[arg(long)]
    json: bool,
    /// Keep the result with whole histograms as a record, in a new folder (netacc report DIR shows it)
    #[arg(long, value_name = "DIR", conflicts_with = "serve")]
    record: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PathName {
    /// RDMA WRITE, memory polled
    Write,
    /// WRITE WITH IMMEDIATE, completion polled
    Message,
    /// SEND, completion polled
    Send,
    /// A TCP program under netacc_run
    Stack,
    /// The same program on kernel TCP
    Tcp,
    /// A UDP program under netacc_run
    UdpStack,
    /// The same program on kernel UDP
    Udp,
}

/// Without `--udp`.
const ALL: [PathName; 5] = [PathName::Write, PathName::Message, PathName::Send, PathName::Stack, PathName::Tcp];

/// The reason why a path could not be measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LatError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Open(#[from] netacc_registry::OpenError),
    #[error("{0}")]
    Device(#[from] netacc_device::DeviceError),
    #[error("{0}")]
    Connect(#[from] netacc_device::CmError),
    #[error("{0}")]
    Post(#[from] netacc_device::PostError),
    #[error("no RDMA device {0:?} serves an address of this host")]
    NoDevice(String),
    #[error("{what}: {error}")]
    During { what: String, error: Box<LatError> },
    #[error("the link ended")]
    Disconnected,
    #[error("no answer for {0} seconds")]
    Silent(u64),
    #[error("the peer sent an invalid request")]
    Nonsense,
    #[error("{0}")]
    Tools(&'static str),
    #[error("the measurement cannot be read: {0}")]
    Unreadable(#[from] serde_json::Error),
    #[error("UDP has no datagrams of this size")]
    TooLong,
    #[error("the measuring program ended with {0}")]
    Child(std::process::ExitStatus),
}

/// Runs one end.
pub fn run(args: &LatArgs) -> ExitCode {
    if args.serve {
        return match serve(args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("netacc lat: {error}");
                ExitCode::FAILURE
            }
        };
    }
    if args.costs {
        return match own_address(args).and_then(|from| costs::measure(args, from)) {
            Ok(json) => {
                println!("{json}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("netacc lat: {error}");
                ExitCode::FAILURE
            }
        };
    }
    match measure_and_show(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("netacc lat: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

/// Whether each path was measured.
fn measure_and_show(args: &LatArgs) -> Result<bool, RecordError> {
    let draft = args.record.as_deref().map(Draft::begin).transpose()?;
    let machine = Machine::here();
    let mut warnings = Vec::new();
    if let Some(busy) = machine.busy_processors.filter(|busy| is_busy(*busy)) {
        warnings.push(format!("{} before", busy_with(busy, machine.cores)));
    }
    let others = Others::watch();
    let report = measure_all(args);
    let others = others.busy_processors();
    if let Some(busy) = others.filter(|busy| is_busy(*busy)) {
        warnings.push(format!("{} meanwhile", busy_with(busy, machine.cores)));
    }
    warnings.iter().for_each(|warning| warn(&format!("netacc lat: WARNING: {warning}")));
    if args.json {
        println!("{}", report.json());
    } else {
        print!("{}", report.text(args.histogram));
    }
    if let Some(draft) = draft {
        recording::write(draft, &report, &machine, others, warnings)?;
    }
    Ok(report.is_whole())
}

impl PathName {
    fn name(self) -> &'static str {
        match self {
            PathName::Write => "write",
            PathName::Message => "message",
            PathName::Send => "send",
            PathName::Stack => "stack",
            PathName::Tcp => "tcp",
            PathName::UdpStack => "udp-stack",
            PathName::Udp => "udp",
        }
    }
}

impl LatArgs {
    fn chosen(&self) -> Vec<PathName> {
        match (self.udp, self.paths.is_empty()) {
            (true, _) => vec![PathName::UdpStack, PathName::Udp],
            (false, true) => ALL.to_vec(),
            (false, false) => self.paths.clone(),
        }
    }

    fn sizes(&self) -> Vec<u32> {
        if !self.all_sizes {
            return vec![self.size];
        }
        let most = self.max_size.unwrap_or(MAX_SIZE);
        (1..u32::BITS).map(|power| 1 << power).take_while(|size| *size <= most).collect()
    }
}

/// Each path with each size. One that fails is not tried with larger sizes.
fn measure_all(args: &LatArgs) -> Report {
    let mut paths = args.chosen();
    let sizes = args.sizes();
    let progress = progress_bar(sizes.len() * paths.len(), false);
    let mut report = Report::new(args.count, args.all_sizes);
    for size in sizes {
        let mut measured = Vec::new();
        paths.retain(|path| {
            progress.set_message(format!("{}, {size} bytes", path.name()));
            let found = measure(args, *path, size);
            let works = found.is_ok();
            measured.push(Path::new(path.name(), found));
            progress.inc(1);
            works
        });
        report.add(size, measured);
        if paths.is_empty() {
            break;
        }
    }
    progress.finish_and_clear();
    report
}

fn measure(args: &LatArgs, path: PathName, size: u32) -> Result<measured::Measured, LatError> {
    let server = SocketAddr::new(args.address, args.port);
    let operation = match path {
        PathName::Write => raw::Kind::Write,
        PathName::Message => raw::Kind::Message,
        PathName::Send => raw::Kind::Send,
        PathName::Stack => return Ok(serde_json::from_slice(&through_the_stack(args, Role::Client, size)?)?),
        PathName::Tcp => return tcp::measure(server, size, args.count),
        PathName::UdpStack => return Ok(serde_json::from_slice(&through_the_stack(args, Role::UdpClient, size)?)?),
        PathName::Udp => return udp::measure(server, size, args.count),
    };
    let (config, _) = Config::load();
    let task = raw::Task { kind: operation, size, count: args.count };
    let histogram = raw::measure(&config, own_address(args)?, SocketAddr::new(args.address, args.port + 1), task)?;
    Ok(measured::Measured { histogram, link_share: None })
}

/// This host's address that the device serves.
fn own_address(args: &LatArgs) -> Result<IpAddr, LatError> {
    match (&args.device, args.from) {
        (Some(device), _) => netacc_registry::address_of_device(&Config::load().0, device)
            .ok_or_else(|| LatError::NoDevice(device.clone())),
        (None, Some(from)) => Ok(from),
        (None, None) => Ok(udp::own_address_towards(SocketAddr::new(args.address, args.port))?),
    }
}

/// The output of the same client as on the kernel's sockets, as a program under `netacc_run`.
fn through_the_stack(args: &LatArgs, role: Role, size: u32) -> Result<Vec<u8>, LatError> {
    let mut command = accelerated()?;
    let role = role.to_possible_value().expect("none is skipped");
    command.args(["lat-peer", role.get_name(), &SocketAddr::new(args.address, args.port).to_string()]);
    command.args([size.to_string(), args.count.to_string()]);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(LatError::Child(output.status));
    }
    Ok(output.stdout)
}

/// This program under `netacc_run`.
fn accelerated() -> Result<Command, LatError> {
    let tools = Tools::find();
    let run =
        tools.netacc_run.ok_or(LatError::Tools("netacc_run is neither beside netacc nor in PATH (make build)"))?;
    let mut command = Command::new(run);
    // Keeps the connection on its link, even if that is slower.
    command.env("NACC_PATH_CHOICE", "link").arg(std::env::current_exe()?);
    Ok(command)
}

/// Answers on all paths: for TCP and UDP programs in a process of its own, under `netacc_run`.
fn serve(args: &LatArgs) -> Result<(), LatError> {
    let mut command = accelerated()?;
    command.args(["lat-peer", "serve", &SocketAddr::new(args.address, args.port).to_string()]);
    // It ends with its standard input, and so with this process.
    let mut child = command.stdin(Stdio::piped()).spawn()?;
    let _open = child.stdin.take();
    let (config, _) = Config::load();
    let Err(error) = raw::serve(&config, SocketAddr::new(args.address, args.port + 1));
    // Kernel TCP and the stack can still be measured.
    eprintln!("netacc lat: no raw links: {error}");
    child.wait()?;
    Ok(())
}

/// One end of a TCP or UDP conversation, as started by `netacc lat`.
#[derive(Debug, Args)]
pub struct LatPeerArgs {
    role: Role,
    server: SocketAddr,
    size: Option<u32>,
    count: Option<u32>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Role {
    Serve,
    Client,
    RateClient,
    UdpClient,
}

/// Runs it.
pub fn run_peer(args: &LatPeerArgs) -> ExitCode {
    let (size, count) = (args.size.unwrap_or(64), args.count.unwrap_or(1));
    let print = |json: serde_json::Result<String>| {
        println!("{}", json?);
        Ok(())
    };
    let done = match args.role {
        Role::Serve => tcp::serve(args.server),
        Role::Client => tcp::measure(args.server, size, count).and_then(|found| print(serde_json::to_string(&found))),
        Role::RateClient => {
            tcp::rate(args.server, size, count, costs::DEPTH).and_then(|found| print(serde_json::to_string(&found)))
        }
        Role::UdpClient => {
            udp::measure(args.server, size, count).and_then(|found| print(serde_json::to_string(&found)))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netacc lat: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Lat {
        #[command(flatten)]
        args: LatArgs,
    }

    #[test]
    fn all_sizes_are_those_of_ib_write_lat() {
        let attempt = |more: &[&str]| Lat::try_parse_from([&["lat", "127.0.0.1"], more].concat());
        let sizes = |more: &[&str]| attempt(more).expect("allowed").args.sizes();
        let all = sizes(&["-a"]);
        assert_eq!((all.len(), all[0], all[1], all[22]), (23, 2, 4, 8_388_608));
        assert_eq!(sizes(&["--all-sizes", "--max-size", "40"]), [2, 4, 8, 16, 32]);
        assert_eq!((sizes(&[]), sizes(&["--size", "8388608"])), (vec![64], vec![8_388_608]));
        for wrong in [&["--costs", "--json"][..], &["--rounds", "2"], &["--device", "rxe0", "--from", "127.0.0.1"]] {
            assert!(attempt(wrong).is_err(), "{wrong:?}");
        }
        for wrong in [&["--size", "8388609"][..], &["-a", "--size", "64"], &["--max-size", "64"], &["-H", "--json"]] {
            assert!(attempt(wrong).is_err(), "{wrong:?}");
        }
    }

    /// Breaks if a path that does not work is tried with each size.
    #[test]
    fn a_path_that_fails_is_not_tried_with_larger_sizes() {
        // No process listens on port 1.
        let Lat { args } = Lat::parse_from(["lat", "127.0.0.1", "-a", "--path", "tcp", "--json", "--port", "1"]);
        let report: serde_json::Value = serde_json::from_str(&measure_all(&args).json()).expect("as written");
        assert_eq!(report["sizes"].as_array().map(Vec::len), Some(1), "{report}");
        assert!(report["sizes"][0]["paths"][0]["error"].is_string(), "{report}");
    }
}
