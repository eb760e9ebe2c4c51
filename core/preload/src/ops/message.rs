//! Calls with message headers, vectors, flags and addresses: checked as the kernel checks them, then moved by
//! [`io`].
//!
//! Operations that only the kernel can do (urgent data, control messages, TCP Fast Open) first take the connection off
//! its link for good. A linked stream has no urgent data to read, and no errors of the network in its error queue. The
//! kernel's socket beneath it has none either, so calls for those go to the kernel and report exactly that.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, timespec};
use netacc_proto::Reason;

use crate::leaving;
pub use crate::ops::io::single;
use crate::ops::{control, io, readiness};
use crate::os::access::{self, is_beyond};
use crate::os::asleep::asleep;
use crate::os::clock::now;
use crate::os::errno::{errno, fail};
use crate::os::limits::MAX_BYTES;
use crate::os::real;
use crate::runtime::in_kernel;
use crate::socket::Socket;
use crate::table::Entry;

/// Most elements of a vector, and most messages of one call (`UIO_MAXIOV`).
pub const MAX_VECTOR: usize = 1024;

/// Not in the `libc` crate for all targets.
const MSG_FASTOPEN: c_int = 0x2000_0000;
/// Bytes that MSG_TRUNC throws away at a time. Arbitrary.
const SCRATCH: usize = 64 << 10;

/// A connection and the descriptor that it was reached by.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The table's entry.
    pub entry: &'a Arc<Entry>,
    /// The connection in it.
    pub sock: &'a Socket,
    /// The descriptor.
    pub fd: c_int,
}

impl Target<'_> {
    /// The same, made again: a call that has not needed it in memory until now makes it where it does.
    #[inline(always)]
    fn again(self) -> Self {
        Target { entry: self.entry, sock: self.sock, fd: self.fd }
    }

    /// # Safety
    /// `iov` describes writable memory.
    #[inline]
    unsafe fn recv(self, iov: &[iovec], flags: c_int) -> isize {
        if let [v] = iov {
            // SAFETY: passed on.
            let tried = unsafe { io::receive_direct(self.entry, self.sock, self.fd, v.iov_base, v.iov_len, flags) };
            if let Some(received) = tried {
                return received;
            }
        }
        // SAFETY: passed on.
        unsafe { io::recv_in_steps(self.entry, self.sock, self.fd, iov, flags) }
    }

    /// # Safety
    /// `iov` describes readable memory.
    #[inline]
    unsafe fn send(self, iov: &[iovec], flags: c_int) -> isize {
        let sent = match iov {
            // SAFETY: passed on.
            [v] => unsafe { io::send_direct(self.entry, self.sock, self.fd, v.iov_base, v.iov_len, flags) },
            // SAFETY: passed on.
            _ => unsafe { io::send_gathered(self.entry, self.sock, self.fd, iov, flags) },
        };
        if let Some(sent) = sent {
            return sent;
        }
        // SAFETY: passed on.
        unsafe { io::send_in_steps(self.entry, self.sock, self.fd, iov, flags) }
    }

    /// Leaves the link for good, for an operation that only the kernel can do.
    pub fn to_kernel(self, reason: Reason) -> bool {
        leaving::demote_for(self.sock, reason)
    }

    /// On the kernel path now, and never to leave it again, so a call that is passed through cannot meet a promotion.
    pub fn stays_on_kernel(self) -> bool {
        self.sock.stream.as_ref().is_none_or(|cell| cell.is_pinned()) && io::on_kernel(self.sock)
    }
}

/// The vector of a call; the error for too many elements differs.
fn vector<'a>(iov: *const iovec, count: usize, too_many: c_int) -> Result<&'a [iovec], c_int> {
    if count > MAX_VECTOR {
        return Err(too_many);
    }
    if count == 0 {
        return Ok(&[]);
    }
    if !access::is_readable(iov, count) {
        return Err(libc::EFAULT);
    }
    // SAFETY: readable, and any bytes are elements.
    check(unsafe { std::slice::from_raw_parts(iov, count) })
}

