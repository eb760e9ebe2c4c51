//! Calls with arguments that they cannot use.

use std::time::Instant;

use netacc_program::{BadAddress, Misuse, Outcome};

use super::bytes::wait_for;
use super::{errno_name, outcome, patience, would_block};
use crate::process::Slot;
use crate::sys;

/// Makes the call. What the oracle has seen arrive (bytes, an end, an error) is waited for.
pub(super) fn misuse(slot: &Slot, call: Misuse, at: BadAddress, expect: Option<&Outcome>) -> Outcome {
    let address = sys::bad_address(at);
    let begun = Instant::now();
    loop {
        let result = sys::misuse(slot.fd, call, address);
        let arrives = |error: &std::io::Error| {
            would_block(error) && expect.is_some_and(|e| e.errno.as_deref() != Some(&errno_name(error)))
        };
        match result {
            Err(error) if arrives(&error) && begun.elapsed() < patience() => {
                wait_for(slot.fd, if call.receives() { libc::POLLIN } else { libc::POLLOUT }, begun);
            }
            result => return outcome(result.map(|n| n as i64)),
        }
    }
}
