//! `netacc trace`: a trace of the running process begins or ends.

use std::os::fd::{AsRawFd, OwnedFd};

use libc::pid_t;
use netacc_config::stats::{Traced, VERSION};

use crate::runtime::Runtime;
use crate::trace::{self, Refusal};

/// Begins a trace in the memory that the process `tracer` has passed.
pub(super) fn begin(rt: &Runtime, memory: Option<OwnedFd>, tracer: pid_t) -> Traced {
    let refused = Err(Refusal::Error(libc::EBADF));
    let begun = memory.map_or(refused, |memory| trace::begin(memory.as_raw_fd(), tracer));
    if let (Ok(()), Some(endpoint)) = (begun, rt.endpoint()) {
        endpoint.set_traced(true);
    }
    match begun {
        Ok(()) => Traced { traced: true, ..answer() },
        Err(Refusal::Taken(tracer)) => Traced { tracer: Some(tracer.unsigned_abs()), ..failed(libc::EBUSY) },
        Err(Refusal::Error(errno)) => failed(errno),
    }
}

/// Ends the trace of the process `tracer`.
pub(super) fn end(rt: &Runtime, tracer: pid_t) -> Traced {
    let ended = trace::end(tracer);
    if let (true, Some(endpoint)) = (ended, rt.endpoint()) {
        endpoint.set_traced(false);
    }
    Traced { traced: !ended, ..answer() }
}

fn failed(errno: i32) -> Traced {
    Traced { error: std::io::Error::from_raw_os_error(errno).to_string(), ..answer() }
}

fn answer() -> Traced {
    Traced { version: VERSION, pid: std::process::id(), ..Traced::default() }
}