/// Checks the elements. Leaves out those beyond [`MAX_BYTES`] in all, because a call may move less than requested.
fn check(iov: &[iovec]) -> Result<&[iovec], c_int> {
    if iov.iter().any(|v| v.iov_len > isize::MAX as usize) {
        return Err(libc::EINVAL);
    }
    // The kernel bounds the length of a vector of one before it checks the address, and of others after.
    let bound = |len: usize| if iov.len() == 1 { len.min(MAX_BYTES) } else { len };
    if iov.iter().any(|v| is_beyond(v.iov_base, bound(v.iov_len))) {
        return Err(libc::EFAULT);
    }
    let mut total = 0usize;
    let mut kept = iov.len();
    for (i, v) in iov.iter().enumerate() {
        total = total.saturating_add(v.iov_len);
        // The first element may be longer: the callee moves what it can of it.
        if total > MAX_BYTES && i > 0 && kept == iov.len() {
            kept = i;
        }
    }
    Ok(&iov[..kept])
}

/// `read`.
///
/// # Safety
/// As the C function.
#[inline(always)]
pub unsafe fn read(t: Target<'_>, buf: *mut c_void, len: usize) -> isize {
    // SAFETY: as the C function.
    if let Some(received) = unsafe { io::receive_direct(t.entry, t.sock, t.fd, buf, len, 0) } {
        return received;
    }
    // SAFETY: as the C function.
    unsafe { read_in_steps(t.again(), buf, len) }
}

/// # Safety
/// As the C function.
#[inline(never)]
unsafe fn read_in_steps(t: Target<'_>, buf: *mut c_void, len: usize) -> isize {
    if is_beyond(buf, len) {
        return fail(libc::EFAULT);
    }
    if len == 0 {
        // Unlike `recv`, a read of nothing does not wait.
        return 0;
    }
    // SAFETY: as the C function.
    unsafe { io::recv_in_steps(t.entry, t.sock, t.fd, &[single(buf, len)], 0) }
}

/// `write`.
///
/// # Safety
/// As the C function.
#[inline(always)]
pub unsafe fn write(t: Target<'_>, buf: *const c_void, len: usize) -> isize {
    // SAFETY: as the C function.
    if let Some(sent) = unsafe { io::send_direct(t.entry, t.sock, t.fd, buf, len, 0) } {
        return sent;
    }
    // SAFETY: as the C function.
    unsafe { write_in_steps(t.again(), buf, len) }
}

/// # Safety
/// As the C function.
#[inline(never)]
unsafe fn write_in_steps(t: Target<'_>, buf: *const c_void, len: usize) -> isize {
    if is_beyond(buf, len) {
        return fail(libc::EFAULT);
    }
    // SAFETY: as the C function.
    unsafe { io::send_in_steps(t.entry, t.sock, t.fd, &[single(buf, len)], 0) }
}

/// `readv`.
///
/// # Safety
/// As the C function.
pub unsafe fn readv(t: Target<'_>, iov: *const iovec, count: c_int, flags: c_int) -> isize {
    let Ok(count) = usize::try_from(count) else { return fail(libc::EINVAL) };
    match vector(iov, count, libc::EINVAL) {
        Ok(iov) if iov.iter().all(|v| v.iov_len == 0) => 0,
        // SAFETY: as the C function.
        Ok(iov) => unsafe { t.recv(iov, flags) },
        Err(e) => fail(e),
    }
}

/// `writev`.
///
/// # Safety
/// As the C function.
pub unsafe fn writev(t: Target<'_>, iov: *const iovec, count: c_int, flags: c_int) -> isize {
    let Ok(count) = usize::try_from(count) else { return fail(libc::EINVAL) };
    match vector(iov, count, libc::EINVAL) {
        // Unlike a `write` of no bytes, this does not reach the connection.
        Ok(iov) if iov.iter().all(|v| v.iov_len == 0) => 0,
        // SAFETY: as the C function.
        Ok(iov) => unsafe { t.send(iov, flags) },
        Err(e) => fail(e),
    }
}

