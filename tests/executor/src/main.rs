//! `netacc-exec`: runs programs of socket operations with real processes on real sockets.
//!
//! It is an ordinary program: it calls the C library and nothing of this project but the format of programs and
//! traces. Natively it is the oracle; under `netacc_run` the same executable tests the library.
//!
//! One JSON request a line on standard input, `{"program": ..., "expect": trace or null}`; one trace a line on
//! standard output. A **coordinator** keeps a few **worker** processes, hands each step to its worker in the order of
//! the program, and waits for it to be done. Workers serve one program after another, as servers do; what a program
//! forks, replaces or kills is renewed. Nothing but the order of the steps synchronises anything.
//!
//! `expect` is the oracle's trace. TCP promises that what is sent arrives, not that it has arrived when the next call
//! looks; so where the oracle saw something arrive, a step waits up to [`patience`](ops::PATIENCE) for that, in the
//! way that the program asked for (`poll` for a `poll`, `epoll_wait` for an `epoll_wait`). It never waits for an absence.

mod channel;
mod coordinator;
mod ledger;
mod ops;
mod sys;
mod worker;

use std::process::ExitCode;

use clap::Parser;

/// Runs programs of socket operations with real processes; one JSON request a line, one trace a line.
#[derive(Parser)]
#[command(version, about)]
struct Args {
    /// Workers serve one program only.
    #[arg(long)]
    fresh: bool,
    /// Nothing but kernel TCP can be there: do not look whether a connection has moved elsewhere.
    #[arg(long)]
    kernel_only: bool,
    /// A worker's own beginning after `exec`: its state as JSON.
    #[arg(long, hide = true)]
    worker: Option<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(state) = &args.worker {
        return worker::resume(state);
    }
    match coordinator::serve(args.fresh, args.kernel_only) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netacc-exec: {error}");
            ExitCode::FAILURE
        }
    }
}
