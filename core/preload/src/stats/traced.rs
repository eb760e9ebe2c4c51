//! `netacc trace`: a trace of the running process begins or ends.

use std::os::fd::{AsRawFd, OwnedFd};

use netacc_config::stats::{Traced, VERSION};

use crate::runtime::Runtime;
use crate::trace;

/// Begins a trace in the memory that the tool has passed.
pub(super) fn begin(rt: &Runtime, memory: Option<OwnedFd>) -> Traced {
    let begun = memory.map_or(Err(libc::EBADF), |memory| trace::begin(memory.as_raw_fd()));
    if let (Ok(()), Some(endpoint)) = (begun, rt.endpoint()) {
        endpoint.set_traced(true);
    }
    answer(begun.is_ok(), begun.err())
}

/// Ends the trace.
pub(super) fn end(rt: &Runtime) -> Traced {
    if let Some(endpoint) = rt.endpoint() {
        endpoint.set_traced(false);
    }
    trace::end();
    answer(false, None)
}

fn answer(traced: bool, errno: Option<i32>) -> Traced {
    let error = errno.map(|errno| std::io::Error::from_raw_os_error(errno).to_string()).unwrap_or_default();
    Traced { version: VERSION, pid: std::process::id(), traced, error }
}