/// Flags of `preadv2` and `pwritev2` as flags of `recv` and `send`; `None`: the kernel must judge them.
pub fn rw_flags(flags: c_int) -> Option<c_int> {
    const RWF_HIPRI: c_int = 1;
    const RWF_NOWAIT: c_int = 8;
    if flags & !(RWF_HIPRI | RWF_NOWAIT) != 0 {
        return None;
    }
    Some(if flags & RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 })
}

/// `recv` and `recvfrom`.
///
/// # Safety
/// As the C function.
#[inline(always)]
pub unsafe fn recvfrom(
    t: Target<'_>,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> isize {
    if addr.is_null() {
        // SAFETY: as the C function.
        if let Some(received) = unsafe { io::receive_direct(t.entry, t.sock, t.fd, buf, len, flags) } {
            return received;
        }
    }
    // SAFETY: as the C function.
    unsafe { recvfrom_in_steps(t.again(), buf, len, flags, addr, addr_len) }
}

/// # Safety
/// As the C function.
#[inline(never)]
unsafe fn recvfrom_in_steps(
    t: Target<'_>,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> isize {
    let v = single(buf, len);
    // SAFETY: as the C function.
    let n = unsafe { receive(t, &[v], flags) };
    if n >= 0 && !addr.is_null() {
        // SAFETY: as the C function.
        if let Err(error) = unsafe { name_nobody(addr_len) } {
            return fail(error);
        }
    }
    n
}

/// TCP names no sender. The kernel checks the room for an address all the same, after it has received the bytes.
///
/// # Safety
/// `len` is the caller's to write, if it is there.
unsafe fn name_nobody(len: *mut socklen_t) -> Result<(), c_int> {
    // SAFETY: any bytes are a number.
    let room = unsafe { access::read(len) }.ok_or(libc::EFAULT)?;
    if (room as c_int) < 0 {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    unsafe { access::write(len, 0) }.then_some(()).ok_or(libc::EFAULT)
}

/// # Safety
/// The mapped part of the memory that `iov` describes is the caller's to write, or is found to be unwritable.
#[inline]
unsafe fn receive(t: Target<'_>, iov: &[iovec], flags: c_int) -> isize {
    const SPECIAL: c_int = libc::MSG_OOB | libc::MSG_ERRQUEUE | libc::MSG_TRUNC;
    if iov.iter().any(|v| is_beyond(v.iov_base, v.iov_len)) {
        return fail(libc::EFAULT);
    }
    if flags & SPECIAL != 0 {
        // SAFETY: the caller's promise.
        return unsafe { receive_special(t, iov, flags) };
    }
    // SAFETY: the caller's promise.
    unsafe { t.recv(iov, flags) }
}

/// # Safety
/// `iov` describes writable memory, or null.
#[cold]
unsafe fn receive_special(t: Target<'_>, iov: &[iovec], flags: c_int) -> isize {
    let wanted = iov.iter().map(|v| v.iov_len).sum::<usize>().min(MAX_BYTES);
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) == 0 {
        return discard(t, wanted, flags & !libc::MSG_TRUNC);
    }
    // SAFETY: all-zero is a valid header.
    let mut msg: msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = iov.as_ptr().cast_mut();
    msg.msg_iovlen = iov.len();
    // SAFETY: the caller's promise.
    unsafe { receive_aside(t, &raw mut msg, flags) }
}

