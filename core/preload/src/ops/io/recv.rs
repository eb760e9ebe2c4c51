//! Receiving: the environment of [`Receiving`], which decides.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use libc::iovec;
use netacc_config::trace::Point;
use netacc_driver::{LockedStream, Readiness};
use netacc_socket::{Errno, KernelError, Limit, Next, Receiving, RecvSocket, RecvWait, Waited};

use super::call::{kernel_result, Call, Direction, Target};
use super::kernel::{kernel_recv, kernel_recv_limited};
use super::promotion::record_received;
use super::total;
use crate::ops::connection;
use crate::os::access;
use crate::os::asleep::asleep;
use crate::os::errno::fail;
use crate::os::sockopt::unread;
use crate::socket::Socket;
use crate::table::Entry;
use crate::wait::{block, in_transition};
use crate::{batch, runtime, trace};

/// The direction of a call that receives.
struct Incoming;

impl Direction for Incoming {
    fn timeout(sock: &Socket) -> Option<Duration> {
        sock.recv_timeout()
    }
}

/// Receives. See `recv(2)`.
///
/// # Safety
/// `iov` describes writable memory.
#[inline(never)]
pub unsafe fn recv_in_steps(entry: &Arc<Entry>, sock: &Socket, fd: c_int, iov: &[iovec], flags: c_int) -> isize {
    let Some(cell) = &sock.stream else {
        // SAFETY: passed on.
        return unsafe { recv_without_stream(entry, sock, fd, iov, flags) };
    };
    let Some(rt) = runtime::get() else {
        // SAFETY: passed on.
        return asleep(|| unsafe { kernel_recv(fd, iov, flags) });
    };
    let Some(endpoint) = rt.endpoint() else {
        // SAFETY: passed on.
        return asleep(|| unsafe { kernel_recv(fd, iov, flags) });
    };
    let target = Target { rt, entry, sock, connection: netacc_socket::Connection { endpoint, cell } };
    trace::call(Point::Recv, cell, iov);
    let Some(len) = total(iov) else { return fail(libc::EINVAL) };
    let nonblocking = flags & libc::MSG_DONTWAIT != 0 || sock.never_waits();
    // The call waits for so many bytes as long as it may wait.
    let least = match flags & (libc::MSG_WAITALL | libc::MSG_PEEK) {
        libc::MSG_WAITALL => len,
        0 => len.min(sock.low_water(cell) as usize),
        _ => 1,
    };
    let connection = target.connection;
    let mut call = Call { target, fd, iov, len, flags, waiting: None, direction: Incoming };
    let receiving = Receiving::begin(connection, &mut call, least, nonblocking);
    take_steps(call, receiving, Next::Again)
}

/// Makes the rest of a call whose first attempt the kernel has made with the stream at rest: see [`Receiving::go_on_after`].
/// Without MSG_WAITALL the call waits for any number of bytes.
///
/// # Safety
/// `iov` describes writable memory.
#[cold]
pub(super) unsafe fn recv_rest(target: Target<'_>, fd: c_int, iov: &[iovec], flags: c_int, received: usize) -> isize {
    let Some(len) = total(iov) else { return fail(libc::EINVAL) };
    let nonblocking = flags & libc::MSG_DONTWAIT != 0 || target.sock.never_waits();
    let mut call = Call { target, fd, iov, len, flags, waiting: None, direction: Incoming };
    let least = if flags & libc::MSG_WAITALL != 0 { len } else { 1 };
    let mut receiving = Receiving::begin(target.connection, &mut call, least, nonblocking);
    let next = receiving.go_on_after(target.connection, &mut call, received);
    take_steps(call, receiving, next)
}

#[inline]
fn take_steps(mut call: Call<'_, Incoming>, mut receiving: Receiving, mut next: Next<RecvWait>) -> isize {
    let Target { sock, connection, .. } = call.target;
    loop {
        next = match next {
            Next::Again => receiving.attempt(connection, &mut call),
            Next::Wait(wait) => {
                if receiving.has_looked() {
                    sock.expect_sleeps();
                }
                let waited = call.wait(wait);
                receiving.resume(&mut call, wait, waited)
            }
            Next::Done(Ok(received)) => return received as isize,
            Next::Done(Err(error)) => return fail(error.0),
        };
    }
}

