//! `netacc-exec`: runs programs of socket operations with real processes on real sockets.
//!
//! It is an ordinary program: it calls the C library, and uses of this project only the format of programs and traces.
//! Natively it is the oracle; under `netacc_run` the same executable tests the library.
//!
//! One JSON request a line on standard input, `{"program": ..., "expect": trace or null}`; one trace a line on standard
//! output. A **coordinator** keeps a few **worker** processes, hands each step to its worker in the order of the
//! program, and waits for it to be done. Workers serve one program after another, as servers do; processes that a
//! program forks, replaces or kills are renewed. Only the order of the steps synchronises the processes.
//!
//! The hosts of a program are addresses of this machine, or machines: `--host COMMAND`, once for each, runs
//! `netacc-exec --agent` there, which has the workers of that host. The coordinator is then not a program under test.
//!
//! `expect` is the oracle's trace. TCP guarantees that bytes arrive, not that they have arrived when the next call
//! checks. So where the oracle saw something arrive, a step waits up to [`patience`](world::patience) for that, in the
//! way that the program uses (`poll` for a `poll`, `epoll_wait` for an `epoll_wait`). It never waits for an absence.

mod channel;
mod coordinator;
mod host;
mod ledger;
mod ops;
mod place;
mod process;
mod sys;
mod worker;
mod world;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::ExitCode;

use clap::Parser;

use crate::coordinator::Settings;
use crate::world::World;

/// Runs programs of socket operations with real processes; one JSON request a line, one trace a line.
#[derive(Parser)]
#[command(version, about)]
struct Args {
    /// Workers serve one program only.
    #[arg(long)]
    fresh: bool,
    /// Only kernel TCP can carry the connections: do not check whether one has moved elsewhere.
    #[arg(long)]
    kernel_only: bool,
    /// A shell command that runs an agent on another machine, with our input and output; once for each host.
    #[arg(long = "host", value_name = "COMMAND")]
    hosts: Vec<String>,
    /// Have the workers of one host for a coordinator elsewhere, which uses standard input and output.
    #[arg(long, conflicts_with = "hosts")]
    agent: bool,
    /// The IPv4 addresses of the hosts, instead of 127.0.0.1 and up.
    #[arg(long, value_delimiter = ',', value_name = "ADDRESS,..")]
    addresses: Vec<Ipv4Addr>,
    /// The IPv6 addresses of the hosts, instead of ::1.
    #[arg(long, value_delimiter = ',', value_name = "ADDRESS,..")]
    addresses6: Vec<Ipv6Addr>,
    /// Ports that listeners are given, instead of the kernel's choice.
    #[arg(long, value_parser = range, value_name = "FIRST-LAST")]
    ports: Option<(u16, u16)>,
    /// How many times slower than an ordinary machine this one is; waits are multiplied by it.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    slowness: u32,
    /// The time that the peer's kernel gets to answer a step, in milliseconds.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1000))]
    settle_ms: u32,
    /// A worker's own beginning after `exec`: its state as JSON.
    #[arg(long, hide = true)]
    worker: Option<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(state) = &args.worker {
        return worker::resume(state);
    }
    let world = World {
        addresses: args.addresses,
        addresses6: args.addresses6,
        ports: args.ports,
        slowness: args.slowness,
        settle_ms: args.settle_ms,
    };
    let served = if args.agent {
        host::serve(world)
    } else {
        coordinator::serve(&Settings { fresh: args.fresh, kernel_only: args.kernel_only, hosts: args.hosts, world })
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netacc-exec: {error}");
            ExitCode::FAILURE
        }
    }
}

fn range(text: &str) -> Result<(u16, u16), String> {
    let numbers = text.split_once('-').map(|(from, to)| (from.parse(), to.parse()));
    match numbers {
        Some((Ok(from), Ok(to))) if 0 < from && from <= to => Ok((from, to)),
        _ => Err("two ports, as in 20000-29999".into()),
    }
}