/// Urgent data, or the error queue: beside the stream of bytes.
///
/// # Safety
/// As `recvmsg`.
unsafe fn receive_aside(t: Target<'_>, msg: *mut msghdr, flags: c_int) -> isize {
    // SAFETY: the caller's promise.
    let n = asleep(|| unsafe { real::recvmsg(t.fd, msg, flags) });
    if n < 0 && flags & libc::MSG_ERRQUEUE != 0 && errno() == libc::EAGAIN {
        // SAFETY: any bytes are a header.
        let Some(mut header) = (unsafe { access::read(msg) }) else { return fail(libc::EFAULT) };
        // SAFETY: the caller's promise.
        return unsafe {
            let n = control::notice(t.sock, t.fd, &mut header, flags);
            if n < 0 {
                return n;
            }
            hand_back(msg, &header).map_or_else(fail, |()| n)
        };
    }
    if n > 0 && flags & libc::MSG_OOB != 0 {
        // The urgent byte has a position in the sender's stream, so it counts; and such a peer is off the link.
        t.sock.promotion.end();
        if flags & libc::MSG_PEEK == 0 {
            io::account_kernel(t.sock, 0, n as usize);
        }
    }
    n
}

/// MSG_TRUNC on TCP: bytes are consumed (or, with MSG_PEEK, counted) and thrown away.
fn discard(t: Target<'_>, wanted: usize, flags: c_int) -> isize {
    let mut scratch = vec![0u8; wanted.min(SCRATCH)];
    let mut done = 0usize;
    loop {
        let v = single(scratch.as_mut_ptr().cast(), scratch.len().min(wanted - done));
        // SAFETY: the scratch buffer is writable and long enough.
        let n = unsafe { t.recv(&[v], flags) };
        if n < 0 {
            return if done > 0 { done as isize } else { n };
        }
        done += n as usize;
        let more = n as usize == v.iov_len && done < wanted && flags & libc::MSG_PEEK == 0;
        let all = flags & libc::MSG_WAITALL != 0;
        if !more || n == 0 || !all && !readable(t) {
            return done as isize;
        }
    }
}

fn readable(t: Target<'_>) -> bool {
    io::queued_bytes(t.sock, t.fd) > 0
}

/// `recvmsg`.
///
/// # Safety
/// As the C function.
pub unsafe fn recvmsg(t: Target<'_>, msg: *mut msghdr, flags: c_int) -> isize {
    // SAFETY: any bytes are a header.
    let Some(mut header) = (unsafe { access::read(msg) }) else { return fail(libc::EFAULT) };
    let iov = match headers_vector(&header) {
        Ok(iov) => iov,
        Err(e) => return fail(e),
    };
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        // SAFETY: as the C function.
        return unsafe { receive_aside(t, msg, flags) };
    }
    // A connection whose program has requested control messages with a socket option is on the kernel path for good.
    let wants_control = !header.msg_control.is_null() && header.msg_controllen > 0;
    if wants_control {
        t.sock.find_needs();
    }
    if wants_control && flags & libc::MSG_TRUNC == 0 && t.stays_on_kernel() {
        // SAFETY: as the C function.
        let n = asleep(|| unsafe { real::recvmsg(t.fd, msg, flags) });
        if n > 0 && flags & libc::MSG_PEEK == 0 {
            io::account_kernel(t.sock, 0, n as usize);
        }
        return n;
    }
    // SAFETY: as the C function.
    let n = unsafe { receive(t, iov, flags) };
    if n < 0 {
        return n;
    }
    if !header.msg_name.is_null() {
        header.msg_namelen = 0;
    }
    let room = std::mem::take(&mut header.msg_controllen);
    header.msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
    if t.sock.reports_queue() {
        let queued = io::queued_bytes(t.sock, t.fd);
        // SAFETY: as the C function.
        unsafe { control::put(&mut header, room, (libc::IPPROTO_TCP, libc::TCP_INQ), &queued.to_ne_bytes()) };
    }
    // SAFETY: as the C function.
    unsafe { hand_back(msg, &header) }.map_or_else(fail, |()| n)
}

