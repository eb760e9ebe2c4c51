//! Waiting for what comes again on the anchor when a link is left: for the program it has been there all along.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use netacc_device::Instant;
use netacc_driver::{Endpoint, Readiness, StreamCell};
use netacc_proto::RxSource;

use super::kernel::unread;
use crate::os::clock::now;
use crate::wait::{self, Limit};

/// How long a read that need not wait does so all the same: see [`await_replay`]. Arbitrary: as long as a peer that runs
/// may take to be scheduled on a machine with far more threads than processors. Paid at most once for a demotion, when
/// the peer has stopped in the middle of it.
const REPLAY_PATIENCE: Duration = Duration::from_millis(200);

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

/// The stream is plain, and what lay unread comes again: returns once the kernel has all of it, as it would have had all
/// along. Whoever acts on the socket now may be told of it, and closes it with a reset if it is never read.
#[cold]
pub(super) fn await_all_replay(endpoint: &Endpoint, cell: &Arc<StreamCell>, fd: c_int) {
    let begun = now();
    loop {
        let left = match cell.lock(endpoint).proto().rx_source() {
            RxSource::Anchor(left) if left != u64::MAX => left,
            _ => return,
        };
        // A small buffer of the kernel's has no room for all that a ring had.
        if unread(fd) >= left || now().saturating_since(begun) > REPLAY_PATIENCE {
            return;
        }
        std::thread::sleep(Duration::from_micros(20));
    }
}
