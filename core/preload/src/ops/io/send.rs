//! Sending.

use std::ffi::c_int;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use libc::iovec;
use netacc_device::Instant;
use netacc_driver::{Endpoint, LinkCell, LinkIo, LockedStream, Readiness, StreamCell, StreamGuard};
use netacc_proto::{RxSource, TxSink};

use super::kernel::{
    has_room, has_room_for_some, is_broken, is_end, is_full, kernel_send, kernel_send_skipping, unacknowledged,
};
use super::promotion::note_sent;
use super::{deferred_or, moved_or_fail, poll_link, take_error, total, Step, Target};
use crate::ops::connection;
use crate::ops::waiting::Waiting;
use crate::os::clock::now;
use crate::os::errno::{errno, fail, set_errno};
use crate::os::limits::MAX_BYTES;
use crate::os::{access, signals};
use crate::settling::{self, await_switch, settle_end};
use crate::socket::Socket;
use crate::table::Entry;
use crate::wait::{block, Limit, Waited};
use crate::{batch, runtime};

/// After so many bytes written to the anchor a write may have to wait for no reason that the program knows: the kernel's
/// buffers take about as many.
const BULK: u64 = 256 << 10;

/// What a call sends, and how.
struct Request<'a> {
    /// The descriptor that reaches the connection. It changes when another thread closes the one of the call.
    fd: c_int,
    iov: &'a [iovec],
    flags: c_int,
    /// The call does not wait, because of its flags or of the socket's.
    nonblocking: bool,
    /// More data follows: MSG_MORE or TCP_CORK.
    more: bool,
}

/// Sends. See `send(2)`.
///
/// # Safety
/// `iov` describes readable memory.
#[inline]
pub unsafe fn send(entry: &Arc<Entry>, sock: &Socket, fd: c_int, iov: &[iovec], flags: c_int) -> isize {
    if flags & libc::MSG_ZEROCOPY != 0 && sock.options.zero_copy.load(Ordering::Relaxed) {
        // SAFETY: passed on.
        return unsafe { send_noted(entry, sock, fd, iov, flags) };
    }
    let Some((cell, rt)) = sock.stream.as_ref().zip(runtime::get()) else {
        // SAFETY: passed on.
        return unsafe { send_without_stream(entry, sock, fd, iov, flags) };
    };
    let Some(endpoint) = rt.endpoint() else {
        // SAFETY: passed on.
        return unsafe { kernel_send(fd, iov, flags) };
    };
    let Some(want) = total(iov) else { return fail(libc::EINVAL) };
    // The kernel knows of TCP_CORK itself, also if another process that has the socket has changed it.
    let more = flags & libc::MSG_MORE != 0 || sock.options.cork.load(Ordering::Relaxed);
    let nonblocking = flags & libc::MSG_DONTWAIT != 0 || sock.nonblocking.load(Ordering::Relaxed);
    if sock.deferred_error.load(Ordering::Relaxed) != 0 {
        return deferred_or(sock, 0);
    }
    batch::count_write(endpoint);
    // The end of the peer, above all, must be seen by a program that only writes.
    if cell.has_news(endpoint) {
        poll_link(endpoint, cell);
    }
    let mut request = Request { fd, iov, flags, nonblocking, more };
    let mut wait = SendWait::new(Target { rt, endpoint, entry, sock, cell });
    let mut done = 0usize;
    loop {
        // SAFETY: the caller's promise.
        match unsafe { send_step(cell, endpoint, &request, done) } {
            Step::Done(n) if n >= 0 => {
                done += n as usize;
                if done >= want || nonblocking && n > 0 && want == 0 {
                    note_sent(rt, sock, cell, done);
                    return done as isize;
                }
                if nonblocking {
                    // Whatever credit has come back meanwhile is found by the next step, which then says Blocked.
                    wait.polled = false;
                }
            }
            Step::Over => return done as isize,
            Step::Done(_) if done > 0 => return done as isize,
            Step::Done(n) => return end_failed(n, flags),
            Step::Again => {}
            blocked @ (Step::Blocked | Step::Between) => {
                if let ControlFlow::Break(result) = wait.pass(&mut request, &blocked, done) {
                    return result;
                }
            }
        }
    }
}

