//! Calls with invalid arguments, and of processes that have used up a resource.

use std::time::Instant;

use netacc_program::{BadAddress, LimitedCall, Misuse, Outcome, Resource};

use super::bytes::wait_for;
use super::{errno_name, outcome, patience, would_block};
use crate::process::Slot;
use crate::sys;

/// Makes the call. Waits for bytes, an end or an error that the oracle has seen arrive.
pub(super) fn misuse(slot: &Slot, call: Misuse, at: BadAddress, expect: Option<&Outcome>) -> Outcome {
    let address = sys::bad_address(at);
    let events = if call.receives() { libc::POLLIN } else { libc::POLLOUT };
    until_expected(slot, events, expect, || sys::misuse(slot.fd, call, address))
}

/// Makes the call. Waits, without the limit, for anything that the oracle has seen arrive.
pub(super) fn limited(slot: &Slot, resource: Resource, call: LimitedCall, expect: Option<&Outcome>) -> Outcome {
    until_expected(slot, libc::POLLIN, expect, || sys::limited(slot.fd, resource, call))
}

/// Repeats a call while it would block and the oracle's did not.
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