/// Writes the fields that a call has changed to the program's header; an error if they cannot be written.
///
/// # Safety
/// `msg` is the caller's to write, if it is there.
unsafe fn hand_back(msg: *mut msghdr, header: &msghdr) -> Result<(), c_int> {
    // SAFETY: the caller's promise.
    unsafe {
        if !access::is_writable(msg) {
            return Err(libc::EFAULT);
        }
        (&raw mut (*msg).msg_namelen).write_unaligned(header.msg_namelen);
        (&raw mut (*msg).msg_flags).write_unaligned(header.msg_flags);
        (&raw mut (*msg).msg_controllen).write_unaligned(header.msg_controllen);
    }
    Ok(())
}

/// The vector of a message, after the checks that the kernel makes before it.
fn headers_vector<'a>(msg: &msghdr) -> Result<&'a [iovec], c_int> {
    if !msg.msg_name.is_null() && (msg.msg_namelen as c_int) < 0 {
        return Err(libc::EINVAL);
    }
    vector(msg.msg_iov, msg.msg_iovlen, libc::EMSGSIZE)
}

/// `recvmmsg`.
///
/// # Safety
/// As the C function.
pub unsafe fn recvmmsg(
    t: Target<'_>,
    msgs: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let mut left = match readiness::time_limit(timeout) {
        Ok(left) => left,
        Err(error) => return fail(error) as c_int,
    };
    let end = left.map(|left| now() + left);
    if flags & libc::MSG_ERRQUEUE == 0 {
        // The kernel checks it here before it checks for bytes to read.
        if let Some(error) = t.sock.take_deferred_error() {
            return fail(error) as c_int;
        }
    }
    let mut done: c_int = 0;
    let mut each = flags & !libc::MSG_WAITFORONE;
    while done.unsigned_abs() < count {
        let m = msgs.wrapping_add(done as usize);
        // SAFETY: as the C function.
        if unsafe { receive_one(t, m, each) } < 0 {
            if done == 0 {
                return -1;
            }
            if errno() != libc::EAGAIN {
                // The next call reports it.
                t.sock.deferred_error.store(errno(), Ordering::Relaxed);
            }
            break;
        }
        done += 1;
        if flags & libc::MSG_WAITFORONE != 0 {
            each |= libc::MSG_DONTWAIT;
        }
        // The kernel checks the time only here, after each message.
        if let Some(end) = end {
            let rest = end.saturating_since(now());
            left = Some(rest);
            if rest.is_zero() {
                break;
            }
        }
    }
    if let Some(left) = left.filter(|_| done > 0) {
        // SAFETY: as the C function.
        if !unsafe { access::write(timeout, crate::os::clock::timespec(left)) } {
            return fail(libc::EFAULT) as c_int;
        }
    }
    done
}

/// One message of a `recvmmsg`.
///
/// # Safety
/// As the C function.
unsafe fn receive_one(t: Target<'_>, m: *mut mmsghdr, flags: c_int) -> isize {
    // SAFETY: as the C function; the fields are not read.
    unsafe {
        let n = recvmsg(t, &raw mut (*m).msg_hdr, flags);
        if n >= 0 && !access::write(&raw mut (*m).msg_len, n as c_uint) {
            return fail(libc::EFAULT);
        }
        n
    }
}

/// `send` and `sendto`.
///
/// # Safety
/// As the C function.
#[inline(always)]
pub unsafe fn sendto(
    t: Target<'_>,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> isize {
    if addr.is_null() {
        // SAFETY: as the C function.
        if let Some(sent) = unsafe { io::send_direct(t.entry, t.sock, t.fd, buf, len, flags) } {
            return sent;
        }
    }
    // SAFETY: as the C function.
    unsafe { sendto_in_steps(t.again(), buf, len, flags, addr, addr_len) }
}