/// Sends on a socket that has no stream, or has none yet.
///
/// # Safety
/// `iov` describes readable memory.
#[inline]
unsafe fn send_without_stream(entry: &Arc<Entry>, sock: &Socket, fd: c_int, iov: &[iovec], flags: c_int) -> isize {
    sock.reclaim();
    if let Some(Entry::Stream(adopted)) = connection::adopt(entry, sock).as_deref() {
        // SAFETY: passed on.
        return unsafe { send(entry, adopted, fd, iov, flags) };
    }
    // SAFETY: passed on.
    unsafe { kernel_send(fd, iov, flags) }
}

/// Ends a call that has sent nothing and has failed with `result`.
#[inline]
fn end_failed(result: isize, flags: c_int) -> isize {
    if errno() == libc::EPIPE && flags & libc::MSG_NOSIGNAL == 0 {
        raise_sigpipe();
    }
    result
}

/// The waits of one call that sends.
struct SendWait<'a> {
    target: Target<'a>,
    /// The link has been polled since the last wait.
    polled: bool,
    /// When the call ends with EAGAIN, once it has had to wait.
    deadline: Option<Option<Instant>>,
    /// Until when a call that does not wait awaits a change of paths, once it has had to.
    switch_until: Option<Instant>,
    /// The registration of this call with its socket, once it has had to wait.
    waiting: Option<Waiting<'a>>,
}

