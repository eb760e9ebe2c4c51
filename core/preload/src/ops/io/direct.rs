//! The direct way of a short call that moves bytes, on a link or on TCP.
//!
//! On a link see `send_direct` and `receive_direct` of [`Endpoint`](netacc_driver::Endpoint), which check the stream, and on TCP
//! `send_at_rest` and `receive_at_rest` of [`StreamCell`](netacc_driver::StreamCell). This module checks the socket's part of the
//! preconditions:
//! * the call has one buffer, and no flag or option that gives it another meaning;
//! * no path choice measures the connection, no trace records it, and no error waits for the call;
//! * SO_RCVLOWAT does not make a receive wait.
//!
//! On a link also:
//! * the connection is there, as far as can be seen without its lock;
//! * the memory of the buffer is accessible, and the program has not corked the connection;
//! * a receive may return any number of bytes, and no watcher waits for those that it takes.
//!
//! On TCP also, for a receive: it is not one that had better sleep before it looks for bytes, and no other process may have changed
//! SO_RCVLOWAT.
//!
//! A call that does not meet them takes the steps of `core/socket`. So does one that finds no bytes or no room on a link. On TCP
//! the kernel has been called then, so such a call goes on with what the kernel has returned.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use libc::iovec;
use netacc_driver::Readiness;
use netacc_socket::{Connection, KernelError};

use super::call::{kernel_result, Target};
use super::promotion::count_operation;
use super::recv::recv_rest;
use super::send::{end_failed, send_rest};
use super::single;
use crate::os::access::{self, is_beyond};
use crate::os::errno::fail;
use crate::os::immediate;
use crate::runtime::{self, in_kernel_of};
use crate::socket::Socket;
use crate::table::Entry;
use crate::{batch, trace};

/// Flags that have no meaning for a call that need not wait and does not fail.
const WITHOUT_EFFECT: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// The longest message that is sent the direct way. Arbitrary: the copy of a longer one costs more than all else.
const SHORT: usize = 4096;

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
        return unsafe { send_on_tcp(entry, fd, buf, len, flags) };
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
        return unsafe { receive_on_tcp(entry, fd, buf, len, flags) };
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

/// Sends one buffer on TCP.
///
/// # Safety
/// As `send(2)`.
// Cold, because the caller saves registers for calls on links, which are faster.
#[cold]
#[inline(never)]
unsafe fn send_on_tcp(entry: &Arc<Entry>, fd: c_int, buf: *const c_void, len: usize, flags: c_int) -> Option<isize> {
    let Entry::Stream(sock) = &**entry else { return None };
    let cell = sock.stream.as_ref()?;
    let rt = runtime::get()?;
    let endpoint = rt.endpoint()?;
    if !is_usual(sock, flags) {
        return None;
    }
    batch::count_write(endpoint);
    let quietly = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: passed on.
    let send = || kernel_result(in_kernel_of(endpoint, || unsafe { immediate::send(fd, buf, len, quietly) }));
    match cell.send_at_rest(send) {
        Some(Ok(sent)) if sent == len => {
            count_operation(rt, sock, cell);
            Some(sent as isize)
        }
        Some(tried) => {
            let target = Target { rt, entry, sock, connection: Connection { endpoint, cell } };
            // SAFETY: passed on.
            Some(unsafe { go_on_sending(target, fd, &[single(buf, len)], flags, tried) })
        }
        None => {
            batch::take_back_write();
            None
        }
    }
}

/// The kernel has not sent all of a call.
///
/// # Safety
/// As `sendmsg(2)`.
#[cold]
unsafe fn go_on_sending(
    target: Target<'_>,
    fd: c_int,
    iov: &[iovec],
    flags: c_int,
    tried: Result<usize, KernelError>,
) -> isize {
    match tried {
        // SAFETY: passed on.
        Ok(sent) => unsafe { send_rest(target, fd, iov, flags, sent) },
        Err(KernelError::WouldBlock) if may_not_wait(target.sock, flags) => fail(libc::EAGAIN),
        // SAFETY: passed on.
        Err(KernelError::WouldBlock) => unsafe { send_rest(target, fd, iov, flags, 0) },
        Err(KernelError::Ended(error) | KernelError::Call(error)) => end_failed(error, flags),
    }
}

