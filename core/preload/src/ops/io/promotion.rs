//! The decisions at each operation on a connection: whether to request a link, and whether to leave a slow one.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use netacc_driver::{Readiness, StreamCell, Tries, Verdict};
use netacc_proto::Reason;

use crate::answers::Answers;
use crate::ops::connection;
use crate::os::clock;
use crate::runtime::Runtime;
use crate::socket::Socket;

#[inline]
pub(super) fn record_sent(rt: &Runtime, sock: &Socket, cell: &Arc<StreamCell>, len: usize) {
    if let Some(answers) = sock.answers.as_ref().filter(|answers| answers.record_sent(cell.readiness(), len)) {
        leave_slow_link(rt, answers, cell);
    }
    sock.whole.record_sent();
    count_operation(rt, sock, cell);
}

#[inline]
pub(super) fn record_received(rt: &Runtime, sock: &Socket, cell: &Arc<StreamCell>, len: usize) {
    if let Some(answers) = sock.answers.as_ref().filter(|answers| answers.record_received(cell.readiness(), len)) {
        leave_slow_link(rt, answers, cell);
    }
    count_operation(rt, sock, cell);
}

/// Begins to leave a link that is slower than the anchor, unless it is shared memory. Bytes in flight arrive as in any
/// demotion; no thread waits.
#[cold]
fn leave_slow_link(rt: &Runtime, answers: &Answers, cell: &Arc<StreamCell>) {
    if let Some(endpoint) = rt.endpoint() {
        cell.lock(endpoint).change(|stream| {
            if stream.link().is_some_and(|link| link.is_shared_memory()) {
                return answers.end();
            }
            stream.demote(Reason::LinkSlower);
            stream.progress_anchor(false);
        });
    }
}

/// Counts an operation, and requests promotion when it is time.
#[inline]
pub(super) fn count_operation(rt: &Runtime, sock: &Socket, cell: &Arc<StreamCell>) {
    if !cell.readiness().contains(Readiness::KERNEL_TX) {
        return;
    }
    let n = sock.operations.fetch_add(1, Ordering::Relaxed) + 1;
    if sock.promotion.is_due(n, clock::now) {
        try_promotion(rt, sock, cell, n);
    }
}

#[cold]
fn try_promotion(rt: &Runtime, sock: &Socket, cell: &Arc<StreamCell>, n: u32) {
    let shared = cell.is_shared();
    let tcp_requested = rt.endpoint().is_some_and(|e| cell.lock(e).proto().reason() == Reason::Requested);
    sock.promotion.record_try(n, clock::now(), Tries { shared, tcp_requested });
    if cell.is_pinned() {
        // The code that pinned it mostly has a more specific reason.
        if sock.recorded_reason().is_none() {
            sock.record_reason(Reason::KernelOnly);
        }
        return;
    }
    if !sock.holds_alone() {
        sock.search_holders();
        return sock.record_reason(Reason::Shared);
    }
    if sock.accepted && shared {
        sock.promotion.postpone(n, connection::PATIENCE);
        if let Some(endpoint) = rt.endpoint() {
            endpoint.publish(cell);
        }
        return;
    }
    if sock.accepted {
        // The opener requests a link; it has had the time to do so. Each search for the reason costs system calls and a wake-up
        // of the helper, and a reason that is known changes rarely.
        if sock.recorded_reason().is_some() {
            sock.promotion.leave_to_time();
        }
        return rt.request_reason(cell);
    }
    match sock.answers.as_ref().map_or(Verdict::Promote, |answers| answers.judge(n)) {
        Verdict::Promote => {
            // Not the descriptor of this call: if that is closed before the others, no descriptor would be watched.
            cell.tag().store(sock.fd.load(Ordering::Relaxed) as u32, Ordering::Relaxed);
            rt.request_promotion(cell);
        }
        Verdict::Measure => {
            sock.promotion.begin_again(n);
        }
        Verdict::Stay => {
            sock.promotion.record_slower(n);
            sock.record_reason(Reason::LinkSlower);
        }
    }
}
