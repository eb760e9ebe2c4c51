//! The direct way of a short call that moves bytes on a link: see `send_direct` and `receive_direct` of
//! [`Endpoint`](netacc_driver::Endpoint), which check the stream.
//!
//! This module checks the socket's part of the preconditions:
//! * the call has one buffer, whose memory is accessible, and no flag or option that gives it another meaning;
//! * no path choice measures the connection, and no trace records it;
//! * a receive may return any number of bytes, and no watcher waits for them.
//!
//! A call that does not meet them, or finds no bytes or no room, takes the steps of `core/socket`.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use libc::iovec;
use netacc_driver::LinkIo;
use netacc_socket::Connection;

use super::call::Target;
use crate::os::access;
use crate::{batch, trace};

/// Flags that have no meaning for a call that need not wait and does not fail.
const WITHOUT_EFFECT: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// The longest message that is sent the direct way. Arbitrary: the copy of a longer one costs more than all else.
const SHORT: usize = 4096;

/// Sends one buffer. `None`: nothing is sent.
///
/// # Safety
/// `iov` describes readable memory.
#[inline]
pub(super) unsafe fn send(target: &Target<'_>, iov: &[iovec], flags: c_int) -> Option<usize> {
    let (sock, Connection { endpoint, cell }) = (target.sock, target.connection);
    let [iovec { iov_base, iov_len }] = *iov else { return None };
    let plain = flags & !WITHOUT_EFFECT == 0
        && !sock.options.cork.load(Ordering::Relaxed)
        && sock.deferred_error.load(Ordering::Relaxed) == 0
        && sock.answers.is_none()
        && !trace::is_recording();
    if !plain || iov_len == 0 || iov_len > SHORT || access::readable(iov_base, iov_len) < iov_len {
        return None;
    }
    // SAFETY: found to be readable.
    unsafe { endpoint.send_direct(cell, iov_base.cast(), iov_len as u32) }.then_some(iov_len)
}

/// Receives into one buffer. `None`: nothing is received.
///
/// # Safety
/// The mapped part of the memory that `iov` describes is the caller's to write.
#[inline]
pub(super) unsafe fn receive(target: &Target<'_>, iov: &[iovec], flags: c_int) -> Option<usize> {
    let (sock, Connection { endpoint, cell }) = (target.sock, target.connection);
    let [iovec { iov_base, iov_len }] = *iov else { return None };
    let plain =
        flags & !WITHOUT_EFFECT == 0 && cell.low_water() == 1 && sock.answers.is_none() && !trace::is_recording();
    if !plain || iov_len == 0 {
        return None;
    }
    let received = endpoint.receive_direct(cell, sock.is_watched(), |stream| {
        let to = iov_base.cast::<u8>();
        let room = iov_len.min(stream.proto().available() as usize);
        // SAFETY: the caller's promise; found to be writable.
        let done = unsafe { (access::writable(to, room) == room).then(|| stream.recv_link(to, room)) };
        match done {
            Some(LinkIo::Done(n)) => Some(n),
            _ => None,
        }
    })?;
    batch::count_read();
    Some(received)
}