/// Receives into one buffer on TCP.
///
/// # Safety
/// As `recv(2)`.
// Cold: as `send_on_tcp`.
#[cold]
#[inline(never)]
unsafe fn receive_on_tcp(entry: &Arc<Entry>, fd: c_int, buf: *mut c_void, len: usize, flags: c_int) -> Option<isize> {
    let Entry::Stream(sock) = &**entry else { return None };
    let cell = sock.stream.as_ref()?;
    let rt = runtime::get()?;
    let endpoint = rt.endpoint()?;
    let any = cell.low_water() == 1 && !sock.shares_description();
    if !is_usual(sock, flags & !libc::MSG_WAITALL) || !any || sock.sleeps.are_expected() {
        return None;
    }
    // SAFETY: passed on.
    let receive =
        || kernel_result(unsafe { immediate::recv(fd, buf, len, flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT) });
    let tried = cell.receive_at_rest(receive)?;
    match tried {
        Ok(0) => Some(0),
        Ok(received) if received == len || flags & libc::MSG_WAITALL == 0 => {
            batch::count_read();
            count_operation(rt, sock, cell);
            Some(received as isize)
        }
        _ => {
            let target = Target { rt, entry, sock, connection: Connection { endpoint, cell } };
            // SAFETY: passed on.
            Some(unsafe { go_on_receiving(target, fd, &[single(buf, len)], flags, tried) })
        }
    }
}

/// The kernel has not received all that a call waits for.
///
/// # Safety
/// As `recvmsg(2)`.
#[cold]
unsafe fn go_on_receiving(
    target: Target<'_>,
    fd: c_int,
    iov: &[iovec],
    flags: c_int,
    tried: Result<usize, KernelError>,
) -> isize {
    match tried {
        // SAFETY: passed on.
        Ok(received) => unsafe { recv_rest(target, fd, iov, flags, received) },
        Err(KernelError::WouldBlock) if may_not_wait(target.sock, flags) => fail(libc::EAGAIN),
        // SAFETY: passed on.
        Err(KernelError::WouldBlock) => unsafe { recv_rest(target, fd, iov, flags, 0) },
        Err(KernelError::Ended(error) | KernelError::Call(error)) => fail(error.0),
    }
}

/// Whether nothing but the kernel has a say in a call on TCP.
#[inline(always)]
fn is_usual(sock: &Socket, flags: c_int) -> bool {
    let failed = sock.deferred_error.load(Ordering::Relaxed) != 0;
    // Both are rare: one branch.
    flags & !WITHOUT_EFFECT == 0 && !(failed | sock.answers.is_some()) && !trace::is_recording()
}

/// Whether the call certainly does not wait.
#[inline]
fn may_not_wait(sock: &Socket, flags: c_int) -> bool {
    flags & libc::MSG_DONTWAIT != 0 || sock.never_waits()
}

#[cfg(test)]
mod tests {
    use netacc_proto::Reason;

    use super::*;
    use crate::socket::Beginning;

    /// Breaks if bytes that a call only looks at, or that are beside the stream, were counted as moved; or if an error that an
    /// earlier call has left were lost.
    #[test]
    fn calls_with_another_meaning_and_those_that_are_to_fail_take_the_steps() {
        let sock = Socket::new(4_001, Beginning::in_kernel(Reason::Disabled), false);
        assert!([0, libc::MSG_DONTWAIT, libc::MSG_NOSIGNAL, WITHOUT_EFFECT]
            .iter()
            .all(|flags| is_usual(&sock, *flags)));
        let others =
            [libc::MSG_PEEK, libc::MSG_OOB, libc::MSG_TRUNC, libc::MSG_ERRQUEUE, libc::MSG_MORE, libc::MSG_ZEROCOPY];
        assert!(others.iter().all(|flags| !is_usual(&sock, *flags)));
        sock.deferred_error.store(libc::ECONNRESET, Ordering::Relaxed);
        assert!(!is_usual(&sock, 0));
    }
}
