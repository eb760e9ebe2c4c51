//! Moving data: every read and write of a connection ends here.
//!
//! While a stream is on the kernel path the real call is made, without blocking and with the stream locked, so that
//! the moved bytes can be counted exactly; a blocking call then waits outside. While it is on a link no system call
//! is made.
//!
//! * `recv`, `send`: the two calls in steps, which `core/socket` decides.
//! * `call`: the common parts of both.
//! * `direct`: short messages on links, without those steps. A call with one buffer tries it first.
//! * `promotion`: counts operations, and requests promotion when it is time.
//! * `kernel`: the real calls.
//!
//! Here: functions that all of these share, leaving the link for good, and the lengths of queues.

use std::ffi::{c_int, c_void};

use libc::iovec;
use netacc_driver::{LockedStream, Readiness};
use netacc_proto::{Phase, RxSource};
use netacc_socket::Connection;

use crate::os::errno::fail;
use crate::os::limits::MAX_BYTES;
use crate::os::poll;
use crate::os::sockopt::unread;
use crate::runtime::{self, Runtime};
use crate::socket::Socket;

mod call;
mod direct;
mod kernel;
mod promotion;
mod recv;
mod send;

pub use direct::{receive as receive_direct, send as send_direct, send_gathered};
pub use recv::recv_in_steps;
pub use send::send_in_steps;

/// A buffer as a vector of one, with its length bounded as the kernel bounds it.
#[inline]
pub fn single(buf: *const c_void, len: usize) -> iovec {
    iovec { iov_base: buf.cast_mut(), iov_len: len.min(MAX_BYTES) }
}

/// Total length of a vector, or `None` beyond SSIZE_MAX.
fn total(iov: &[iovec]) -> Option<usize> {
    iov.iter().try_fold(0usize, |n, v| n.checked_add(v.iov_len)).filter(|n| *n <= isize::MAX as usize)
}

/// The error of a call that returned a number of bytes instead, or else `result`.
fn deferred_or(sock: &Socket, result: isize) -> isize {
    match sock.take_deferred_error() {
        Some(error) => fail(error),
        None => result,
    }
}

/// The connection is entirely on the kernel path (for now).
pub fn on_kernel(sock: &Socket) -> bool {
    match &sock.stream {
        None => {
            sock.reclaim();
            true
        }
        Some(cell) => {
            let Some(endpoint) = runtime::get().and_then(Runtime::endpoint) else { return true };
            cell.lock(endpoint).proto().is_plain()
        }
    }
}

/// A call that went to the kernel moved so many bytes.
pub fn account_kernel(sock: &Socket, sent: usize, received: usize) {
    if let (Some(cell), Some(endpoint)) = (&sock.stream, runtime::get().and_then(Runtime::endpoint)) {
        let mut guard = cell.lock(endpoint);
        guard.anchor_sent(sent);
        guard.anchor_received(received);
    }
}

/// Bytes that a read would find on the link; `None`: ask the kernel.
pub fn readable_bytes(sock: &Socket, fd: c_int) -> Option<usize> {
    sock.reclaim();
    let (cell, endpoint) = sock.stream.as_ref().zip(runtime::get().and_then(Runtime::endpoint))?;
    Connection { endpoint, cell }.poll_link();
    let guard = cell.lock(endpoint);
    match guard.rx_source() {
        RxSource::Anchor(u64::MAX) => None,
        // Bytes that come again were here before.
        RxSource::Anchor(left) => Some(unread(fd).max(left) as usize),
        _ => Some(guard.proto().available().max(guard.proto().frozen()) as usize),
    }
}

/// The value of TCP_INQ: the number of bytes that a read would find; 1 at the end of the stream, so that the program
/// reads on and sees the end.
pub fn queued_bytes(sock: &Socket, fd: c_int) -> c_int {
    let queued = readable_bytes(sock, fd).unwrap_or_else(|| unread(fd) as usize).min(c_int::MAX as usize) as c_int;
    let ended = || {
        let r = sock.stream.as_ref().map_or(Readiness::KERNEL_RX, |cell| cell.readiness());
        let ends = || poll::ready_events(fd, libc::POLLRDHUP) != 0;
        r.contains(Readiness::RDHUP) || r.contains(Readiness::KERNEL_RX) && ends()
    };
    if queued == 0 && ended() {
        1
    } else {
        queued
    }
}

/// The bytes that SIOCOUTQ and SIOCOUTQNSD count, of those that the peer has not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// Bytes that the peer's kernel has not acknowledged.
    Unacknowledged,
    /// Bytes that this kernel has not sent.
    Unsent,
}

/// Bytes that the kernel would still have to send, or have acknowledged; `None`: ask the kernel. This counts all bytes
/// that have left a link and are still to be written to the anchor. Of the bytes on a link it counts those that the
/// peer's kernel would have no room for.
pub fn outgoing_bytes(sock: &Socket, which: Outgoing) -> Option<usize> {
    let (cell, endpoint) = sock.stream.as_ref().zip(runtime::get().and_then(Runtime::endpoint))?;
    if cell.readiness().contains(Readiness::KERNEL_RX | Readiness::KERNEL_TX) {
        return None;
    }
    let mut guard = cell.lock(endpoint);
    guard.change(LockedStream::refresh_consumed);
    match guard.proto().phase() {
        Phase::Resuming => Some(guard.proto().unconsumed() as usize),
        Phase::Linked if which == Outgoing::Unsent => Some(guard.proto().queued_to_send() as usize),
        Phase::Linked => Some(guard.proto().queued_to_send() as usize + guard.proto().refused() as usize),
        _ => None,
    }
}
