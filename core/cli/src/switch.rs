//! `netacc demote` and `netacc promote`: a running process leaves its links and continues over plain TCP, or returns to
//! links.
//!
//! No connection is closed, and no byte is lost or repeated; the program does not notice. While a process is demoted
//! its new connections stay on TCP too.
//!
//! Exit status as for `netacc_ss`, and 6 if some connections are still on links when the time is up.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use netacc_config::stats::Switched;

use crate::ss::{query, FetchError};

const STILL_ON_LINK: u8 = 6;

/// Arguments of both.
#[derive(Debug, Args)]
pub struct SwitchArgs {
    /// The processes
    #[arg(short, long = "pid", required = true, value_name = "PID")]
    pids: Vec<u32>,

    /// Give up after this many seconds
    #[arg(long, default_value_t = 10, value_name = "S")]
    timeout: u64,

    /// One JSON object for each process instead of text
    #[arg(long)]
    json: bool,
}

/// `netacc demote`.
pub fn demote(args: &SwitchArgs) -> ExitCode {
    each(args, "demote", |pid| {
        let deadline = Instant::now() + Duration::from_secs(args.timeout);
        loop {
            // The process tries for about a second at a time.
            let switched: Switched = query(pid, "DEMOTE")?;
            if switched.on_link == 0 || Instant::now() >= deadline {
                let status = if switched.on_link == 0 { 0 } else { STILL_ON_LINK };
                let text = match switched.on_link {
                    0 => format!("{} connections, all on plain TCP", switched.connections),
                    n => format!("{n} of {} connections are still on links", switched.connections),
                };
                return Ok((switched, text, status));
            }
        }
    })
}

/// `netacc promote`.
pub fn promote(args: &SwitchArgs) -> ExitCode {
    each(args, "promote", |pid| {
        let switched: Switched = query(pid, "PROMOTE")?;
        let text = format!("{} connections may be promoted again, as they are used", switched.connections);
        Ok((switched, text, 0))
    })
}

fn each(args: &SwitchArgs, name: &str, switch: impl Fn(u32) -> Result<(Switched, String, u8), FetchError>) -> ExitCode {
    let mut worst = 0;
    for &pid in &args.pids {
        let status = match switch(pid) {
            Ok((switched, _, status)) if args.json => {
                println!("{}", serde_json::json!(Switched { pid, ..switched }));
                status
            }
            Ok((_, text, status)) => {
                println!("process {pid}: {text}");
                status
            }
            Err(error) => {
                eprintln!("netacc {name}: {error}");
                error.status()
            }
        };
        worst = worst.max(status);
    }
    ExitCode::from(worst)
}
