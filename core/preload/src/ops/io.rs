//! Moving data: every read and write of a connection ends here.
//!
//! While a stream is on the kernel path the real call is made, without blocking and with the stream locked, so that
//! what was moved can be counted exactly; blocking then waits outside. While it is on a link no system call is made.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use libc::{iovec, msghdr};
use netacc_device::Instant;
use netacc_driver::{Endpoint, LinkIo, Readiness, StreamCell, StreamGuard, Tries, Verdict};
use netacc_proto::{Phase, Reason, RxSource, SocketError, TxSink};

use crate::batch;
use crate::ops::options::SIOCOUTQNSD;
use crate::ops::waiting::Waiting;
use crate::ops::{connection, errno, fail, set_errno};
use crate::real;
use crate::runtime::{self, now, Runtime};
use crate::socket::Socket;
use crate::table::Entry;
use crate::wait::{self, Limit, Waited};

/// After so many bytes written to the anchor a write may have to wait for no reason that the program knows: the kernel's
/// buffers take about as many.
const BULK: u64 = 256 << 10;
/// How long a read that need not wait does so all the same: see [`await_replay`]. Arbitrary: as long as a peer that runs
/// may take to be scheduled on a machine with far more threads than processors. Paid at most once for a demotion, when
/// the peer has stopped in the middle of it.
const REPLAY_PATIENCE: Duration = Duration::from_millis(200);

/// What one attempt came to.
enum Step {
    /// Return this to the application.
    Done(isize),
    /// Nothing now: block, or EAGAIN.
    Blocked,
    /// The path changed: try again at once.
    Again,
    /// The call has moved some bytes and moves no more; whatever ended it is for the next call.
    Over,
}

/// Total length of a vector, or `None` beyond SSIZE_MAX.
fn total(iov: &[iovec]) -> Option<usize> {
    iov.iter().try_fold(0usize, |n, v| n.checked_add(v.iov_len)).filter(|n| *n <= isize::MAX as usize)
}

