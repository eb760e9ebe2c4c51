//! Receiving.

use std::ffi::c_int;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use libc::iovec;
use netacc_device::Instant;
use netacc_driver::{Endpoint, LockedStream, Readiness, StreamCell};
use netacc_proto::RxSource;

use super::kernel::{is_broken, is_end, kernel_recv, kernel_recv_limited};
use super::promotion::note_received;
use super::replay::await_replay;
use super::{deferred_or, moved_or_fail, poll_link, take_error, total, Step, Target};
use crate::ops::connection;
use crate::ops::waiting::Waiting;
use crate::os::access;
use crate::os::clock::now;
use crate::os::errno::{errno, fail};
use crate::os::sockopt::unread;
use crate::settling::settle_end;
use crate::socket::Socket;
use crate::table::Entry;
use crate::wait::{block, Limit, Waited};
use crate::{batch, runtime};

/// What a call receives, and how.
struct Request<'a> {
    /// The descriptor that reaches the connection. It changes when another thread closes the one of the call.
    fd: c_int,
    iov: &'a [iovec],
    flags: c_int,
    /// The call does not wait, because of its flags or of the socket's.
    nonblocking: bool,
}

/// Receives. See `recv(2)`.
///
/// # Safety
/// `iov` describes writable memory.
#[inline]
pub unsafe fn recv(entry: &Arc<Entry>, sock: &Socket, fd: c_int, iov: &[iovec], flags: c_int) -> isize {
    let Some(cell) = &sock.stream else {
        // SAFETY: passed on.
        return unsafe { recv_without_stream(entry, sock, fd, iov, flags) };
    };
    let Some(rt) = runtime::get() else {
        // SAFETY: passed on.
        return unsafe { kernel_recv(fd, iov, flags) };
    };
    let Some(endpoint) = rt.endpoint() else {
        // SAFETY: passed on.
        return unsafe { kernel_recv(fd, iov, flags) };
    };
    let Some(want) = total(iov) else { return fail(libc::EINVAL) };
    let nonblocking = flags & libc::MSG_DONTWAIT != 0 || sock.nonblocking.load(Ordering::Relaxed);
    // As long as it may wait, a call waits for so many.
    let least = match flags & (libc::MSG_WAITALL | libc::MSG_PEEK) {
        libc::MSG_WAITALL => want,
        0 => want.min(cell.low_water() as usize),
        _ => 1,
    };
    let mut request = Request { fd, iov, flags, nonblocking };
    let mut wait = RecvWait::new(Target { rt, endpoint, entry, sock, cell });
    let mut done = 0usize;
    if flags & libc::MSG_PEEK != 0 && cell.has_news(endpoint) {
        // A program that waits for more must see it come.
        poll_link(endpoint, cell);
    }
    loop {
        // SAFETY: the caller's promise.
        match unsafe { recv_step(cell, endpoint, &request, done) } {
            Step::Done(n) if n > 0 => {
                done += n as usize;
                if done >= least || nonblocking {
                    batch::count_read();
                    let taken = if flags & libc::MSG_PEEK == 0 { done } else { 0 };
                    note_received(rt, sock, cell, taken);
                    return done as isize;
                }
            }
            // After SHUT_RD what arrives is still there to be read.
            Step::Done(0) if !wait.polled => {
                wait.polled = true;
                if !poll_link(endpoint, cell) {
                    return if done > 0 { done as isize } else { deferred_or(sock, 0) };
                }
            }
            Step::Done(n) if done == 0 => return if n == 0 { deferred_or(sock, 0) } else { n },
            Step::Done(_) | Step::Over => return done as isize,
            Step::Again => {}
            Step::Blocked | Step::Between => {
                if let ControlFlow::Break(result) = wait.pass(&mut request, done) {
                    return result;
                }
            }
        }
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
        return unsafe { recv(entry, adopted, fd, iov, flags) };
    }
    // SAFETY: passed on.
    unsafe { kernel_recv(fd, iov, flags) }
}

/// The waits of one call that receives.
struct RecvWait<'a> {
    target: Target<'a>,
    /// The link has been polled.
    polled: bool,
    /// When the call ends with EAGAIN, once it has had to wait.
    deadline: Option<Option<Instant>>,
    /// Until when a call that does not wait awaits bytes that come again, once it has had to.
    replay_until: Option<Instant>,
    /// The wait is over, and the call fails with this error if it finds nothing.
    given_up: Option<c_int>,
    /// The registration of this call with its socket, once it has had to wait.
    waiting: Option<Waiting<'a>>,
}

