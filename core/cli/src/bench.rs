//! `netacc bench`: the same load over kernel TCP, a Unix socket and each available backend.
//!
//! These rules make the comparison fair. They are in one place ([`rounds`]):
//!
//! * every path runs the *same* server and load generator with the same settings; a backend path
//!   only starts both of them through `netacc_run`;
//! * measurements are interleaved (tcp, unix, a backend, tcp, unix, the backend, ...), and ratios are
//!   taken within a round, so that a slow minute of the machine hits all paths alike;
//! * the table has the median over the rounds, with the spread of the ratios beside it, and every raw run is kept in the
//!   record (`--record`) and in the JSON;
//! * a backend's figures count only if the bytes went over its link: `link_share` is the share that did.
//!
//! The load generators of `echo`, `many`, `stream`, `connect` and `memcached` are this same binary, started again as `netacc bench-peer`
//! ([`peer`]): ordinary programs on libc sockets without any code for NetACC.

pub mod args;
mod busy;
mod cpu;
mod datagrams;
mod distance;
mod error;
pub(crate) mod link;
mod machine;
mod memcached;
mod memory;
mod noise;
mod own;
mod paths;
pub mod peer;
mod plot;
mod process;
mod processors;
mod quiet;
mod recording;
mod redis;
mod redis_output;
mod report;
mod result;
mod rounds;
mod stats;
mod table;
mod wake;

pub(crate) use busy::Others;
pub use error::BenchError;
pub use machine::Machine;
pub use paths::Tools;
pub(crate) use quiet::{busy_with, is_busy, warn};
pub use result::{Latency, PathResult, Paths, Report, Run};
pub(crate) use rounds::progress_bar;

use args::{BenchArgs, BenchCommand};

/// Runs one `netacc bench` command to its end.
///
/// # Errors
/// The reason why the comparison is incomplete; [`BenchError::exit_code`] distinguishes usage errors.
pub fn run(args: BenchArgs) -> Result<(), BenchError> {
    match args.command {
        BenchCommand::Redis(args) => redis::run(&args),
        BenchCommand::Memcached(args) => own::run_memcached(&args),
        BenchCommand::Echo(args) => own::run_echo(&args),
        BenchCommand::Many(args) => own::run_many(&args),
        BenchCommand::Stream(args) => own::run_stream(&args),
        BenchCommand::Connect(args) => own::run_connect(&args),
        BenchCommand::Datagrams(args) => datagrams::run(&args),
        BenchCommand::Noise(args) => noise::run(&args),
        BenchCommand::Wake(args) => wake::run(&args),
    }
}