impl<'a> SendWait<'a> {
    #[inline]
    fn new(target: Target<'a>) -> SendWait<'a> {
        SendWait { target, polled: false, deadline: None, switch_until: None, waiting: None }
    }

    /// Passes the time until the call can make another attempt, or breaks with the call's result. `blocked` is the result
    /// of its last attempt; `done` bytes are sent.
    #[inline]
    fn pass(&mut self, request: &mut Request<'_>, blocked: &Step, done: usize) -> ControlFlow<isize> {
        let Target { endpoint, sock, cell, .. } = self.target;
        if !self.polled {
            self.polled = true;
            if poll_link(endpoint, cell) {
                return ControlFlow::Continue(());
            }
        }
        if request.nonblocking || sock.is_nonblocking() {
            self.pass_without_waiting(blocked, done)
        } else {
            self.sleep(request, done)
        }
    }

    /// Ends a call that does not wait, unless a change of paths is about to be over.
    #[inline]
    fn pass_without_waiting(&mut self, blocked: &Step, done: usize) -> ControlFlow<isize> {
        let Target { rt, endpoint, sock, cell, .. } = self.target;
        if done > 0 {
            note_sent(rt, sock, cell, done);
            return ControlFlow::Break(done as isize);
        }
        if matches!(blocked, Step::Between) {
            let patience = || now() + settling::switch_patience(endpoint, cell);
            let until = *self.switch_until.get_or_insert_with(patience);
            if await_switch(endpoint, cell, until) {
                return ControlFlow::Continue(());
            }
        }
        ControlFlow::Break(fail(libc::EAGAIN))
    }

    /// Waits for the answer to a pledge, or else for room.
    #[inline]
    fn sleep(&mut self, request: &mut Request<'_>, done: usize) -> ControlFlow<isize> {
        let Target { rt, endpoint, entry, sock, cell } = self.target;
        let timeout = || sock.options.send_timeout().map(|t| now() + t);
        let limit = Limit { deadline: *self.deadline.get_or_insert_with(timeout), idle: done == 0 };
        let waiting = self.waiting.get_or_insert_with(|| Waiting::new(entry, sock));
        request.fd = waiting.descriptor(request.fd);
        let pledged = awaits_answer(&cell.lock(endpoint), request.fd);
        let room = pledged && has_room_for_some(request.fd);
        let mut waited = if pledged { block_for_answer(endpoint, cell, limit) } else { Waited::Again };
        request.fd = waiting.descriptor(request.fd);
        // The kernel wakes a writer that found no room when a third of the buffer is free, not for a few bytes.
        if matches!(waited, Waited::Again) && !room {
            waited = block(rt, sock, cell, request.fd, Readiness::WRITABLE, limit);
        }
        request.fd = waiting.descriptor(request.fd);
        match waited {
            Waited::Again => {
                self.polled = false;
                ControlFlow::Continue(())
            }
            Waited::TimedOut => ControlFlow::Break(moved_or_fail(done, libc::EAGAIN)),
            Waited::Interrupted => ControlFlow::Break(moved_or_fail(done, libc::EINTR)),
        }
    }
}

/// A send whose completion is told on the error queue: here, or by the kernel if no link can ever carry it.
///
/// # Safety
/// `iov` describes readable memory.
#[cold]
unsafe fn send_noted(entry: &Arc<Entry>, sock: &Socket, fd: c_int, iov: &[iovec], flags: c_int) -> isize {
    sock.reclaim();
    let adopted = if sock.stream.is_none() { connection::adopt(entry, sock) } else { None };
    let sock = match adopted.as_deref() {
        Some(Entry::Stream(adopted)) => adopted,
        _ => sock,
    };
    let n = if sock.stream.is_none() {
        // SAFETY: passed on.
        unsafe { kernel_send(fd, iov, flags) }
    } else {
        // SAFETY: passed on.
        unsafe { send(entry, sock, fd, iov, flags & !libc::MSG_ZEROCOPY) }
    };
    if n > 0 {
        sock.note_zero_copy();
    }
    n
}

/// Attempts once to send the request from its `skip`-th byte on.
///
/// # Safety
/// `request.iov` describes readable memory.
#[inline]
unsafe fn send_step(cell: &Arc<StreamCell>, endpoint: &Endpoint, request: &Request<'_>, skip: usize) -> Step {
    let &Request { fd, iov, nonblocking, .. } = request;
    let mut guard = cell.lock(endpoint);
    settle_end(&mut guard);
    match guard.tx_sink() {
        // There is nothing to wait for, and the kernel has an error to tell.
        TxSink::Pledged if is_broken(fd) => {
            guard.change(LockedStream::void_pledge);
            Step::Again
        }
        TxSink::Link | TxSink::Pledged | TxSink::Wait | TxSink::Refused if total(iov) == Some(0) => Step::Done(0),
        // SAFETY: the caller's promise.
        TxSink::Link => guard.change(|stream| unsafe { send_on_link(stream, request, skip) }),
        TxSink::Anchor | TxSink::Closed if skip > 0 && (guard.tx_sink() == TxSink::Closed || is_broken(fd)) => {
            Step::Over
        }
        // SAFETY: the caller's promise.
        TxSink::Anchor => unsafe { send_on_anchor(guard, request, skip) },
        // A program that does something else when a write has to wait: it will read what the answer waits for.
        TxSink::Pledged if nonblocking && may_have_to_wait(&guard, fd) => {
            drop(guard);
            block_or_void_pledge(endpoint, cell, fd)
        }
        // See `block_for_answer`.
        TxSink::Pledged if !nonblocking && awaits_answer(&guard, fd) => Step::Blocked,
        TxSink::Pledged => {
            let link = guard.link().cloned();
            drop(guard);
            await_answer(endpoint, cell, link)
        }
        TxSink::Wait => {
            guard.change(|stream| stream.progress_anchor(false));
            if guard.tx_sink() == TxSink::Wait {
                Step::Between
            } else {
                Step::Again
            }
        }
        TxSink::Refused => guard.change(|stream| refuse_write(stream, iov, skip)),
        TxSink::Closed => {
            if guard.rx_source() == RxSource::Record {
                // The peer may have written to a side that takes nothing.
                guard.change(|stream| stream.progress_anchor(false));
            }
            Step::Done(fail(guard.change(take_error).unwrap_or(libc::EPIPE)))
        }
    }
}

/// Copies into the link's ring as many bytes as there is room for.
///
/// # Safety
/// `request.iov` describes readable memory.
#[inline]
unsafe fn send_on_link(guard: &mut LockedStream<'_>, request: &Request<'_>, skip: usize) -> Step {
    let wanted = guard.proto().tx_ring_len() as usize;
    let extent = Extent::of(request.iov, skip, wanted);
    if extent.faults && extent.len < SEGMENT {
        return refuse_address(guard, skip);
    }
    let len = if extent.faults { extent.len - extent.len % SEGMENT } else { extent.len };
    // SAFETY: found to be readable.
    match unsafe { copy_in(guard, request.iov, skip..skip + len, request.more) } {
        LinkIo::Done(n) => Step::Done(n as isize),
        LinkIo::WouldBlock if guard.is_between() => Step::Between,
        LinkIo::WouldBlock => Step::Blocked,
        LinkIo::Moved => Step::Again,
    }
}

/// Sends by the kernel, with the stream locked.
///
/// # Safety
/// `request.iov` describes readable memory.
#[inline]
unsafe fn send_on_anchor(mut guard: StreamGuard<'_>, request: &Request<'_>, skip: usize) -> Step {
    let flags = request.flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the caller's promise.
    let n = unsafe { kernel_send_skipping(request.fd, request.iov, skip, flags) };
    if n >= 0 {
        guard.change(|stream| stream.anchor_sent(n as usize));
        return Step::Done(n);
    }
    match errno() {
        libc::EAGAIN => Step::Blocked,
        error if is_end(error) && !guard.proto().is_plain() => {
            // The kernel tells of it once, and the stream must not tell of it again.
            guard.change(|stream| {
                stream.withdraw();
                if !stream.proto().is_plain() {
                    stream.anchor_ended();
                    stream.take_error();
                }
            });
            drop(guard);
            Step::Done(fail(error))
        }
        _ => Step::Done(-1),
    }
}

/// Decides for a write that does not wait, during a pledge and with the kernel's buffer full: EAGAIN, or the pledge is void.
#[inline]
fn block_or_void_pledge(endpoint: &Endpoint, cell: &Arc<StreamCell>, fd: c_int) -> Step {
    // EAGAIN before the buffer is full is for peers that read, or else the program could write again although
    // its peer has read nothing.
    let waits = !has_room_for_some(fd) || peer_reads(endpoint, cell, fd);
    let mut guard = cell.lock(endpoint);
    match guard.tx_sink() {
        TxSink::Pledged if waits => {
            guard.change(LockedStream::wait_for_pledge);
            Step::Blocked
        }
        TxSink::Pledged => {
            guard.change(LockedStream::void_pledge);
            Step::Again
        }
        _ => Step::Again,
    }
}

/// Waits for the answer to a pledge as long as `link` usually takes, and notes how long this answer took.
#[inline]
fn await_answer(endpoint: &Endpoint, cell: &Arc<StreamCell>, link: Option<Arc<LinkCell>>) -> Step {
    let begun = now();
    let patience = link.as_ref().map_or(Duration::ZERO, |link| link.answer_patience().get());
    let answered = await_pledge(endpoint, cell, patience);
    if let Some(link) = link {
        link.answer_patience().note(answered.then(|| now().saturating_since(begun)));
    }
    Step::Again
}

/// Reports a write as sent that the peer does not take any more.
#[inline]
fn refuse_write(guard: &mut LockedStream<'_>, iov: &[iovec], skip: usize) -> Step {
    let extent = Extent::of(iov, skip, MAX_BYTES);
    if extent.faults && extent.len < SEGMENT {
        return if skip > 0 { Step::Over } else { Step::Done(fail(libc::EFAULT)) };
    }
    guard.refuse_write(extent.len);
    Step::Done(extent.len as isize)
}

/// The kernel takes a write in pieces of up to so many bytes, and nothing of a piece that it cannot read to its end. Of the
/// first piece it may take less.
const SEGMENT: usize = 32 << 10;

/// What there is to be sent of a vector.
struct Extent {
    /// So many bytes can be read.
    len: usize,
    /// The next one cannot.
    faults: bool,
}

impl Extent {
    /// Of the vector from its `skip`-th byte on, at most `most` bytes.
    #[inline]
    fn of(iov: &[iovec], mut skip: usize, most: usize) -> Extent {
        let mut len = 0;
        for v in iov {
            let skipped = skip.min(v.iov_len);
            skip -= skipped;
            let wanted = (v.iov_len - skipped).min(most - len);
            let reached = access::readable(v.iov_base.cast::<u8>().wrapping_add(skipped), wanted);
            len += reached;
            if reached < wanted {
                return Extent { len, faults: true };
            }
        }
        Extent { len, faults: false }
    }
}

/// A write has come to an address where nothing can be read, for which it fails, unless it has to wait or has sent something.
#[cold]
fn refuse_address(guard: &mut LockedStream<'_>, skip: usize) -> Step {
    guard.refresh_consumed();
    match guard.proto().free() {
        0 if guard.is_between() => Step::Between,
        0 => Step::Blocked,
        _ if skip > 0 => Step::Over,
        _ => Step::Done(fail(libc::EFAULT)),
    }
}

/// Sends the bytes of the vector that are in `range`, or as many of them as there is room for.
///
/// # Safety
/// They are readable.
#[inline]
unsafe fn copy_in(guard: &mut LockedStream<'_>, iov: &[iovec], range: Range<usize>, more: bool) -> LinkIo {
    let (mut skip, mut left) = (range.start, range.len());
    if let [v] = iov {
        // SAFETY: within the caller's buffer.
        return unsafe { guard.send_link(v.iov_base.cast::<u8>().add(skip), left, more) };
    }
    // The pieces are one message, as they are one segment of the kernel's.
    let pieces = iov.iter().filter_map(|v| {
        let skipped = skip.min(v.iov_len);
        skip -= skipped;
        let len = (v.iov_len - skipped).min(left);
        left -= len;
        (len > 0).then(|| (v.iov_base.cast::<u8>().wrapping_add(skipped).cast_const(), len))
    });
    // SAFETY: the caller's promise.
    unsafe { guard.send_pieces(pieces, more) }
}

/// Whether a program expects a write to have to wait: after so many bytes with some that wait it cannot know how
/// many the kernel takes, and of fewer only that it has no room.
fn may_have_to_wait(guard: &StreamGuard<'_>, fd: c_int) -> bool {
    let bulk = guard.counters().tx_bytes_tcp >= BULK;
    is_full(fd) && (bulk || !guard.proto().is_held() && !has_room(fd))
}

/// Whether a write that may wait does so until the pledge is answered: the kernel's buffer is full, or nearly, so that the
/// program expects to wait.
fn awaits_answer(guard: &StreamGuard<'_>, fd: c_int) -> bool {
    guard.tx_sink() == TxSink::Pledged && !guard.proto().is_held() && is_full(fd)
}

/// Waits until the pledge is answered, and voids it after [`PLEDGE_PATIENCE`](netacc_driver::PLEDGE_PATIENCE).
#[cold]
fn block_for_answer(endpoint: &Endpoint, cell: &Arc<StreamCell>, limit: Limit) -> Waited {
    let held = signals::Held::all();
    let left = limit.deadline.map_or(Duration::MAX, |deadline| deadline.saturating_since(now()));
    await_pledge(endpoint, cell, netacc_driver::PLEDGE_PATIENCE.min(left));
    if held.interrupts(limit.restarts()) {
        Waited::Interrupted
    } else {
        Waited::Again
    }
}

/// Whether the peer takes bytes off the kernel's queue, or answers the pledge, within [`SWITCH_PATIENCE`](settling::SWITCH_PATIENCE).
#[cold]
fn peer_reads(endpoint: &Endpoint, cell: &Arc<StreamCell>, fd: c_int) -> bool {
    let before = unacknowledged(fd);
    let reads = |guard: &mut LockedStream<'_>| {
        (guard.tx_sink() != TxSink::Pledged || unacknowledged(fd) < before).then_some(())
    };
    settling::until(endpoint, cell, now() + settling::SWITCH_PATIENCE, reads).is_some()
}

/// The answer to OPEN is usually microseconds away. If it does not come, the connection stays on TCP for now. Whether it
/// came, or waits for this program.
#[cold]
fn await_pledge(endpoint: &Endpoint, cell: &Arc<StreamCell>, patience: Duration) -> bool {
    // An answer that waits for this program to read does so in vain while it writes.
    let answered = settling::until(endpoint, cell, now() + patience, |guard| {
        (guard.tx_sink() != TxSink::Pledged || guard.proto().is_held()).then_some(())
    });
    let mut guard = cell.lock(endpoint);
    if guard.tx_sink() == TxSink::Pledged {
        guard.change(LockedStream::void_pledge);
    }
    answered.is_some()
}

#[cold]
fn raise_sigpipe() {
    // SAFETY: sends the thread a signal, as the kernel does for a write to a closed connection.
    unsafe {
        libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), libc::SIGPIPE);
    }
    set_errno(libc::EPIPE);
}
