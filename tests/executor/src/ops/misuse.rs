//! Calls with arguments that they cannot use, and of processes that may have no more of a resource.

use std::time::Instant;

use netacc_program::{BadAddress, LimitedCall, Misuse, Outcome, Resource};

use super::bytes::wait_for;
use super::{errno_name, outcome, patience, would_block};
use crate::process::Slot;
use crate::sys;

/// Makes the call. What the oracle has seen arrive (bytes, an end, an error) is waited for.
pub(super) fn misuse(slot: &Slot, call: Misuse, at: BadAddress, expect: Option<&Outcome>) -> Outcome {
    let address = sys::bad_address(at);
    let events = if call.receives() { libc::POLLIN } else { libc::POLLOUT };
    until_expected(slot, events, expect, || sys::misuse(slot.fd, call, address))
}

/// Makes the call. What the oracle has seen arrive is waited for, without the limit.
pub(super) fn limited(slot: &Slot, resource: Resource, call: LimitedCall, expect: Option<&Outcome>) -> Outcome {
    until_expected(slot, libc::POLLIN, expect, || sys::limited(slot.fd, resource, call))
}

/// Makes a call again while it would block and the oracle's did not.
fn until_expected(
    slot: &Slot,
    events: i16,
    expect: Option<&Outcome>,
    call: impl Fn() -> std::io::Result<usize>,
) -> Outcome {
    let begun = Instant::now();
    loop {
        let result = call();
        let arrives = |error: &std::io::Error| {
            would_block(error) && expect.is_some_and(|e| e.errno.as_deref() != Some(&errno_name(error)))
        };
        match result {
            Err(error) if arrives(&error) && begun.elapsed() < patience() => {
                wait_for(slot.fd, events, begun);
            }
            result => return outcome(result.map(|n| n as i64)),
        }
    }
}
