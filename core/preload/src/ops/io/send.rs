//! Sending: the environment of [`Sending`], which decides.

use std::ffi::c_int;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use libc::iovec;
use netacc_config::trace::Point;
use netacc_device::Instant;
use netacc_driver::{LinkIo, LockedStream, Readiness};
use netacc_socket::{Errno, Expected, KernelError, Limit, Next, SendSocket, SendWait, Sending, SwitchPatience, Waited};

use super::call::{kernel_result, Call, Direction, Target};
use super::kernel::{has_room, has_room_for_some, is_full, kernel_send, kernel_send_skipping, unacknowledged};
use super::promotion::record_sent;
use super::{deferred_or, total};
use crate::ops::connection;
use crate::os::asleep::asleep;
use crate::os::errno::{fail, set_errno};
use crate::os::limits::MAX_BYTES;
use crate::os::{access, signals};
use crate::socket::Socket;
use crate::switching;
use crate::table::Entry;
use crate::wait::block;
use crate::{batch, runtime, trace};

/// Of all writes of the process.
static SWITCH_PATIENCE: SwitchPatience = SwitchPatience::new();

/// The direction of a call that sends.
struct Outgoing {
    /// More data follows: MSG_MORE or TCP_CORK.
    more: bool,
}

impl Direction for Outgoing {
    fn timeout(sock: &Socket) -> Option<Duration> {
        sock.send_timeout()
    }
}

/// Sends. See `send(2)`.
///
/// # Safety
/// `iov` describes readable memory.
#[inline(never)]
pub unsafe fn send_in_steps(entry: &Arc<Entry>, sock: &Socket, fd: c_int, iov: &[iovec], flags: c_int) -> isize {
    if flags & libc::MSG_ZEROCOPY != 0 && sock.is_zero_copy() {
        // SAFETY: passed on.
        return unsafe { send_zero_copy(entry, sock, fd, iov, flags) };
    }
    let Some((cell, rt)) = sock.stream.as_ref().zip(runtime::get()) else {
        // SAFETY: passed on.
        return unsafe { send_without_stream(entry, sock, fd, iov, flags) };
    };
    let Some(endpoint) = rt.endpoint() else {
        // SAFETY: passed on.
        return asleep(|| unsafe { kernel_send(fd, iov, flags) });
    };
    let target = Target { rt, entry, sock, connection: netacc_socket::Connection { endpoint, cell } };
    batch::count_write(endpoint);
    trace::call(Point::Send, cell, iov);
    let Some(len) = total(iov) else { return fail(libc::EINVAL) };
    // The kernel itself has the state of TCP_CORK, also if another process that has the socket has changed it.
    let more = flags & libc::MSG_MORE != 0 || sock.options.cork.load(Ordering::Relaxed);
    let nonblocking = flags & libc::MSG_DONTWAIT != 0 || sock.never_waits();
    if sock.deferred_error.load(Ordering::Relaxed) != 0 {
        return deferred_or(sock, 0);
    }
    let connection = target.connection;
    let mut call = Call { target, fd, iov, len, flags, waiting: None, direction: Outgoing { more } };
    let sending = Sending::begin(connection, &mut call, nonblocking);
    take_steps(call, sending, Next::Again)
}

/// Makes the rest of a call whose first attempt the kernel has made with the stream at rest: see [`Sending::go_on_after`].
///
/// # Safety
/// `iov` describes readable memory.
#[cold]
pub(super) unsafe fn send_rest(target: Target<'_>, fd: c_int, iov: &[iovec], flags: c_int, sent: usize) -> isize {
    let Some(len) = total(iov) else { return fail(libc::EINVAL) };
    let nonblocking = flags & libc::MSG_DONTWAIT != 0 || target.sock.never_waits();
    let more = target.sock.options.cork.load(Ordering::Relaxed);
    let mut call = Call { target, fd, iov, len, flags, waiting: None, direction: Outgoing { more } };
    let mut sending = Sending::begin(target.connection, &mut call, nonblocking);
    let next = sending.go_on_after(target.connection, &mut call, sent);
    take_steps(call, sending, next)
}

#[inline]
fn take_steps(mut call: Call<'_, Outgoing>, mut sending: Sending, mut next: Next<SendWait>) -> isize {
    let connection = call.target.connection;
    loop {
        next = match next {
            Next::Again => sending.attempt(connection, &mut call),
            Next::Wait(wait) => {
                let waited = call.wait(wait);
                sending.resume(connection, &mut call, waited)
            }
            Next::Done(Ok(sent)) => return sent as isize,
            Next::Done(Err(error)) => return end_failed(error, call.flags),
        };
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
        return unsafe { send_in_steps(entry, adopted, fd, iov, flags) };
    }
    // SAFETY: passed on.
    asleep(|| unsafe { kernel_send(fd, iov, flags) })
}

/// Ends a call that has sent nothing and has failed.
#[cold]
pub(super) fn end_failed(error: Errno, flags: c_int) -> isize {
    if error == Errno::PIPE && flags & libc::MSG_NOSIGNAL == 0 {
        raise_sigpipe();
    }
    fail(error.0)
}