/// # Safety
/// As the C function.
#[inline(never)]
unsafe fn sendto_in_steps(
    t: Target<'_>,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> isize {
    let v = single(buf, len);
    if is_beyond(v.iov_base, v.iov_len) {
        return fail(libc::EFAULT);
    }
    if !addr.is_null() {
        if addr_len as usize > size_of::<libc::sockaddr_storage>() {
            return fail(libc::EINVAL);
        }
        if !access::is_readable(addr.cast::<u8>(), addr_len as usize) {
            return fail(libc::EFAULT);
        }
    }
    if flags & MSG_FASTOPEN != 0 {
        return kernel_only(t, || {
            // SAFETY: as the C function.
            asleep(|| unsafe { real::sendto(t.fd, buf, len, flags, addr, addr_len) })
        });
    }
    if is_refused_urgent(t, flags) {
        return fail(libc::EOPNOTSUPP);
    }
    // The kernel ignores an address on a connected TCP socket. SAFETY: as the C function.
    unsafe { io::send_in_steps(t.entry, t.sock, t.fd, &[v], flags) }
}

/// # Safety
/// `iov` describes readable memory.
#[inline]
unsafe fn transmit(t: Target<'_>, iov: &[iovec], flags: c_int) -> isize {
    if is_refused_urgent(t, flags) {
        return fail(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's promise.
    unsafe { t.send(iov, flags) }
}

/// Whether urgent data is to be sent, and cannot be.
#[inline]
fn is_refused_urgent(t: Target<'_>, flags: c_int) -> bool {
    flags & libc::MSG_OOB != 0 && !t.to_kernel(Reason::KernelOnly)
}

/// Makes a call that moves bytes out in a way that only the kernel has.
fn kernel_only(t: Target<'_>, call: impl FnOnce() -> isize) -> isize {
    if !t.to_kernel(Reason::KernelOnly) {
        return fail(libc::EOPNOTSUPP);
    }
    let n = call();
    if n > 0 {
        io::account_kernel(t.sock, n as usize, 0);
    }
    n
}

/// `sendmsg`.
///
/// # Safety
/// As the C function.
pub unsafe fn sendmsg(t: Target<'_>, msg: *const msghdr, flags: c_int) -> isize {
    // SAFETY: any bytes are a header.
    let Some(header) = (unsafe { access::read(msg) }) else { return fail(libc::EFAULT) };
    let iov = match outgoing_vector(&header) {
        Ok(iov) => iov,
        Err(e) => return fail(e),
    };
    if header.msg_controllen > 0 || flags & MSG_FASTOPEN != 0 {
        return kernel_only(t, || {
            // SAFETY: as the C function.
            in_kernel(|| asleep(|| unsafe { real::sendmsg(t.fd, msg, flags) }))
        });
    }
    // SAFETY: as the C function.
    unsafe { transmit(t, iov, flags) }
}

/// The vector of a message to send, after the kernel's checks of its header.
fn outgoing_vector<'a>(msg: &msghdr) -> Result<&'a [iovec], c_int> {
    let named = (msg.msg_namelen as usize).min(size_of::<libc::sockaddr_storage>());
    let named = if msg.msg_name.is_null() || (msg.msg_namelen as c_int) < 0 { 0 } else { named };
    if !access::is_readable(msg.msg_name.cast::<u8>(), named) {
        return Err(libc::EFAULT);
    }
    let iov = headers_vector(msg)?;
    if msg.msg_controllen > c_int::MAX as usize {
        return Err(libc::ENOBUFS);
    }
    if !access::is_readable(msg.msg_control.cast::<u8>(), msg.msg_controllen) {
        return Err(libc::EFAULT);
    }
    Ok(iov)
}

/// `sendmmsg`.
///
/// # Safety
/// As the C function.
pub unsafe fn sendmmsg(t: Target<'_>, msgs: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    let mut done: c_int = 0;
    while (done as usize) < (count as usize).min(MAX_VECTOR) {
        let m = msgs.wrapping_add(done as usize);
        // SAFETY: as the C function.
        let Some(is_whole) = (unsafe { send_one(t, m, flags) }) else {
            return if done > 0 { done } else { -1 };
        };
        done += 1;
        if !is_whole {
            break;
        }
    }
    done
}

/// One message of a `sendmmsg`: whether all of it has been sent. `None`: it has failed.
///
/// # Safety
/// As the C function.
unsafe fn send_one(t: Target<'_>, m: *mut mmsghdr, flags: c_int) -> Option<bool> {
    // SAFETY: as the C function; the fields are not read.
    unsafe {
        let n = usize::try_from(sendmsg(t, &raw const (*m).msg_hdr, flags)).ok()?;
        if !access::write(&raw mut (*m).msg_len, n as c_uint) {
            fail(libc::EFAULT);
            return None;
        }
        let header = access::read(&raw const (*m).msg_hdr)?;
        let wanted: usize = headers_vector(&header).map_or(0, |iov| iov.iter().map(|v| v.iov_len).sum());
        Some(n >= wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::access::BEYOND;

    #[test]
    fn vectors_are_refused_as_the_kernel_refuses_them() {
        let mut byte = 0u8;
        let base: *mut c_void = (&raw mut byte).cast();
        let v = |len| iovec { iov_base: base, iov_len: len };
        let null = |len| iovec { iov_base: std::ptr::null_mut(), iov_len: len };
        assert!(matches!(check(&[v(1), v(0), null(0)]), Ok(iov) if iov.len() == 3));
        assert!(matches!(check(&[v(1), v(usize::MAX)]), Err(libc::EINVAL)));
        assert!(matches!(check(&[v(1), null(1)]), Ok(iov) if iov.len() == 2));
        let at = |first: usize, len| iovec { iov_base: first as *mut c_void, iov_len: len };
        let beyond = |first, len| is_beyond(at(first, len).iov_base, len);
        assert!(beyond(usize::MAX, 1) && beyond(BEYOND, 1) && beyond(4096, BEYOND) && beyond(usize::MAX, 0));
        assert!(!beyond(8, 0) && !beyond(8, 1) && !beyond(4096, 1) && !beyond(BEYOND - 1, 1));
        assert!(matches!(check(&[at(BEYOND, 1), v(usize::MAX)]), Err(libc::EINVAL)));
        assert!(check(&[at(8, isize::MAX as usize)]).is_ok());
        assert!(matches!(check(&[at(8, isize::MAX as usize), v(1)]), Err(libc::EFAULT)));
        assert!(matches!(check(&[v(1), v(MAX_BYTES), v(1)]), Ok(iov) if iov.len() == 1));
        assert!(matches!(check(&[v(MAX_BYTES + 1), v(1)]), Ok(iov) if iov.len() == 1));
        let many = vec![v(1); MAX_VECTOR + 1];
        crate::os::actions::install();
        assert!(matches!(vector(many.as_ptr(), many.len(), libc::EMSGSIZE), Err(libc::EMSGSIZE)));
        assert!(matches!(vector(many.as_ptr(), many.len() - 1, libc::EINVAL), Ok(iov) if iov.len() == MAX_VECTOR));
        assert!(matches!(vector(std::ptr::null(), 1, libc::EINVAL), Err(libc::EFAULT)));
        assert!(matches!(vector(std::ptr::null(), 0, libc::EINVAL), Ok([])));
        assert_eq!(single(std::ptr::null(), usize::MAX).iov_len, MAX_BYTES);
    }

    #[test]
    fn only_known_flags_of_preadv2_are_translated() {
        assert_eq!(rw_flags(0), Some(0));
        assert_eq!(rw_flags(8), Some(libc::MSG_DONTWAIT));
        assert_eq!(rw_flags(1), Some(0));
        assert_eq!(rw_flags(2), None);
    }
}
