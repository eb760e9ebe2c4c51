//! The direct way on TCP: the kernel has a say in the call, and nobody else.
//!
//! Beside the preconditions that all direct calls share (see [`direct`](super)), a receive
//! * is [served whole](Socket::is_served_whole) by the kernel, which may let it sleep; or
//! * is not one that had better sleep before it looks for bytes, and no other process may have changed SO_RCVLOWAT.
//!
//! The kernel has been called then, so a call that has not moved what it waits for goes on in the steps of `core/socket` with what
//! the kernel has returned.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use libc::iovec;
use netacc_driver::Endpoint;
use netacc_socket::{Connection, Errno, KernelError};

use super::WITHOUT_EFFECT;
use crate::ops::io::call::{kernel_result, Target};
use crate::ops::io::promotion::count_operation;
use crate::ops::io::recv::recv_rest;
use crate::ops::io::send::{end_failed, send_rest};
use crate::ops::io::single;
use crate::os::asleep::Asleep;
use crate::os::errno::fail;
use crate::os::{deferral, immediate, real};
use crate::runtime::{self, in_kernel_of, Runtime};
use crate::socket::Socket;
use crate::table::Entry;
use crate::{batch, trace};

/// Sends one buffer on TCP.
///
/// # Safety
/// As `send(2)`.
// Cold, because the caller saves registers for calls on links, which are faster.
#[cold]
#[inline(never)]
pub(super) unsafe fn send(
    entry: &Arc<Entry>,
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
) -> Option<isize> {
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
            sock.whole.record_sent();
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
// Cold: as `send`.
#[cold]
#[inline(never)]
pub(super) unsafe fn receive(
    entry: &Arc<Entry>,
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
) -> Option<isize> {
    let Entry::Stream(sock) = &**entry else { return None };
    let cell = sock.stream.as_ref()?;
    let rt = runtime::get()?;
    let endpoint = rt.endpoint()?;
    // A receive of nothing waits, and a read of nothing does not.
    if len == 0 || !is_usual(sock, flags & !libc::MSG_WAITALL) {
        return None;
    }
    if flags & libc::MSG_DONTWAIT == 0 && sock.is_served_whole(cell) {
        // SAFETY: passed on.
        return unsafe { receive_whole(rt, endpoint, sock, fd, buf, len, flags) };
    }
    let any = cell.low_water() == 1 && !sock.shares_description();
    if !any || sock.sleeps.are_expected() {
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

/// Lets the kernel serve a receive, which may sleep there: see [`Socket::is_served_whole`].
///
/// # Safety
/// As `recv(2)`.
#[inline]
unsafe fn receive_whole(
    rt: &'static Runtime,
    endpoint: &Endpoint,
    sock: &Socket,
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
) -> Option<isize> {
    let cell = sock.stream.as_ref()?;
    batch::end(endpoint);
    let received = cell.take_asleep(endpoint, || {
        let asleep = Asleep::begin();
        if deferral::waits() && asleep.is_interrupted(sock.recv_timeout().is_none()) {
            return Err(KernelError::Call(Errno::INTERRUPTED));
        }
        // SAFETY: passed on.
        kernel_result(unsafe { real::recv(fd, buf, len, flags) })
    })?;
    match received {
        Ok(0) => Some(0),
        Ok(received) => {
            batch::count_read();
            count_operation(rt, sock, cell);
            Some(received as isize)
        }
        Err(KernelError::WouldBlock) => Some(fail(libc::EAGAIN)),
        Err(KernelError::Ended(error) | KernelError::Call(error)) => Some(fail(error.0)),
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