/// Receives from a socket that has no stream, or has none yet.
///
/// # Safety
/// `iov` describes writable memory.
#[inline]
unsafe fn recv_without_stream(entry: &Arc<Entry>, sock: &Socket, fd: c_int, iov: &[iovec], flags: c_int) -> isize {
    sock.reclaim();
    if let Some(Entry::Stream(adopted)) = connection::adopt(entry, sock).as_deref() {
        // SAFETY: passed on.
        return unsafe { recv_in_steps(entry, adopted, fd, iov, flags) };
    }
    // SAFETY: passed on.
    asleep(|| unsafe { kernel_recv(fd, iov, flags) })
}

impl RecvSocket for Call<'_, Incoming> {
    #[inline]
    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn is_peek(&self) -> bool {
        self.flags & libc::MSG_PEEK != 0
    }

    #[inline]
    fn recv_kernel(&mut self, skip: usize, limit: u64) -> Result<usize, KernelError> {
        // SAFETY: see `iov`.
        kernel_result(unsafe { kernel_recv_limited(self.fd, self.iov, skip, limit, self.flags | libc::MSG_DONTWAIT) })
    }

    #[inline]
    fn recv_link(&mut self, stream: &mut LockedStream<'_>, skip: usize) -> Option<usize> {
        // SAFETY: see `iov`.
        unsafe { copy_out(stream, self.iov, skip, self.is_peek()) }
    }

    fn unread(&self) -> u64 {
        unread(self.fd)
    }

    fn has_deferred_error(&self) -> bool {
        self.target.sock.deferred_error.load(Ordering::Relaxed) != 0
    }

    fn take_deferred_error(&mut self) -> Option<Errno> {
        self.target.sock.take_deferred_error().map(Errno)
    }

    #[inline]
    fn expects_nothing(&self) -> bool {
        self.target.sock.sleeps.take()
    }

    #[inline]
    fn record_received(&mut self, len: usize) {
        let Target { rt, sock, connection, .. } = self.target;
        batch::count_read();
        record_received(rt, sock, connection.cell, if self.is_peek() { 0 } else { len });
    }
}

impl Call<'_, Incoming> {
    #[cold]
    fn wait(&mut self, wait: RecvWait) -> Waited {
        let Target { rt, sock, connection, .. } = self.target;
        let _waits = trace::waits();
        match wait {
            RecvWait::Data(limit) => {
                let waited = block(rt, sock, connection.cell, self.fd, Readiness::READABLE, limit);
                self.find_descriptor();
                waited
            }
            RecvWait::Replay(until) => {
                let limit = Limit { deadline: Some(until), idle: true };
                in_transition(connection.endpoint, connection.cell, self.fd, Readiness::READABLE, limit);
                // The next attempt checks whether the time is over.
                Waited::Again
            }
        }
    }
}

/// Copies from the ring into the vector, from its `skip`-th byte on. `None`: there are bytes to copy to a place that
/// cannot be written. Then nothing is consumed, like a segment in the kernel, but the memory before that place is
/// written.
///
/// # Safety
/// The mapped part of the memory that `iov` describes is the caller's to write, or is found to be unwritable.
#[inline]
unsafe fn copy_out(stream: &mut LockedStream<'_>, iov: &[iovec], skip: usize, peek: bool) -> Option<usize> {
    let available = stream.proto().available() as usize;
    let (mut skip, mut done) = (skip, 0);
    for v in iov {
        if skip >= v.iov_len {
            skip -= v.iov_len;
            continue;
        }
        let to = v.iov_base.cast::<u8>().wrapping_add(skip);
        let room = (v.iov_len - skip).min(available - done);
        // SAFETY: the caller's promise.
        let reached = unsafe { access::writable(to, room) };
        // SAFETY: found to be writable.
        let n = unsafe { stream.peek_link(to, reached, done) };
        if reached < room {
            return None;
        }
        done += n;
        if n < v.iov_len - skip {
            break;
        }
        skip = 0;
    }
    if !peek {
        stream.consume_link(done);
        stream.mark_read();
    }
    Some(done)
}
