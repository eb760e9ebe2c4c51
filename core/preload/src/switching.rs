//! Streams between their paths: waiting until one is on the link or on the anchor, and demoting one.

use std::sync::Arc;
use std::time::Duration;

use netacc_device::Instant;
use netacc_driver::{Endpoint, LockedStream, StreamCell};
use netacc_proto::{Phase, Reason};

use crate::os::clock::now;
use crate::runtime::{self, Runtime};

/// A stream changed while threads sleep on its queue pair.
#[cold]
pub fn wake_sleepers(cell: &Arc<StreamCell>) {
    let Some(endpoint) = runtime::get().and_then(Runtime::endpoint) else { return };
    let qp = cell.sleep_qp();
    if let Some(qp) = qp {
        endpoint.device().wake_qp(qp);
    }
}

/// Checks a stream repeatedly, and serves its link and the helper's queue in between, until `check` has a result, or
/// until `deadline`: then the result is `None`. For changes that are microseconds away, if the peer lives.
pub fn until<T>(
    endpoint: &Endpoint,
    cell: &Arc<StreamCell>,
    deadline: Instant,
    mut check: impl FnMut(&mut LockedStream<'_>) -> Option<T>,
) -> Option<T> {
    for round in 0.. {
        cell.take_in(endpoint);
        let answer = cell.lock(endpoint).change(&mut check);
        if answer.is_some() || now() >= deadline {
            return answer;
        }
        endpoint.poll(endpoint.control_cq());
        // The helpers of both sides need a processor for this.
        if round < YIELDS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
    None
}

/// How often a wait yields the processor before it sleeps. Arbitrary. Most changes come within a few rounds, and the
/// sleep takes at least 70 microseconds with the kernel's default timer slack.
const YIELDS: u32 = 20;

/// Waits, for a bounded time, until a stream is neither being promoted nor demoted.
pub fn until_switched(endpoint: &Endpoint, cell: &Arc<StreamCell>) {
    until(endpoint, cell, now() + PROMOTION_PATIENCE, |guard| {
        matches!(guard.proto().phase(), Phase::Plain | Phase::Linked).then_some(())
    });
}

/// How long a fork or a close waits for a promotion in progress. Arbitrary; peers answer in microseconds, or never.
pub const PROMOTION_PATIENCE: Duration = Duration::from_millis(200);

/// How long the kernel's socket of a stream that has ended may take to end as well. Arbitrary; it takes microseconds,
/// unless the peer has not closed.
const ENDED_PATIENCE: Duration = Duration::from_millis(50);

/// Demotes a stream; true once it is a plain socket.
pub fn demote(endpoint: &Endpoint, cell: &Arc<StreamCell>, reason: Reason, patience: Duration) -> bool {
    let begun = now();
    let plain = until(endpoint, cell, begun + patience, |guard| {
        if !guard.proto().is_plain() {
            guard.demote(reason);
            guard.progress_anchor(false);
        }
        if guard.proto().is_plain() && guard.has_replay(now()) {
            return Some(true);
        }
        let ended = guard.proto().has_ended();
        let lost = guard.is_kept() || !ended && guard.proto().failure().is_some();
        let late = ended && now().saturating_since(begun) > ENDED_PATIENCE;
        (lost || late).then_some(false)
    });
    plain == Some(true)
}

/// The kernel reports an error on a stream's socket. Returns whether the application may have seen that error already,
/// on the link. If so, the kernel does not report it any more.
pub fn handle_kernel_error(endpoint: &Endpoint, cell: &Arc<StreamCell>) -> bool {
    let mut guard = cell.lock(endpoint);
    let pending = guard.is_end_pending();
    netacc_socket::progress_end(&mut guard, now);
    pending
}

/// While the outgoing direction changes its path, nothing can be written. The change takes microseconds. A program with
/// no unread bytes in flight expects to be able to write: it waits for the change until `deadline`.
#[cold]
pub fn await_switch(endpoint: &Endpoint, cell: &Arc<StreamCell>, deadline: Instant) {
    until(endpoint, cell, deadline, |stream| (!stream.is_between()).then_some(()));
}
