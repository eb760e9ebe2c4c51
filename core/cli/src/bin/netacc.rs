//! `netacc`: measure and examine NetACC on this machine.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use netacc_cli::{bench, doctor, explain, exporter, lat, pages, service, sim, switch, top, trace};
use netacc_microvm::{cli as lab, guest};

/// An open NetACC: unmodified TCP programs over RDMA or shared memory.
///
/// This is the tool around it. To run a program accelerated: netacc_run PROGRAM. To examine a running one: netacc_ss -p
/// PID -s all.
#[derive(Debug, Parser)]
#[command(name = "netacc", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  netacc doctor                                      what works on this machine, and why not the rest
  netacc bench redis --clients 100 --size 512        Redis on kernel TCP, a Unix socket and each backend
  netacc bench echo --size 64 --mode spin            round-trip latency with both ends awake
  netacc bench redis --record before; netacc report before
  netacc lat --serve 10.0.0.1 / netacc lat 10.0.0.1   round trips between two hosts, on all paths
  netacc demote -p PID; netacc promote -p PID        off the links and back, under load
  netacc explain -p PID :6379                        why its connections are on a link, or on TCP
  netacc top; netacc exporter                        rates by connection; OpenMetrics over HTTP
  netacc enable redis-server                         from the next start on, the service runs with the library
  netacc trace -p PID -p PID --duration 2s           where the time of each message goes, stage by stage
  netacc report before after                         what has changed, with intervals
  netacc sim list; netacc sim sweep incast            what-if studies in simulation
  netacc calibrate --output calibration              profiles of this machine for netacc sim
  netacc calibrate --peer 10.0.0.1                   profiles of an RDMA device, with netacc lat --serve there
  netacc lab run --hosts 2 -- rdma link              two machines with SoftRoCE between them";

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare kernel TCP, a Unix socket and each backend under the same load
    Bench(bench::args::BenchArgs),
    /// Take all connections of running processes off their links: they continue over plain TCP
    Demote(switch::SwitchArgs),
    /// Let connections of demoted processes back onto links
    Promote(switch::SwitchArgs),
    /// Why connections of a running process are on a link or on TCP, and what would change it
    Explain(explain::ExplainArgs),
    /// The accelerated processes and their busiest connections, with rates
    Top(top::TopArgs),
    /// Metrics of all accelerated processes as OpenMetrics, over HTTP
    Exporter(exporter::ExporterArgs),
    /// Where the time of each message goes, between running processes
    Trace(trace::args::TraceArgs),
    /// Let a systemd service run with the library from its next start on
    Enable(service::ServiceArgs),
    /// Let a systemd service run without the library from its next start on
    Disable(service::ServiceArgs),
    /// Show which backends work here, and why the others do not
    Doctor(doctor::DoctorArgs),
    /// Latency between two hosts: raw RDMA, through our stack, and kernel TCP
    Lat(lat::LatArgs),
    /// What-if studies in simulation: run, sweep, report, list
    Sim(sim::SimArgs),
    /// Measure this machine, and write profiles of it for simulation
    Calibrate(sim::SimArgs),
    /// Tables and plots of recorded measurements and simulations, and comparisons of two
    Report(sim::SimArgs),
    /// Convert older results into records, check records, print their schema
    Record(sim::SimArgs),
    /// RDMA devices in small virtual machines: SoftRoCE, soft-iWARP and emulated eRDMA, one host or two
    Lab(lab::LabArgs),
    /// Manual pages and shell completions, for packages
    #[command(hide = true)]
    Pages(pages::PagesArgs),
    /// The first processes of a lab's guest
    #[command(hide = true)]
    LabGuest(guest::GuestArgs),
    /// One end of a conversation, as started by `netacc lat`
    #[command(hide = true)]
    LatPeer(lat::LatPeerArgs),
    /// One end of a load, as started by `netacc bench`
    #[command(hide = true)]
    BenchPeer(bench::peer::PeerArgs),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Bench(args) => match bench::run(args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("netacc bench: {error}");
                ExitCode::from(error.exit_code())
            }
        },
        Command::Demote(args) => switch::demote(&args),
        Command::Promote(args) => switch::promote(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Exporter(args) => exporter::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Enable(args) => service::enable(&args),
        Command::Disable(args) => service::disable(&args),
        Command::Pages(args) => pages::run(&args, Cli::command()),
        Command::Doctor(args) => doctor::run(&args),
        Command::Lat(args) => lat::run(&args),
        Command::Sim(args) => sim::run(sim::Tool::Studies, &args),
        Command::Calibrate(args) => sim::run(sim::Tool::Calibration, &args),
        Command::Report(args) => sim::run(sim::Tool::Report, &args),
        Command::Record(args) => sim::run(sim::Tool::Records, &args),
        Command::LatPeer(args) => lat::run_peer(&args),
        Command::Lab(args) => lab::run(args),
        Command::LabGuest(args) => guest::run(&args),
        Command::BenchPeer(args) => match bench::peer::run(args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("netacc bench-peer: {error}");
                ExitCode::FAILURE
            }
        },
    }
}
