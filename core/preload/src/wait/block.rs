//! Waiting until a call can proceed: for the link, or in the kernel.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use netacc_driver::{Readiness, StreamCell};

use crate::os::asleep::Asleep;
use crate::os::clock;
use crate::os::clock::now;
use crate::os::errno::errno;
use crate::os::poll;
use crate::os::real;
use crate::os::signals;
use crate::runtime::Runtime;
use crate::socket::Socket;
use netacc_socket::{Limit, Waited};

use crate::{trace, wait};

/// Blocks until the stream may be ready: on the link, or in the kernel.
pub fn block(rt: &Runtime, sock: &Socket, cell: &Arc<StreamCell>, fd: c_int, want: Readiness, limit: Limit) -> Waited {
    let r = cell.readiness();
    let reading = want.contains(Readiness::READABLE);
    if reading && r.contains(Readiness::KERNEL_RX) {
        let Some(endpoint) = rt.endpoint() else { return Waited::Again };
        return cell.block_in_kernel(endpoint, || block_in_recv(sock, fd, limit)).unwrap_or(Waited::Again);
    }
    if !reading && r.contains(Readiness::KERNEL_TX) {
        return block_in_poll(fd, libc::POLLOUT, limit);
    }
    wait::for_stream(rt, sock, cell, fd, want, limit)
}

/// Blocks in the kernel's own receive, with its rules for signals and timeouts, without taking bytes: a marker that
/// arrives wakes it too, which is not put off then. If it takes the connection's error, the call's next attempt finds that in `deferred_error`.
fn block_in_recv(sock: &Socket, fd: c_int, limit: Limit) -> Waited {
    if !limit.restarts() || sock.nonblocking.load(Ordering::Relaxed) {
        return block_in_poll(fd, libc::POLLIN, limit);
    }
    let _sleeps = trace::sleeps();
    let asleep = Asleep::begin();
    if asleep.is_interrupted(true) {
        return Waited::Interrupted;
    }
    let mut byte = 0u8;
    // SAFETY: one writable byte.
    let n = unsafe { real::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) };
    match errno() {
        libc::EINTR if n < 0 => Waited::Interrupted,
        _ if n == 0 => Waited::Ended,
        error if n < 0 && is_of_connection(error) => {
            sock.deferred_error.store(error, Ordering::Relaxed);
            Waited::Again
        }
        _ => Waited::Again,
    }
}

/// Whether a receive that failed with `error` has taken the connection's own error (SO_ERROR). The kernel reports that
/// once. Other errors are of the call, and come again with the next one.
fn is_of_connection(error: c_int) -> bool {
    !matches!(error, libc::EAGAIN | libc::ENOTCONN | libc::EBADF | libc::ENOTSOCK | libc::EINVAL | libc::ENOMEM)
}

/// Blocks until `fd` has one of `events`, as a call on a connection does.
pub fn block_in_poll(fd: c_int, events: i16, limit: Limit) -> Waited {
    let _sleeps = trace::sleeps();
    let _asleep = Asleep::begin();
    if limit.restarts() {
        return wait::signalfd::poll(fd, events, limit);
    }
    let left = limit.deadline.map(|d| d.saturating_since(now()));
    let ts = left.map(clock::timespec);
    let mut fds = [libc::pollfd { fd, events, revents: 0 }];
    // A signal after which `ppoll` finds another file under the number, or this one ready, must not be lost.
    let blocked_signals = signals::BlockedSignals::all();
    let time = ts.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let n = poll::wait(&mut fds, time, blocked_signals.before());
    match n {
        n if n < 0 && errno() == libc::EINTR || blocked_signals.interrupts(limit.restarts()) => Waited::Interrupted,
        0 => Waited::TimedOut,
        // The number was closed under the call. The kernel checks it once more when the time is over.
        _ if fds[0].revents & libc::POLLNVAL != 0 && limit.deadline.is_some_and(|deadline| now() >= deadline) => {
            Waited::TimedOut
        }
        _ => Waited::Again,
    }
}
