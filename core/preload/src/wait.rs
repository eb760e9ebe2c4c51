//! Waiting: how threads sleep until a stream changes.
//!
//! * [`spin`](crate::spin): how long to spin before.
//! * `poll`: sleeping on several descriptors.
//! * [`signals`]: the state that a handler finds if it runs meanwhile.
//!
//! A thread waits for one stream by sleeping on its queue pair, and for several (`poll`, `select`) by sleeping in the
//! real `ppoll` with an eventfd and the channel of a completion queue of its own added ([`Slot`](slots::Slot)). Where
//! several threads would sleep on one queue pair for different streams, they sleep on their eventfds. In all cases the
//! order is: announce, poll once more, sleep. A thread that changes a stream does: change, check for announcements,
//! wake. No thread is woken for a stream that it does not wait for.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Duration;

use libc::pollfd;
use netacc_device::{Armed, CompletionQueueId, Wait};
use netacc_driver::{AnchorProgress, Endpoint, LinkCell, Readiness, StreamCell};
use netacc_socket::{Limit, Waited};

use crate::anchor::anchor_event;
use crate::batch;
use crate::os::asleep::Asleep;
use crate::os::clock::{now, timespec};
use crate::os::errno::errno;
use crate::os::signals;
use crate::runtime::Runtime;
use crate::socket::Socket;

mod block;
mod poll;
mod signalfd;
mod sleeper;
mod slots;

pub use block::{block, block_in_poll};
pub use poll::{any_ours, poll, Call};
pub use sleeper::Waiter;
pub use slots::{Slot, Slots};

use sleeper::StreamWait;

/// The longest sleep of a thread without a descriptor that could wake it. Arbitrary.
pub const WITHOUT_EVENTFD: Duration = Duration::from_millis(5);

/// How long a thread sleeps before it checks again whether a stream has changed its path. Arbitrary.
const STEP: Duration = Duration::from_millis(1);

/// The rest of a call's time. A call without a limit that must not be restarted gets a very long limit, because the
/// kernel does not restart a wait with a time limit.
fn left(limit: Limit) -> Option<Duration> {
    const LONG: Duration = Duration::from_secs(1 << 30);
    match limit.deadline {
        Some(deadline) => Some(deadline.saturating_since(now())),
        None => (!limit.idle).then_some(LONG),
    }
}

/// Waits until `cell` may be ready for one of `want`. The caller has just polled it and found it not ready.
pub fn for_stream(
    rt: &Runtime,
    sock: &Socket,
    cell: &Arc<StreamCell>,
    fd: c_int,
    want: Readiness,
    limit: Limit,
) -> Waited {
    let Some(endpoint) = rt.endpoint() else { return Waited::Again };
    batch::end(endpoint);
    let want = want | Readiness::ERR | Readiness::HUP;
    let begun = now();
    let (link, linked) = {
        let guard = cell.lock(endpoint);
        (guard.link().cloned(), guard.proto().is_linked())
    };
    let (Some(link), true) = (link.as_ref(), linked) else {
        return match link {
            Some(link) if cell.lock(endpoint).proto().expects_unmarked() => {
                for_unmarked(endpoint, cell, &link, want, limit)
            }
            _ => in_transition(endpoint, cell, fd, want, limit),
        };
    };
    let ready = || {
        cell.readiness().intersects(want) || cell.readiness().intersects(Readiness::KERNEL_RX | Readiness::KERNEL_TX)
    };
    let mut seen = endpoint.device().qp_sequence(link.qp());
    endpoint.poll_link(link);
    let mut waiting = rt.spin.begin(begun);
    let spun = waiting.spin(limit.deadline, || {
        let sequence = endpoint.device().qp_sequence(link.qp());
        if sequence != seen {
            seen = sequence;
            endpoint.poll_link(link);
        }
        if want.contains(Readiness::WRITABLE) {
            cell.lock(endpoint).change(|stream| stream.refresh_consumed());
        }
        ready()
    });
    if !spun {
        if left(limit) == Some(Duration::ZERO) {
            return Waited::TimedOut;
        }
        match (StreamWait { sock, cell, link, limit }).sleep(rt, endpoint, ready) {
            Waited::Again => {}
            ended => return ended,
        }
    }
    waiting.end(1);
    Waited::Again
}