impl<'a> RecvWait<'a> {
    #[inline]
    fn new(target: Target<'a>) -> RecvWait<'a> {
        RecvWait { target, polled: false, deadline: None, replay_until: None, given_up: None, waiting: None }
    }

    /// Passes the time until the call can make another attempt, or breaks with the call's result. `done` bytes are
    /// received.
    #[inline]
    fn pass(&mut self, request: &mut Request<'_>, done: usize) -> ControlFlow<isize> {
        let Target { endpoint, sock, cell, .. } = self.target;
        if let Some(error) = self.given_up {
            return ControlFlow::Break(moved_or_fail(done, error));
        }
        if !self.polled {
            self.polled = true;
            // Readiness does not tell of fewer bytes than the low water mark.
            if poll_link(endpoint, cell) || cell.low_water() > 1 {
                return ControlFlow::Continue(());
            }
        }
        if done == 0 && sock.deferred_error.load(Ordering::Relaxed) != 0 {
            return ControlFlow::Break(deferred_or(sock, 0));
        }
        if request.nonblocking || sock.is_nonblocking() {
            if done == 0 && await_replay(endpoint, cell, request.fd, &mut self.replay_until) {
                return ControlFlow::Continue(());
            }
            return ControlFlow::Break(moved_or_fail(done, libc::EAGAIN));
        }
        self.sleep(request, done);
        ControlFlow::Continue(())
    }

    /// Waits for something to read.
    #[inline]
    fn sleep(&mut self, request: &mut Request<'_>, done: usize) {
        let Target { rt, endpoint, entry, sock, cell } = self.target;
        let timeout = || sock.options.recv_timeout().map(|t| now() + t);
        let limit = Limit { deadline: *self.deadline.get_or_insert_with(timeout), idle: done == 0 };
        let waiting = self.waiting.get_or_insert_with(|| Waiting::new(entry, sock));
        request.fd = waiting.descriptor(request.fd);
        let waited = block(rt, sock, cell, request.fd, Readiness::READABLE, limit);
        request.fd = waiting.descriptor(request.fd);
        self.given_up = match waited {
            Waited::Again => None,
            Waited::TimedOut => Some(libc::EAGAIN),
            Waited::Interrupted => Some(libc::EINTR),
        };
        if self.given_up.is_some() {
            // The kernel takes what has come in the meantime before it looks at signals and the time.
            poll_link(endpoint, cell);
        }
    }
}

/// Attempts once to receive into the request's memory from its `skip`-th byte on.
///
/// # Safety
/// `request.iov` describes writable memory.
#[inline]
unsafe fn recv_step(cell: &Arc<StreamCell>, endpoint: &Endpoint, request: &Request<'_>, skip: usize) -> Step {
    let &Request { fd, iov, flags, .. } = request;
    let mut guard = cell.lock(endpoint);
    settle_end(&mut guard);
    match guard.rx_source() {
        RxSource::Link => {
            // SAFETY: the caller's promise.
            let copied = guard.change(|stream| unsafe { copy_out(stream, iov, skip, flags & libc::MSG_PEEK != 0) });
            match copied {
                // Receiving nothing waits for something to be there, as in the kernel.
                Some(0) if total(iov) != Some(0) || guard.proto().available() == 0 => Step::Blocked,
                Some(n) => Step::Done(n as isize),
                None if skip > 0 => Step::Over,
                None => Step::Done(fail(libc::EFAULT)),
            }
        }
        RxSource::Anchor(_) if skip > 0 && is_broken(fd) && unread(fd) == 0 => Step::Over,
        // Bytes that are not limited may follow those that come again.
        RxSource::Anchor(limit) if limit != u64::MAX && guard.change(LockedStream::take_in_replay) => Step::Again,
        RxSource::Anchor(limit) => {
            // SAFETY: the caller's promise.
            let n = unsafe { kernel_recv_limited(fd, iov, skip, limit, flags | libc::MSG_DONTWAIT) };
            if n >= 0 {
                if flags & libc::MSG_PEEK == 0 {
                    guard.change(|stream| stream.anchor_received(n as usize));
                }
                if n == 0 && limit != u64::MAX && total(iov) != Some(0) {
                    guard.change(LockedStream::anchor_ended);
                    return Step::Again;
                }
                return Step::Done(n);
            }
            match errno() {
                libc::EAGAIN => Step::Blocked,
                error if limit != u64::MAX && is_end(error) => {
                    // The kernel tells of it once; what follows is the end of the stream.
                    guard.change(|stream| {
                        stream.anchor_ended();
                        stream.take_error();
                    });
                    drop(guard);
                    Step::Done(fail(error))
                }
                _ => Step::Done(-1),
            }
        }
        RxSource::Record => {
            let before = guard.rx_source();
            guard.change(|stream| stream.progress_anchor(false));
            if guard.rx_source() != before {
                Step::Again
            } else if guard.proto().is_read_out() {
                Step::Done(0)
            } else {
                Step::Blocked
            }
        }
        RxSource::Eof => Step::Done(0),
        RxSource::Failed(_) if skip > 0 => Step::Over,
        RxSource::Failed(_) => Step::Done(guard.change(take_error).map_or(0, fail)),
    }
}

/// Copies from the ring into the vector, from its `skip`-th byte on. `None`: there is something to be copied to where nothing
/// can be written. Then nothing is consumed, as of a segment in the kernel, though what is before that place is written.
///
/// # Safety
/// What is there of the memory that `iov` describes is writable, or is found not to be.
#[inline]
unsafe fn copy_out(guard: &mut LockedStream<'_>, iov: &[iovec], skip: usize, peek: bool) -> Option<usize> {
    let available = guard.proto().available() as usize;
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
        let n = unsafe { guard.peek_link(to, reached, done) };
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
        guard.consume_link(done);
    }
    Some(done)
}
