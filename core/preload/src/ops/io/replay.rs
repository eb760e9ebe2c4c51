//! Waiting for what comes again on the anchor when a link is left: for the program it has been there all along.

use std::ffi::c_int;
use std::sync::Arc;

use netacc_device::Instant;
use netacc_driver::{Endpoint, Readiness, StreamCell};

use crate::leaving::REPLAY_PATIENCE;
use crate::os::clock::now;
use crate::wait::{self, Limit};

/// Bytes that were there on the link come again on the anchor when the link is left. A program that was told of them
/// must not be told that there are none: it waits for them for [`REPLAY_PATIENCE`], from the first look on, which sets
/// `deadline`. Whether to look again.
///
/// A program that polls comes here with every look, so the clock is read only if there is something to wait for.
#[cold]
pub(super) fn await_replay(
    endpoint: &Endpoint,
    cell: &Arc<StreamCell>,
    fd: c_int,
    deadline: &mut Option<Instant>,
) -> bool {
    if !cell.lock(endpoint).proto().awaits_replay() {
        return false;
    }
    let deadline = *deadline.get_or_insert_with(|| now() + REPLAY_PATIENCE);
    if now() >= deadline {
        return false;
    }
    let limit = Limit { deadline: Some(deadline), idle: true };
    wait::in_transition(endpoint, cell, fd, Readiness::READABLE, limit);
    true
}