impl SendSocket for Call<'_, Outgoing> {
    #[inline]
    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn send_kernel(&mut self, skip: usize) -> Result<usize, KernelError> {
        let flags = self.flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: see `iov`.
        kernel_result(unsafe { kernel_send_skipping(self.fd, self.iov, skip, flags) })
    }

    #[inline]
    fn send_link(&mut self, stream: &mut LockedStream<'_>, skip: usize) -> Option<LinkIo> {
        let wanted = stream.proto().tx_ring_len() as usize;
        let extent = Extent::of(self.iov, skip, wanted);
        if extent.faults && extent.len < SEGMENT {
            return None;
        }
        let len = if extent.faults { extent.len - extent.len % SEGMENT } else { extent.len };
        // SAFETY: found to be readable.
        Some(unsafe { copy_in(stream, self.iov, skip..skip + len, self.direction.more) })
    }

    fn refused_len(&mut self, skip: usize) -> Option<usize> {
        let extent = Extent::of(self.iov, skip, MAX_BYTES);
        (!extent.faults || extent.len >= SEGMENT).then_some(extent.len)
    }

    fn is_full(&self) -> bool {
        is_full(self.fd)
    }

    fn has_room(&self) -> bool {
        has_room(self.fd)
    }

    fn has_room_for_some(&self) -> bool {
        has_room_for_some(self.fd)
    }

    fn unacknowledged(&self) -> u64 {
        unacknowledged(self.fd) as u64
    }

    fn switch_patience(&self) -> &SwitchPatience {
        &SWITCH_PATIENCE
    }

    #[inline]
    fn record_sent(&mut self, len: usize) {
        let Target { rt, sock, connection, .. } = self.target;
        record_sent(rt, sock, connection.cell, len);
    }
}

impl Call<'_, Outgoing> {
    #[cold]
    fn wait(&mut self, wait: SendWait) -> Waited {
        let Target { rt, sock, connection, .. } = self.target;
        let waited = match wait {
            SendWait::Peer { expected, until, limit } => self.wait_for_peer(expected, until, limit),
            SendWait::Room(limit) => block(rt, sock, connection.cell, self.fd, Readiness::WRITABLE, limit),
        };
        self.find_descriptor();
        waited
    }

    fn wait_for_peer(&self, expected: Expected, until: Instant, limit: Option<Limit>) -> Waited {
        let netacc_socket::Connection { endpoint, cell } = self.target.connection;
        let blocked_signals = limit.map(|limit| (signals::BlockedSignals::all(), limit));
        let done = switching::until(endpoint, cell, until, |stream| expected.is_done(stream, self).then_some(()));
        match blocked_signals {
            Some((blocked_signals, limit)) if blocked_signals.interrupts(limit.restarts()) => Waited::Interrupted,
            _ if done.is_some() => Waited::Again,
            _ => Waited::TimedOut,
        }
    }
}

/// A send whose completion is reported on the error queue: here, or by the kernel if no link can ever carry it.
///
/// # Safety
/// `iov` describes readable memory.
#[cold]
unsafe fn send_zero_copy(entry: &Arc<Entry>, sock: &Socket, fd: c_int, iov: &[iovec], flags: c_int) -> isize {
    sock.reclaim();
    let adopted = if sock.stream.is_none() { connection::adopt(entry, sock) } else { None };
    let sock = match adopted.as_deref() {
        Some(Entry::Stream(adopted)) => adopted,
        _ => sock,
    };
    let n = if sock.stream.is_none() {
        // SAFETY: passed on.
        asleep(|| unsafe { kernel_send(fd, iov, flags) })
    } else {
        // SAFETY: passed on.
        unsafe { send_in_steps(entry, sock, fd, iov, flags & !libc::MSG_ZEROCOPY) }
    };
    if n > 0 {
        sock.record_zero_copy();
    }
    n
}

/// The kernel takes a write in pieces of up to so many bytes, and nothing of a piece that it cannot read to its end. It
/// may take less than all of the first piece.
const SEGMENT: usize = 32 << 10;

/// The part of a vector that can be sent.
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

/// Sends the bytes of the vector in `range`, or as many of them as there is room for.
///
/// # Safety
/// They are readable.
#[inline]
unsafe fn copy_in(stream: &mut LockedStream<'_>, iov: &[iovec], range: Range<usize>, more: bool) -> LinkIo {
    let (mut skip, mut left) = (range.start, range.len());
    if let [v] = iov {
        // SAFETY: within the caller's buffer.
        return unsafe { stream.send_link(v.iov_base.cast::<u8>().add(skip), left, more) };
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
    unsafe { stream.send_pieces(pieces, more) }
}

#[cold]
fn raise_sigpipe() {
    // SAFETY: sends the thread a signal, as the kernel does for a write to a closed connection.
    unsafe {
        libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), libc::SIGPIPE);
    }
    set_errno(libc::EPIPE);
}