/// Between the paths, where the peer continues the change by a message on the link. Not for long: the peer may also continue it on
/// the anchor, which does not end this sleep.
fn for_unmarked(
    endpoint: &Endpoint,
    cell: &Arc<StreamCell>,
    link: &Arc<LinkCell>,
    want: Readiness,
    limit: Limit,
) -> Waited {
    let _sleeps = cell.sleeps();
    cell.set_sleep_qp(link.qp());
    let seen = endpoint.device().qp_sequence(link.qp());
    endpoint.poll_link(link);
    let waits = cell.lock(endpoint).change(|stream| {
        stream.progress_anchor(false);
        stream.proto().expects_unmarked()
    });
    if !waits || cell.readiness().intersects(want) {
        return Waited::Again;
    }
    let asleep = Asleep::begin();
    if asleep.is_interrupted(limit.restarts()) {
        return Waited::Interrupted;
    }
    let step = limit.deadline.map_or(STEP, |deadline| deadline.saturating_since(now()).min(STEP));
    // Any handler ends a sleep with a time limit, so the handlers run behind it if some of them do not end the call.
    let blocked_signals = limit.restarts().then(signals::BlockedSignals::all);
    let waited = endpoint.device().wait_qp(link.qp(), seen, Some(step));
    let interrupted = blocked_signals.as_ref().is_some_and(|blocked| blocked.interrupts(limit.restarts()));
    drop(blocked_signals);
    drop(asleep);
    endpoint.poll_link(link);
    match (waited, limit.deadline) {
        _ if interrupted => Waited::Interrupted,
        (Wait::Interrupted, _) => Waited::Interrupted,
        (_, Some(deadline)) if now() >= deadline => Waited::TimedOut,
        _ => Waited::Again,
    }
}

/// Between the paths: an event on the anchor, or the peer's answer on the link, continues the change.
pub fn in_transition(endpoint: &Endpoint, cell: &Arc<StreamCell>, fd: c_int, want: Readiness, limit: Limit) -> Waited {
    let progress = cell.lock(endpoint).change(|stream| stream.progress_anchor(false));
    if cell.readiness().intersects(want) {
        return Waited::Again;
    }
    let mut events = libc::POLLRDHUP;
    if progress != AnchorProgress::Partial {
        events |= libc::POLLIN;
    }
    if want.contains(Readiness::WRITABLE) || progress == AnchorProgress::WantWrite {
        events |= libc::POLLOUT;
    }
    let left = limit.deadline.map_or(STEP, |d| d.saturating_since(now()).min(STEP));
    let ts = timespec(left);
    let mut fds = [pollfd { fd, events, revents: 0 }];
    let asleep = Asleep::begin();
    let blocked_signals = signals::BlockedSignals::all();
    let mask = if limit.restarts() { std::ptr::null() } else { std::ptr::from_ref(blocked_signals.before()) };
    let n = crate::os::poll::wait(&mut fds, &ts, mask);
    if n < 0 && errno() == libc::EINTR || blocked_signals.interrupts(limit.restarts()) {
        return Waited::Interrupted;
    }
    drop(blocked_signals);
    drop(asleep);
    cell.anchor_event(endpoint, anchor_event(fds[0].revents as u16 as u32));
    if n == 1 {
        // There are bytes, but not for the application: give the rest time to come.
        std::thread::yield_now();
    }
    match limit.deadline {
        Some(d) if now() >= d => Waited::TimedOut,
        _ => Waited::Again,
    }
}

/// Closes the descriptors for waits that are not in use: those of slots in which no thread sleeps, and signalfds.
/// Returns whether there were any.
pub fn give_back_unused() -> bool {
    slots::of_process().give_back() | signalfd::give_back()
}

/// In a forked child: the descriptors for waits are its parent's.
pub(crate) fn after_fork_child() {
    slots::after_fork_child();
    signalfd::after_fork_child();
}

/// Sleepers per completion queue: the device is disarmed when the last one leaves.
static ARMED: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];

/// Arms `cq` for one more sleeper; `moderated`: for a sleep of at most [`MODERATION`](netacc_device::MODERATION).
pub fn arm(endpoint: &Endpoint, cq: CompletionQueueId, moderated: bool) -> Armed {
    if let Some(count) = ARMED.get(cq.0 as usize) {
        count.fetch_add(1, Ordering::SeqCst);
    }
    if moderated {
        endpoint.device().arm_moderated(cq)
    } else {
        endpoint.device().arm(cq)
    }
}

/// One sleeper of `cq` is up. Handles completions, and arms again if others still sleep.
pub fn disarm(endpoint: &Endpoint, cq: CompletionQueueId) {
    endpoint.device().disarm(cq);
    endpoint.poll(cq);
    let others = ARMED.get(cq.0 as usize).is_some_and(|count| count.fetch_sub(1, Ordering::SeqCst) > 1);
    if others {
        while endpoint.device().arm(cq) == Armed::Pending {
            if endpoint.poll(cq) == 0 {
                break;
            }
        }
    }
}
