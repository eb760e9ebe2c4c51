//! `netacc_ss`: queries the state of an accelerated process, and shows it.
//!
//! # Protocol The preload library of process PID listens on the abstract Unix socket `netacc-ss/PID` (type SOCK_STREAM;
//! PID in decimal, in the process's own PID namespace), or on `netacc-ss/PID/INODE` with the inode of that namespace, if
//! a process of another one has the name. Root reaches the processes of containers, too (`containers`). A client connects, sends one line, `GET ` and a comma list of
//! sections or `all`, and reads one JSON document, a [`netacc_config::stats::Snapshot`] whose links and sockets may be rows
//! ([`netacc_config::stats::Document`]), until end of file. Then the connection is over.
//!
//! The library's duties:
//! - the socket is close-on-exec and belongs to the process that listens: the child of a fork closes the parent's and
//!   opens its own, because SO_PEERCRED at the client names the process that called `listen`;
//! - a child that is between fork and exec holds the socket too, so a process that has just replaced its
//!   program (same PID, same name) may find the name taken for a moment: it tries again, later;
//! - it answers only root and its own effective user (SO_PEERCRED of the connection);
//! - it reads at most one short line, waits for it and for a slow reader only a bounded time, and never in a thread of
//!   the program;
//! - an answer is complete or missing: half a document is an error here.
//!
//! The client checks that the listener is process PID and belongs to the user (any process may take an abstract name),
//! and that the answer ends within 2 seconds and 64 MiB. No control character of the answer reaches the terminal.
//!
//! # Exit status
//! 0 shown or recorded; 1 no such process; 2 wrong usage; 3 the process is not accelerated; 4 not permitted; 5 it sent no answer,
//! or an invalid one.

mod args;
mod clear;
mod client;
mod containers;
mod list;
mod recording;
mod show;
mod table;

use std::ffi::OsString;
use std::io::Write;

use args::{Invocation, HELP};
pub use client::{fetch, query, query_with, FetchError};
pub use list::accelerated;
use netacc_proto::Reason;
pub(crate) use show::plain;
pub(crate) use table::Lines;

const USAGE_STATUS: u8 = 2;
const OTHER_STATUS: u8 = 5;

/// Runs netacc_ss with these arguments, the program's own name first, and returns its exit status.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let result = match args::parse(arguments) {
        Ok(Invocation::Help) => Ok(help()),
        Ok(Invocation::Version) => Ok(format!("netacc_ss {}\n", env!("CARGO_PKG_VERSION"))),
        Ok(Invocation::Clear) => Ok(clear::clear()),
        Ok(Invocation::Record(wanted)) => return recording::run(&wanted),
        Ok(Invocation::List { json }) => list::list().map(|list| show::list(&list, json)),
        Ok(Invocation::Show { pid, sections, json }) => {
            take_precedence();
            fetch(pid, &sections.request()).map(|mut snapshot| {
                sections.keep_only(&mut snapshot);
                show::snapshot(&snapshot, json)
            })
        }
        Err(error) => {
            eprintln!("netacc_ss: {error}");
            return USAGE_STATUS;
        }
    };
    match result {
        Ok(text) => print(&text),
        Err(error) => {
            eprintln!("netacc_ss: {error}");
            error.status()
        }
    }
}

/// To show 20,000 connections takes 20 ms of processor time, which other programs on a busy machine would spread over a
/// tenth of a second. Only root may do this; for others nothing changes.
fn take_precedence() {
    /// The highest priority that is not real-time's.
    const NICE: i32 = -20;
    let _ = rustix::process::setpriority_process(None, NICE);
}

/// The usage, and every reason for which a connection can be on TCP.
fn help() -> String {
    let mut text = format!("{HELP}\nReasons why a connection is on TCP (sock: of each; cnt: how many there were):\n");
    for reason in Reason::ALL.iter().filter(|reason| **reason != Reason::None) {
        text.push_str(&format!(" {:<22} {}\n", reason.as_str(), reason.description()));
    }
    text
}

fn print(text: &str) -> u8 {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => 0,
        // `netacc_ss | head` closes its end early.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => 0,
        Err(error) => {
            eprintln!("netacc_ss: cannot write: {error}");
            OTHER_STATUS
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_explains_every_reason() {
        let text = help();
        assert!(text.starts_with(HELP));
        for reason in Reason::ALL.iter().filter(|reason| **reason != Reason::None) {
            let line = text.lines().find(|line| line.split_whitespace().next() == Some(reason.as_str()));
            let explained = line.and_then(|line| line.split_once(reason.as_str())).map(|(_, rest)| rest.trim().len());
            assert!(explained.is_some_and(|len| len > 10), "{reason}");
        }
    }
}