/// Receives. See `recv(2)`.
///
/// # Safety
/// `iov` describes writable memory.
#[inline]
pub unsafe fn recv(entry: &Arc<Entry>, sock: &Socket, fd: c_int, iov: &[iovec], flags: c_int) -> isize {
    let Some(cell) = &sock.stream else {
        sock.reclaim();
        if let Some(Entry::Stream(adopted)) = connection::adopt(entry, sock).as_deref() {
            // SAFETY: passed on.
            return unsafe { recv(entry, adopted, fd, iov, flags) };
        }
        // SAFETY: passed on.
        return unsafe { kernel_recv(fd, iov, flags) };
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
    let mut done = 0usize;
    let mut deadline = None;
    let mut polled = false;
    let mut replay_until = None;
    let (mut fd, mut waiting) = (fd, None);
    if flags & libc::MSG_PEEK != 0 && cell.has_news(endpoint) {
        // A program that waits for more must see it come.
        poll_link(endpoint, cell);
    }
    loop {
        // SAFETY: the caller's promise.
        let step = unsafe { recv_step(cell, endpoint, fd, iov, done, flags) };
        match step {
            Step::Done(n) if n > 0 => {
                done += n as usize;
                if done >= least || nonblocking {
                    batch::count_read();
                    note_received(rt, sock, cell);
                    return done as isize;
                }
            }
            // After SHUT_RD what arrives is still there to be read.
            Step::Done(0) if !polled => {
                polled = true;
                if !poll_link(endpoint, cell) {
                    return if done > 0 { done as isize } else { deferred_or(sock, 0) };
                }
            }
            Step::Done(n) if done == 0 => return if n == 0 { deferred_or(sock, 0) } else { n },
            Step::Done(_) | Step::Over => return done as isize,
            Step::Again => continue,
            Step::Blocked => {
                if !polled {
                    polled = true;
                    // Readiness does not tell of fewer bytes than the low water mark.
                    if poll_link(endpoint, cell) || cell.low_water() > 1 {
                        continue;
                    }
                }
                if done == 0 && sock.deferred_error.load(Ordering::Relaxed) != 0 {
                    return deferred_or(sock, 0);
                }
                if nonblocking || sock.is_nonblocking() {
                    if done == 0 && await_replay(endpoint, cell, fd, &mut replay_until) {
                        continue;
                    }
                    return if done > 0 { done as isize } else { fail(libc::EAGAIN) };
                }
                let deadline = *deadline.get_or_insert_with(|| sock.options.recv_timeout().map(|t| now() + t));
                let limit = Limit { deadline, idle: done == 0 };
                let waiting = waiting.get_or_insert_with(|| Waiting::new(entry, sock));
                fd = waiting.descriptor(fd);
                let waited = block(rt, sock, cell, fd, Readiness::READABLE, limit);
                fd = waiting.descriptor(fd);
                match waited {
                    Waited::Again => {}
                    Waited::TimedOut => return if done > 0 { done as isize } else { fail(libc::EAGAIN) },
                    Waited::Interrupted => return if done > 0 { done as isize } else { fail(libc::EINTR) },
                }
            }
        }
    }
}

/// # Safety
/// `iov` describes writable memory.
#[inline]
unsafe fn recv_step(
    cell: &Arc<StreamCell>,
    endpoint: &Endpoint,
    fd: c_int,
    iov: &[iovec],
    skip: usize,
    flags: c_int,
) -> Step {
    let mut guard = cell.lock(endpoint);
    settle_end(&mut guard);
    match guard.rx_source() {
        RxSource::Link => {
            // SAFETY: the caller's promise.
            let n = unsafe { copy_out(&mut guard, iov, skip, flags & libc::MSG_PEEK != 0) };
            // Receiving nothing waits for something to be there, as in the kernel.
            if n > 0 || total(iov) == Some(0) && guard.proto().available() > 0 {
                return Step::Done(n as isize);
            }
            Step::Blocked
        }
        RxSource::Anchor(_) if skip > 0 && is_broken(fd) && unread(fd) == 0 => Step::Over,
        // Bytes that are not limited may follow those that come again.
        RxSource::Anchor(limit) if limit != u64::MAX && guard.take_in_replay() => Step::Again,
        RxSource::Anchor(limit) => {
            // SAFETY: the caller's promise.
            let n = unsafe { kernel_recv_limited(fd, iov, skip, limit, flags | libc::MSG_DONTWAIT) };
            if n >= 0 {
                if flags & libc::MSG_PEEK == 0 {
                    guard.anchor_received(n as usize);
                }
                if n == 0 && limit != u64::MAX && total(iov) != Some(0) {
                    guard.anchor_ended();
                    return Step::Again;
                }
                return Step::Done(n);
            }
            match errno() {
                libc::EAGAIN => Step::Blocked,
                error if limit != u64::MAX && is_end(error) => {
                    // The kernel tells of it once; what follows is the end of the stream.
                    guard.anchor_ended();
                    guard.take_error();
                    drop(guard);
                    Step::Done(fail(error))
                }
                _ => Step::Done(-1),
            }
        }
        RxSource::Record => {
            let before = guard.rx_source();
            guard.progress_anchor(false);
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
        RxSource::Failed(_) => Step::Done(take_error(guard).map_or(0, fail)),
    }
}

/// A stream that has left its link, but whose anchor has not ended as it has: what the application was told it is not told
/// again.
#[inline]
fn settle_end(guard: &mut StreamGuard<'_>) {
    if guard.is_settling() {
        guard.settle_end(now());
    }
}

/// Bytes that were there on the link come again on the anchor when the link is left. A program that was told of them
/// must not be told that there are none: it waits for them for [`REPLAY_PATIENCE`], from the first look on, which sets
/// `deadline`. Whether to look again.
///
/// A program that polls comes here with every look, so the clock is read only if there is something to wait for.
#[cold]
fn await_replay(endpoint: &Endpoint, cell: &Arc<StreamCell>, fd: c_int, deadline: &mut Option<Instant>) -> bool {
    if !cell.lock(endpoint).proto().awaits_replay() {
        return false;
    }
    let deadline = *deadline.get_or_insert_with(|| now() + REPLAY_PATIENCE);
    if now() >= deadline {
        return false;
    }
    let limit = Limit { deadline: Some(deadline), idle: true };
    wait::in_transition(endpoint, cell, fd, Readiness::READABLE, limit);
    true
}

/// The stream is plain, and what lay unread comes again: returns once the kernel has all of it, as it would have had all
/// along. Whoever acts on the socket now may be told of it, and closes it with a reset if it is never read.
#[cold]
fn await_all_replay(endpoint: &Endpoint, cell: &Arc<StreamCell>, fd: c_int) {
    let begun = now();
    loop {
        let left = match cell.lock(endpoint).proto().rx_source() {
            RxSource::Anchor(left) if left != u64::MAX => left,
            _ => return,
        };
        // A small buffer of the kernel's has no room for all that a ring had.
        if unread(fd) >= left || now().saturating_since(begun) > REPLAY_PATIENCE {
            return;
        }
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// Whether an error of the kernel's means that the connection is no more. Others are about the call.
fn is_end(error: c_int) -> bool {
    matches!(
        error,
        libc::ECONNRESET
            | libc::ECONNABORTED
            | libc::EPIPE
            | libc::ETIMEDOUT
            | libc::EHOSTUNREACH
            | libc::EHOSTDOWN
            | libc::ENETUNREACH
            | libc::ENETDOWN
    )
}

/// The error of a call that returned a number of bytes instead, or else `result`.
fn deferred_or(sock: &Socket, result: isize) -> isize {
    match sock.take_deferred_error() {
        Some(error) => fail(error),
        None => result,
    }
}

/// The error of a stream that has failed, if nobody has been told of it.
pub fn take_error(mut guard: StreamGuard<'_>) -> Option<c_int> {
    guard.take_error().map(|error| match error {
        SocketError::Reset => libc::ECONNRESET,
        SocketError::Pipe => libc::EPIPE,
    })
}

/// Copies from the ring into the vector, from its `skip`-th byte on.
///
/// # Safety
/// `iov` describes writable memory.
#[inline]
unsafe fn copy_out(guard: &mut StreamGuard<'_>, iov: &[iovec], skip: usize, peek: bool) -> usize {
    let (mut skip, mut done) = (skip, 0);
    for v in iov {
        if skip >= v.iov_len {
            skip -= v.iov_len;
            continue;
        }
        let room = v.iov_len - skip;
        // SAFETY: within the caller's buffer.
        let n = unsafe { guard.peek_link(v.iov_base.cast::<u8>().add(skip), room, done) };
        done += n;
        if n < room {
            break;
        }
        skip = 0;
    }
    if !peek {
        guard.consume_link(done);
    }
    done
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
        sock.reclaim();
        if let Some(Entry::Stream(adopted)) = connection::adopt(entry, sock).as_deref() {
            // SAFETY: passed on.
            return unsafe { send(entry, adopted, fd, iov, flags) };
        }
        // SAFETY: passed on.
        return unsafe { kernel_send(fd, iov, flags) };
    };
    let Some(endpoint) = rt.endpoint() else {
        // SAFETY: passed on.
        return unsafe { kernel_send(fd, iov, flags) };
    };
    let Some(want) = total(iov) else { return fail(libc::EINVAL) };
    let nonblocking = flags & libc::MSG_DONTWAIT != 0 || sock.nonblocking.load(Ordering::Relaxed);
    if sock.deferred_error.load(Ordering::Relaxed) != 0 {
        return deferred_or(sock, 0);
    }
    let mut done = 0usize;
    batch::count_write(endpoint);
    // The end of the peer, above all, must be seen by a program that only writes.
    if cell.has_news(endpoint) {
        poll_link(endpoint, cell);
    }
    let mut deadline = None;
    let mut polled = false;
    let mut switch_until = None;
    let (mut fd, mut waiting) = (fd, None);
    loop {
        // SAFETY: the caller's promise.
        match unsafe { send_step(cell, endpoint, (fd, nonblocking), iov, done, flags) } {
            Step::Done(n) if n >= 0 => {
                done += n as usize;
                if done >= want || nonblocking && n > 0 && want == 0 {
                    note_sent(rt, sock, cell);
                    return done as isize;
                }
                if nonblocking {
                    // Whatever credit has come back meanwhile is found by the next step, which then says Blocked.
                    polled = false;
                }
            }
            Step::Over => return done as isize,
            Step::Done(n) => {
                if done > 0 {
                    return done as isize;
                }
                if errno() == libc::EPIPE && flags & libc::MSG_NOSIGNAL == 0 {
                    raise_sigpipe();
                }
                return n;
            }
            Step::Again => continue,
            Step::Blocked => {
                if !polled {
                    polled = true;
                    if poll_link(endpoint, cell) {
                        continue;
                    }
                }
                if nonblocking || sock.is_nonblocking() {
                    if done > 0 {
                        note_sent(rt, sock, cell);
                        return done as isize;
                    }
                    let until = *switch_until.get_or_insert_with(|| now() + wait::SWITCH_PATIENCE);
                    if await_switch(endpoint, cell, until) {
                        continue;
                    }
                    return fail(libc::EAGAIN);
                }
                let deadline = *deadline.get_or_insert_with(|| sock.options.send_timeout().map(|t| now() + t));
                let limit = Limit { deadline, idle: done == 0 };
                let waiting = waiting.get_or_insert_with(|| Waiting::new(entry, sock));
                fd = waiting.descriptor(fd);
                let waited = block(rt, sock, cell, fd, Readiness::WRITABLE, limit);
                fd = waiting.descriptor(fd);
                match waited {
                    Waited::Again => polled = false,
                    Waited::TimedOut => return if done > 0 { done as isize } else { fail(libc::EAGAIN) },
                    Waited::Interrupted => return if done > 0 { done as isize } else { fail(libc::EINTR) },
                }
            }
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

/// # Safety
/// `iov` describes readable memory.
#[inline]
unsafe fn send_step(
    cell: &Arc<StreamCell>,
    endpoint: &Endpoint,
    (fd, nonblocking): (c_int, bool),
    iov: &[iovec],
    skip: usize,
    flags: c_int,
) -> Step {
    let mut guard = cell.lock(endpoint);
    settle_end(&mut guard);
    match guard.tx_sink() {
        // There is nothing to wait for, and the kernel has an error to tell.
        TxSink::Pledged if is_broken(fd) => {
            guard.void_pledge();
            Step::Again
        }
        TxSink::Link | TxSink::Pledged | TxSink::Wait | TxSink::Refused if total(iov) == Some(0) => Step::Done(0),
        TxSink::Link => {
            // SAFETY: the caller's promise.
            match unsafe { copy_in(&mut guard, iov, skip) } {
                LinkIo::Done(n) => Step::Done(n as isize),
                LinkIo::WouldBlock => Step::Blocked,
                LinkIo::Moved => Step::Again,
            }
        }
        TxSink::Anchor | TxSink::Closed if skip > 0 && (guard.tx_sink() == TxSink::Closed || is_broken(fd)) => {
            Step::Over
        }
        TxSink::Anchor => {
            // SAFETY: the caller's promise.
            let n = unsafe { kernel_send_skipping(fd, iov, skip, flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
            if n >= 0 {
                guard.anchor_sent(n as usize);
                return Step::Done(n);
            }
            match errno() {
                libc::EAGAIN => Step::Blocked,
                error if is_end(error) && !guard.proto().is_plain() => {
                    // The kernel tells of it once, and the stream must not tell of it again.
                    guard.withdraw();
                    if !guard.proto().is_plain() {
                        guard.anchor_ended();
                        guard.take_error();
                    }
                    drop(guard);
                    Step::Done(fail(error))
                }
                _ => Step::Done(-1),
            }
        }
        // A program that does something else when a write has to wait: it will read what the answer waits for.
        TxSink::Pledged if nonblocking && may_have_to_wait(&guard, fd) => {
            guard.wait_for_pledge();
            Step::Blocked
        }
        // The kernel's buffer is full, or nearly: that a write has to wait surprises nobody.
        TxSink::Pledged if !nonblocking && !guard.proto().is_held() && is_full(fd) => {
            drop(guard);
            let held = wait::signals::Held::all();
            await_pledge(endpoint, cell, netacc_driver::PLEDGE_PATIENCE);
            if held.interrupts() {
                drop(held);
                return Step::Done(fail(libc::EINTR));
            }
            Step::Again
        }
        TxSink::Pledged => {
            let link = guard.link().cloned();
            drop(guard);
            let begun = now();
            let patience = link.as_ref().map_or(Duration::ZERO, |link| link.answer_patience().get());
            let answered = await_pledge(endpoint, cell, patience);
            if let Some(link) = link {
                link.answer_patience().note(answered.then(|| now().saturating_since(begun)));
            }
            Step::Again
        }
        TxSink::Wait => {
            guard.progress_anchor(false);
            if guard.tx_sink() == TxSink::Wait {
                Step::Blocked
            } else {
                Step::Again
            }
        }
        TxSink::Refused => {
            guard.refuse_write();
            Step::Done(total(iov).map_or(0, |n| n - skip) as isize)
        }
        TxSink::Closed => {
            if guard.rx_source() == RxSource::Record {
                // The peer may have written to a side that takes nothing.
                guard.progress_anchor(false);
            }
            Step::Done(fail(take_error(guard).unwrap_or(libc::EPIPE)))
        }
    }
}

/// # Safety
/// `iov` describes readable memory.
#[inline]
unsafe fn copy_in(guard: &mut StreamGuard<'_>, iov: &[iovec], skip: usize) -> LinkIo {
    let (mut skip, mut done) = (skip, 0);
    for v in iov {
        if skip >= v.iov_len {
            skip -= v.iov_len;
            continue;
        }
        let len = v.iov_len - skip;
        // SAFETY: within the caller's buffer.
        match unsafe { guard.send_link(v.iov_base.cast::<u8>().add(skip), len) } {
            LinkIo::Done(n) => {
                done += n;
                if n < len {
                    return LinkIo::Done(done);
                }
            }
            other => return if done > 0 { LinkIo::Done(done) } else { other },
        }
        skip = 0;
    }
    LinkIo::Done(done)
}

/// Whether the kernel has an error to tell, or knows that the connection is over.
#[cold]
fn is_broken(fd: c_int) -> bool {
    let mut p = libc::pollfd { fd, events: 0, revents: 0 };
    // SAFETY: one valid pollfd.
    unsafe { real::poll(&mut p, 1, 0) > 0 }
}

/// Unread bytes that the kernel has.
#[cold]
fn unread(fd: c_int) -> u64 {
    let mut n: c_int = 0;
    // SAFETY: FIONREAD writes an int.
    unsafe { real::ioctl(fd, libc::FIONREAD, (&raw mut n).cast()) };
    n.max(0) as u64
}

/// Whether bytes wait that the peer's kernel has no room for, or the network.
fn is_full(fd: c_int) -> bool {
    let mut n: c_int = 0;
    // SAFETY: SIOCOUTQNSD writes an int.
    unsafe { real::ioctl(fd, SIOCOUTQNSD, (&raw mut n).cast()) == 0 && n > 0 }
}

/// Whether a program expects a write to have to wait: after so many bytes with some that wait it cannot know how
/// many the kernel takes, and of fewer only that it has no room.
fn may_have_to_wait(guard: &StreamGuard<'_>, fd: c_int) -> bool {
    let bulk = guard.counters().tx_bytes_tcp >= BULK;
    is_full(fd) && (bulk || !guard.proto().is_held() && !has_room(fd))
}

/// Whether the kernel takes bytes now.
fn has_room(fd: c_int) -> bool {
    let mut p = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one valid pollfd.
    unsafe { real::poll(&mut p, 1, 0) > 0 }
}

/// The answer to OPEN is usually microseconds away. If it does not come, the connection stays on TCP for now. Whether it
/// came, or waits for this program.
#[cold]
fn await_pledge(endpoint: &Endpoint, cell: &Arc<StreamCell>, patience: Duration) -> bool {
    // An answer that waits for this program to read does so in vain while it writes.
    let answered = wait::until(endpoint, cell, now() + patience, |guard| {
        (guard.tx_sink() != TxSink::Pledged || guard.proto().is_held()).then_some(())
    });
    let mut guard = cell.lock(endpoint);
    if guard.tx_sink() == TxSink::Pledged {
        guard.void_pledge();
    }
    answered.is_some()
}

/// While the outgoing direction changes its path nothing can be written, which takes microseconds. A program with nothing
/// unread on its way expects to be able to write: it waits for the change until `deadline`. Whether it had to, and that has
/// come.
#[cold]
pub fn await_switch(endpoint: &Endpoint, cell: &Arc<StreamCell>, deadline: Instant) -> bool {
    let mut looks = 0;
    let switched = wait::until(endpoint, cell, deadline, |guard| {
        looks += 1;
        (guard.tx_sink() != TxSink::Wait).then_some(())
    });
    switched.is_some() && looks > 1
}

/// Looks at the link once; whether the stream has changed.
fn poll_link(endpoint: &Endpoint, cell: &Arc<StreamCell>) -> bool {
    let link = cell.lock(endpoint).link().cloned();
    let Some(link) = link else { return false };
    let before = cell.readiness();
    endpoint.poll_link(&link);
    let after = cell.readiness();
    after != before || after.contains(Readiness::READABLE)
}

/// Blocks until the stream may be ready: on the link, or in the kernel.
fn block(rt: &Runtime, sock: &Socket, cell: &Arc<StreamCell>, fd: c_int, want: Readiness, limit: Limit) -> Waited {
    let r = cell.readiness();
    let reading = want.contains(Readiness::READABLE);
    if reading && r.contains(Readiness::KERNEL_RX) {
        let Some(endpoint) = rt.endpoint() else { return Waited::Again };
        return cell.block_in_kernel(endpoint, || block_in_recv(sock, fd, limit)).unwrap_or(Waited::Again);
    }
    if !reading && r.contains(Readiness::KERNEL_TX) {
        return block_in_poll(fd, libc::POLLOUT, limit);
    }
    wait::for_stream(rt, cell, fd, want, limit)
}

/// Blocks in the kernel's own receive, with its rules for signals and timeouts, without taking anything: a marker that
/// arrives wakes it too.
fn block_in_recv(sock: &Socket, fd: c_int, limit: Limit) -> Waited {
    if !limit.restarts() || sock.nonblocking.load(Ordering::Relaxed) {
        return block_in_poll(fd, libc::POLLIN, limit);
    }
    let mut byte = 0u8;
    // SAFETY: one writable byte.
    let n = unsafe { real::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) };
    if n < 0 && errno() == libc::EINTR {
        return Waited::Interrupted;
    }
    Waited::Again
}

fn block_in_poll(fd: c_int, events: i16, limit: Limit) -> Waited {
    if limit.restarts() {
        return wait::signals::poll(fd, events);
    }
    let left = limit.deadline.map(|d| d.saturating_since(now()));
    let ts = left.map(wait::timespec);
    let mut p = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one valid pollfd.
    let n =
        unsafe { real::ppoll(&mut p, 1, ts.as_ref().map_or(std::ptr::null(), std::ptr::from_ref), std::ptr::null()) };
    match n {
        0 => Waited::TimedOut,
        n if n < 0 && errno() == libc::EINTR => Waited::Interrupted,
        _ => Waited::Again,
    }
}

#[inline]
fn note_sent(rt: &Runtime, sock: &Socket, cell: &Arc<StreamCell>) {
    if let Some(answers) = &sock.answers {
        answers.note_sent(cell.readiness());
    }
    note_operation(rt, sock, cell);
}

#[inline]
fn note_received(rt: &Runtime, sock: &Socket, cell: &Arc<StreamCell>) {
    if sock.answers.as_ref().is_some_and(|answers| answers.note_received(cell.readiness())) {
        leave_slow_link(rt, cell);
    }
    note_operation(rt, sock, cell);
}

/// Begins to leave a link that is slower than the anchor. What is in flight arrives as in any demotion; nobody waits.
#[cold]
fn leave_slow_link(rt: &Runtime, cell: &Arc<StreamCell>) {
    if let Some(endpoint) = rt.endpoint() {
        let mut guard = cell.lock(endpoint);
        guard.demote(Reason::LinkSlower);
        guard.progress_anchor(false);
    }
}

/// Counts an operation, and asks for promotion when it is time.
#[inline]
fn note_operation(rt: &Runtime, sock: &Socket, cell: &Arc<StreamCell>) {
    if !cell.readiness().contains(Readiness::KERNEL_TX) {
        return;
    }
    let n = sock.operations.fetch_add(1, Ordering::Relaxed) + 1;
    if sock.promotion.is_due(n) {
        try_promotion(rt, sock, cell, n);
    }
}

/// The stream has come back from its link: after some use it may go onto one again.
pub fn note_return(sock: &Socket, cell: &StreamCell) {
    if !cell.is_pinned() && !sock.accepted {
        sock.promotion.note_return(sock.operations.load(Ordering::Relaxed));
    }
}

#[cold]
fn try_promotion(rt: &Runtime, sock: &Socket, cell: &Arc<StreamCell>, n: u32) {
    let shared = cell.is_shared();
    let asked_off = rt.endpoint().is_some_and(|e| cell.lock(e).proto().reason() == Reason::Requested);
    sock.promotion.note_try(n, Tries { shared, asked_off });
    if cell.is_pinned() {
        return sock.note_reason(Reason::KernelOnly);
    }
    if !sock.holds_alone() {
        return sock.note_reason(Reason::Shared);
    }
    if sock.accepted && shared {
        sock.promotion.postpone(n, connection::PATIENCE);
        if let Some(endpoint) = rt.endpoint() {
            endpoint.publish(cell);
        }
        return;
    }
    if sock.accepted {
        // The connecting side asks; it has had its chance.
        return sock.note_reason(Reason::PeerNotFound);
    }
    match sock.answers.as_ref().map_or(Verdict::Promote, |answers| answers.judge(n)) {
        Verdict::Promote => {
            // Not the descriptor of this call: one that may be closed before the others is not looked after then.
            cell.tag().store(sock.fd.load(Ordering::Relaxed) as u32, Ordering::Relaxed);
            rt.request_promotion(cell);
        }
        Verdict::Measure => {
            sock.promotion.begin_again(n);
        }
        Verdict::Stay => {
            sock.promotion.note_slower(n);
            sock.note_reason(Reason::LinkSlower);
        }
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

/// Leaves the link for an operation that only the kernel can do, and stays off it.
pub fn demote_for(sock: &Socket, reason: Reason) -> bool {
    sock.keep_on_kernel();
    match (&sock.stream, runtime::get().and_then(Runtime::endpoint)) {
        (Some(cell), Some(endpoint)) => {
            let was_plain = cell.lock(endpoint).proto().is_plain();
            let plain = wait::demote(endpoint, cell, reason, DEMOTE_PATIENCE);
            if plain && !was_plain {
                await_all_replay(endpoint, cell, sock.fd.load(Ordering::Relaxed));
            }
            plain
        }
        _ => {
            sock.reclaim();
            true
        }
    }
}

/// How long a demotion may take. Arbitrary: a live peer answers in well under a millisecond.
const DEMOTE_PATIENCE: Duration = Duration::from_secs(2);

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
    poll_link(endpoint, cell);
    let guard = cell.lock(endpoint);
    match guard.rx_source() {
        RxSource::Anchor(u64::MAX) => None,
        // What comes again was here before.
        RxSource::Anchor(left) => Some(unread(fd).max(left) as usize),
        _ => Some(guard.proto().available().max(guard.proto().frozen()) as usize),
    }
}

/// What TCP_INQ tells: bytes that a read would find; at the end of the stream one, so that the program reads on and sees it.
pub fn queued_bytes(sock: &Socket, fd: c_int) -> c_int {
    let queued = readable_bytes(sock, fd).unwrap_or_else(|| unread(fd) as usize).min(c_int::MAX as usize) as c_int;
    let ended = || {
        let r = sock.stream.as_ref().map_or(Readiness::KERNEL_RX, |cell| cell.readiness());
        let mut p = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
        // SAFETY: one valid pollfd.
        r.contains(Readiness::RDHUP) || r.contains(Readiness::KERNEL_RX) && unsafe { real::poll(&mut p, 1, 0) } > 0
    };
    if queued == 0 && ended() {
        1
    } else {
        queued
    }
}

/// Bytes that have left a link and are still to be written to the anchor; `None`: ask the kernel. What is on a link is not
/// unsent: the peer has it, as its kernel would.
pub fn unsent_bytes(sock: &Socket) -> Option<usize> {
    let (cell, endpoint) = sock.stream.as_ref().zip(runtime::get().and_then(Runtime::endpoint))?;
    let guard = cell.lock(endpoint);
    (guard.proto().phase() == Phase::Resuming).then(|| guard.proto().unconsumed() as usize)
}

#[cold]
fn raise_sigpipe() {
    // SAFETY: sends the thread a signal, as the kernel does for a write to a closed connection.
    unsafe {
        libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), libc::SIGPIPE);
    }
    set_errno(libc::EPIPE);
}

fn header(iov: &[iovec]) -> msghdr {
    // SAFETY: all-zero is a valid msghdr.
    let mut msg: msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = iov.as_ptr().cast_mut();
    msg.msg_iovlen = iov.len();
    msg
}

/// # Safety
/// `iov` describes writable memory.
unsafe fn kernel_recv(fd: c_int, iov: &[iovec], flags: c_int) -> isize {
    if let [one] = iov {
        // SAFETY: the caller's promise.
        return unsafe { real::recv(fd, one.iov_base, one.iov_len, flags) };
    }
    let mut msg = header(iov);
    // SAFETY: the caller's promise; the header is valid.
    unsafe { real::recvmsg(fd, &mut msg, flags) }
}

/// # Safety
/// `iov` describes readable memory.
unsafe fn kernel_send(fd: c_int, iov: &[iovec], flags: c_int) -> isize {
    if let [one] = iov {
        // SAFETY: the caller's promise.
        return unsafe { real::send(fd, one.iov_base, one.iov_len, flags) };
    }
    let msg = header(iov);
    // SAFETY: the caller's promise; the header is valid.
    unsafe { real::sendmsg(fd, &msg, flags) }
}

/// Receives at most `limit` bytes into the vector from its `skip`-th byte on.
///
/// # Safety
/// `iov` describes writable memory.
unsafe fn kernel_recv_limited(fd: c_int, iov: &[iovec], skip: usize, limit: u64, flags: c_int) -> isize {
    let flags = flags & !libc::MSG_WAITALL;
    if skip == 0 && limit == u64::MAX {
        // SAFETY: the caller's promise.
        return unsafe { kernel_recv(fd, iov, flags) };
    }
    let part = slice(iov, skip, limit);
    // SAFETY: parts of the caller's memory.
    unsafe { kernel_recv(fd, &part, flags) }
}

/// # Safety
/// `iov` describes readable memory.
unsafe fn kernel_send_skipping(fd: c_int, iov: &[iovec], skip: usize, flags: c_int) -> isize {
    if skip == 0 {
        // SAFETY: the caller's promise.
        return unsafe { kernel_send(fd, iov, flags) };
    }
    let part = slice(iov, skip, u64::MAX);
    // SAFETY: parts of the caller's memory.
    unsafe { kernel_send(fd, &part, flags) }
}

/// The vector from its `skip`-th byte on, at most `limit` bytes long.
fn slice(iov: &[iovec], mut skip: usize, mut limit: u64) -> Vec<iovec> {
    let mut part = Vec::with_capacity(iov.len());
    for v in iov {
        if limit == 0 {
            break;
        }
        if skip >= v.iov_len {
            skip -= v.iov_len;
            continue;
        }
        let len = ((v.iov_len - skip) as u64).min(limit) as usize;
        part.push(iovec { iov_base: v.iov_base.cast::<u8>().wrapping_add(skip).cast(), iov_len: len });
        limit -= len as u64;
        skip = 0;
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_skip_and_limit() {
        let mut bytes = [0u8; 30];
        let base = bytes.as_mut_ptr();
        let v = |at: usize, len| iovec { iov_base: base.wrapping_add(at).cast(), iov_len: len };
        let part = slice(&[v(0, 10), v(10, 0), v(10, 10), v(20, 10)], 12, 10);
        let lens: Vec<_> = part.iter().map(|p| (p.iov_base as usize - base as usize, p.iov_len)).collect();
        assert_eq!(lens, [(12, 8), (20, 2)]);
        assert!(slice(&[v(0, 10)], 10, 5).is_empty());
    }
}
