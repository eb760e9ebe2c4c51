//! The direct way of a short call that moves bytes, on a link or on TCP.
//!
//! On a link see `send_direct` and `receive_direct` of [`Endpoint`](netacc_driver::Endpoint), which check the stream, and on TCP
//! `send_at_rest`, `receive_at_rest` and `take_asleep` of [`StreamCell`](netacc_driver::StreamCell). This module checks the socket's
//! part of the preconditions:
//! * the call has one buffer, or sends some short ones, and no flag or option that gives it another meaning;
//! * no path choice measures the connection, no trace records it, and no error waits for the call;
//! * SO_RCVLOWAT does not make a receive wait.
//!
//! On a link also:
//! * the connection is there, as far as can be seen without its lock;
//! * the memory of the buffer is accessible, and the program has not corked the connection;
//! * a receive may return any number of bytes, and no watcher waits for those that it takes.
//!
//! A call that does not meet them takes the steps of `core/socket`. So does one that finds no bytes or no room on a link. Calls on
//! TCP have a module of their own.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use libc::iovec;
use netacc_driver::Readiness;

use crate::os::access::{self, is_beyond};
use crate::runtime;
use crate::socket::Socket;
use crate::table::Entry;
use crate::{batch, trace};

mod tcp;

/// Flags that have no meaning for a call that need not wait and does not fail.
const WITHOUT_EFFECT: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// The longest message that is sent the direct way. Arbitrary: the copy of a longer one costs more than all else.
const SHORT: usize = 4096;

/// The longest message that is gathered from several buffers. Arbitrary: in a longer one a copy more is felt.
const GATHERED: usize = 1024;

/// Sends one buffer. `None`: nothing is sent. Otherwise the result of the call.
///
/// # Safety
/// The mapped part of the buffer is readable.
// Always: it is the whole of a short call, and the calls that have it are few.
#[inline(always)]
pub unsafe fn send(
    entry: &Arc<Entry>,
    sock: &Socket,
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
) -> Option<isize> {
    let cell = sock.stream.as_ref()?;
    if cell.readiness().contains(Readiness::KERNEL_TX) {
        // SAFETY: passed on.
        return unsafe { tcp::send(entry, fd, buf, len, flags) };
    }
    let endpoint = runtime::get()?.endpoint()?;
    // All are rare: one branch.
    let corked = sock.options.cork.load(Ordering::Relaxed);
    let failed = sock.deferred_error.load(Ordering::Relaxed) != 0;
    let rare = corked | failed | sock.answers.is_some();
    let plain = flags & !WITHOUT_EFFECT == 0 && !rare && !trace::is_recording();
    if !plain || len == 0 || len > SHORT || access::readable(buf, len) < len {
        return None;
    }
    batch::count_write(endpoint);
    // SAFETY: found to be readable.
    let sent = unsafe { endpoint.send_direct(cell, buf.cast(), len) };
    if !sent {
        batch::take_back_write();
        return None;
    }
    Some(len as isize)
}

/// Sends the bytes of several buffers, gathered to one message. `None`: nothing is sent. Otherwise the result of the call.
///
/// # Safety
/// `iov` describes memory whose mapped part is readable.
pub unsafe fn send_gathered(
    entry: &Arc<Entry>,
    sock: &Socket,
    fd: c_int,
    iov: &[iovec],
    flags: c_int,
) -> Option<isize> {
    let mut message = [const { MaybeUninit::<u8>::uninit() }; GATHERED];
    let mut len = 0;
    for v in iov {
        let place = message.get_mut(len..)?.get_mut(..v.iov_len)?;
        if access::readable(v.iov_base, v.iov_len) < v.iov_len {
            return None;
        }
        // SAFETY: found to be readable; the message is this call's own.
        unsafe { std::ptr::copy_nonoverlapping(v.iov_base.cast::<u8>(), place.as_mut_ptr().cast(), v.iov_len) };
        len += v.iov_len;
    }
    // SAFETY: so many bytes were written.
    unsafe { send(entry, sock, fd, message.as_ptr().cast(), len, flags) }
}

/// Receives into one buffer. `None`: nothing is received. Otherwise the result of the call.
///
/// # Safety
/// The mapped part of the buffer is the caller's to write.
// Always: as for `send`.
#[inline(always)]
pub unsafe fn receive(
    entry: &Arc<Entry>,
    sock: &Socket,
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
) -> Option<isize> {
    let cell = sock.stream.as_ref()?;
    if cell.readiness().contains(Readiness::KERNEL_RX) {
        // SAFETY: passed on.
        return unsafe { tcp::receive(entry, fd, buf, len, flags) };
    }
    let endpoint = runtime::get()?.endpoint()?;
    let plain =
        flags & !WITHOUT_EFFECT == 0 && cell.low_water() == 1 && sock.answers.is_none() && !trace::is_recording();
    if !plain || len == 0 || is_beyond(buf, len) {
        return None;
    }
    let to = buf.cast::<u8>();
    // SAFETY: the caller's promise; found to be writable.
    let received = unsafe {
        endpoint.receive_direct(cell, sock.is_watched(), (to, len), |wanted| access::writable(to, wanted) == wanted)
    }?;
    batch::count_read();
    Some(received as isize)
}
