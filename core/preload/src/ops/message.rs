//! Calls with message headers, vectors, flags and addresses: checked as the kernel checks them, then moved by
//! [`io`].
//!
//! What only the kernel can do (urgent data, control messages, TCP Fast Open) takes the connection off its link for
//! good first. What a linked stream cannot have (urgent data to read, errors of the network in its error queue) the
//! kernel's socket beneath it has not got either, so those calls go there and report exactly that.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, timespec};
use netacc_proto::Reason;

use crate::ops::{control, errno, fail, io};
use crate::real;
use crate::runtime::now;
use crate::socket::Socket;
use crate::table::Entry;

/// Most elements of a vector, and most messages of one call (`UIO_MAXIOV`).
const MAX_VECTOR: usize = 1024;
/// Most bytes that one call moves (`MAX_RW_COUNT`: INT_MAX rounded down to a page).
pub const MAX_BYTES: usize = 0x7fff_f000;
/// Not in the `libc` crate for all targets.
const MSG_FASTOPEN: c_int = 0x2000_0000;
/// Bytes that MSG_TRUNC throws away at a time. Arbitrary.
const SCRATCH: usize = 64 << 10;

/// A connection and the descriptor that it was reached by.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// What the table holds.
    pub entry: &'a Arc<Entry>,
    /// The connection in it.
    pub sock: &'a Socket,
    /// The descriptor.
    pub fd: c_int,
}

impl Target<'_> {
    /// # Safety
    /// `iov` describes writable memory.
    #[inline]
    unsafe fn recv(self, iov: &[iovec], flags: c_int) -> isize {
        // SAFETY: passed on.
        unsafe { io::recv(self.entry, self.sock, self.fd, iov, flags) }
    }

    /// # Safety
    /// `iov` describes readable memory.
    #[inline]
    unsafe fn send(self, iov: &[iovec], flags: c_int) -> isize {
        // SAFETY: passed on.
        unsafe { io::send(self.entry, self.sock, self.fd, iov, flags) }
    }

    /// Leaves the link for good, for an operation that only the kernel can do.
    pub fn to_kernel(self, reason: Reason) -> bool {
        io::demote_for(self.sock, reason)
    }

    /// On the kernel path now, and never to leave it again: what is passed through cannot meet a promotion.
    pub fn stays_on_kernel(self) -> bool {
        self.sock.stream.as_ref().is_none_or(|cell| cell.is_pinned()) && io::on_kernel(self.sock)
    }
}

/// A buffer as a vector of one, with its length bounded as the kernel bounds it.
#[inline]
pub fn single(buf: *const c_void, len: usize) -> iovec {
    iovec { iov_base: buf.cast_mut(), iov_len: len.min(MAX_BYTES) }
}

/// Whether the kernel would fault on it: nothing is ever mapped there. Of other addresses this is not known.
#[inline]
pub fn faults(v: &iovec) -> bool {
    let first = v.iov_base as usize;
    v.iov_len != 0 && first < LOWEST || is_beyond(v)
}

/// Whether it reaches beyond the memory of programs, for which a call fails before it waits for anything.
#[inline]
fn is_beyond(v: &iovec) -> bool {
    v.iov_len != 0 && (v.iov_base as usize).checked_add(v.iov_len).is_none_or(|end| end > BEYOND)
}

/// The page of null, which is kept free.
const LOWEST: usize = 4096;
/// Where the memory of programs ends, at the latest.
const BEYOND: usize = if cfg!(target_arch = "x86_64") { (1 << 47) - 4096 } else { 1 << 52 };

/// The vector of a `readv`, `writev`, `recvmsg` or `sendmsg`; the error for too many elements differs.
///
/// # Safety
/// `iov` is null or has `count` elements.
unsafe fn vector<'a>(iov: *const iovec, count: usize, too_many: c_int) -> Result<&'a [iovec], c_int> {
    if count > MAX_VECTOR {
        return Err(too_many);
    }
    if count == 0 {
        return Ok(&[]);
    }
    if iov.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: not null, and the caller's promise.
    check(unsafe { std::slice::from_raw_parts(iov, count) })
}

/// Checks the elements; those beyond [`MAX_BYTES`] in all are left out, for a call may move less than it was asked to.
fn check(iov: &[iovec]) -> Result<&[iovec], c_int> {
    let mut total = 0usize;
    let mut kept = iov.len();
    for (i, v) in iov.iter().enumerate() {
        if v.iov_len > isize::MAX as usize {
            return Err(libc::EINVAL);
        }
        if faults(v) {
            return Err(libc::EFAULT);
        }
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
#[inline]
pub unsafe fn read(t: Target<'_>, buf: *mut c_void, len: usize) -> isize {
    if len == 0 {
        // Unlike `recv`, a read of nothing does not wait.
        return 0;
    }
    let v = single(buf, len);
    if faults(&v) {
        return fail(libc::EFAULT);
    }
    // SAFETY: as the C function.
    unsafe { t.recv(&[v], 0) }
}

/// `write`.
///
/// # Safety
/// As the C function.
#[inline]
pub unsafe fn write(t: Target<'_>, buf: *const c_void, len: usize) -> isize {
    let v = single(buf, len);
    if faults(&v) {
        return fail(libc::EFAULT);
    }
    // SAFETY: as the C function.
    unsafe { t.send(&[v], 0) }
}

/// `readv`.
///
/// # Safety
/// As the C function.
pub unsafe fn readv(t: Target<'_>, iov: *const iovec, count: c_int, flags: c_int) -> isize {
    let Ok(count) = usize::try_from(count) else { return fail(libc::EINVAL) };
    // SAFETY: as the C function.
    match unsafe { vector(iov, count, libc::EINVAL) } {
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
    // SAFETY: as the C function.
    match unsafe { vector(iov, count, libc::EINVAL) } {
        // Unlike a `write` of nothing, this does not ask the connection.
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
#[inline]
pub unsafe fn recvfrom(
    t: Target<'_>,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> isize {
    if !addr.is_null() && addr_len.is_null() {
        return fail(libc::EFAULT);
    }
    let v = single(buf, len);
    // SAFETY: as the C function.
    let n = unsafe { receive(t, &[v], flags) };
    if n >= 0 && !addr.is_null() {
        // TCP names no sender.
        // SAFETY: not null, and writable as the C function has it.
        unsafe { *addr_len = 0 };
    }
    n
}

/// # Safety
/// `iov` describes writable memory, or null.
#[inline]
unsafe fn receive(t: Target<'_>, iov: &[iovec], flags: c_int) -> isize {
    const SPECIAL: c_int = libc::MSG_OOB | libc::MSG_ERRQUEUE | libc::MSG_TRUNC;
    if flags & SPECIAL != 0 {
        // SAFETY: the caller's promise.
        return unsafe { receive_special(t, iov, flags) };
    }
    if iov.iter().any(is_beyond) {
        return fail(libc::EFAULT);
    }
    if iov.iter().any(faults) {
        // As the kernel does, once there is something to be copied.
        // SAFETY: nothing is written.
        let n = unsafe { t.recv(&[], flags | libc::MSG_PEEK) };
        return if n == 0 && readable(t) { fail(libc::EFAULT) } else { n };
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
    unsafe { receive_aside(t, &mut msg, flags) }
}

/// Urgent data, or the error queue: beside the stream of bytes.
///
/// # Safety
/// As `recvmsg`.
unsafe fn receive_aside(t: Target<'_>, msg: &mut msghdr, flags: c_int) -> isize {
    // SAFETY: the caller's promise.
    let n = unsafe { real::recvmsg(t.fd, msg, flags) };
    if n < 0 && flags & libc::MSG_ERRQUEUE != 0 && errno() == libc::EAGAIN {
        // SAFETY: the caller's promise.
        return unsafe { control::notice(t, msg, flags) };
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
    // SAFETY: null, or valid as the C function has it.
    let Some(msg) = (unsafe { msg.as_mut() }) else { return fail(libc::EFAULT) };
    // SAFETY: as the C function.
    let iov = match unsafe { headers_vector(msg) } {
        Ok(iov) => iov,
        Err(e) => return fail(e),
    };
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        // SAFETY: as the C function.
        return unsafe { receive_aside(t, msg, flags) };
    }
    // Whoever asked for control messages with a socket option has been put on the kernel path for good.
    if !msg.msg_control.is_null() && msg.msg_controllen > 0 && flags & libc::MSG_TRUNC == 0 && t.stays_on_kernel() {
        // SAFETY: as the C function.
        let n = unsafe { real::recvmsg(t.fd, msg, flags) };
        if n > 0 && flags & libc::MSG_PEEK == 0 {
            io::account_kernel(t.sock, 0, n as usize);
        }
        return n;
    }
    // SAFETY: as the C function.
    let n = unsafe { receive(t, iov, flags) };
    if n >= 0 {
        if !msg.msg_name.is_null() {
            msg.msg_namelen = 0;
        }
        let room = std::mem::take(&mut msg.msg_controllen);
        msg.msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
        if t.sock.options.tells_queue.load(Ordering::Relaxed) {
            let queued = io::queued_bytes(t.sock, t.fd);
            // SAFETY: as the C function.
            unsafe { control::put(msg, room, (libc::IPPROTO_TCP, libc::TCP_INQ), &queued.to_ne_bytes()) };
        }
    }
    n
}

/// # Safety
/// As `recvmsg`. Null buffers pass: with MSG_TRUNC they are allowed.
unsafe fn headers_vector<'a>(msg: &msghdr) -> Result<&'a [iovec], c_int> {
    let count = msg.msg_iovlen;
    if count > MAX_VECTOR {
        return Err(libc::EMSGSIZE);
    }
    if count == 0 {
        return Ok(&[]);
    }
    if msg.msg_iov.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: not null, and the caller's promise.
    let iov = unsafe { std::slice::from_raw_parts(msg.msg_iov, count) };
    if iov.iter().any(|v| v.iov_len > isize::MAX as usize) {
        return Err(libc::EINVAL);
    }
    Ok(iov)
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
    // SAFETY: null, or valid as the C function has it.
    let mut timeout = unsafe { timeout.as_mut() };
    let limit = match timeout.as_deref() {
        None => None,
        Some(ts) => match crate::ops::readiness::duration(ts) {
            Some(d) => Some(now() + d),
            None => return fail(libc::EINVAL) as c_int,
        },
    };
    let mut done: c_int = 0;
    let mut flags = flags;
    let wait_for_one = flags & libc::MSG_WAITFORONE != 0;
    flags &= !libc::MSG_WAITFORONE;
    while (done as usize) < (count as usize).min(MAX_VECTOR) {
        // SAFETY: within the caller's array.
        let m = unsafe { &mut *msgs.add(done as usize) };
        // SAFETY: as the C function.
        let n = unsafe { recvmsg(t, &mut m.msg_hdr, flags) };
        if n < 0 {
            if done == 0 {
                return -1;
            }
            if errno() != libc::EAGAIN {
                // The next call reports it.
                t.sock.deferred_error.store(errno(), Ordering::Relaxed);
            }
            break;
        }
        m.msg_len = n as c_uint;
        done += 1;
        if wait_for_one {
            flags |= libc::MSG_DONTWAIT;
        }
        // The kernel looks at the time only here, after each message.
        if let (Some(ts), Some(limit)) = (timeout.as_deref_mut(), limit) {
            let left = limit.saturating_since(now());
            *ts = crate::wait::timespec(left);
            if left.is_zero() {
                break;
            }
        }
    }
    done
}

/// `send` and `sendto`.
///
/// # Safety
/// As the C function.
#[inline]
pub unsafe fn sendto(
    t: Target<'_>,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> isize {
    if !addr.is_null() && addr_len as usize > size_of::<libc::sockaddr_storage>() {
        return fail(libc::EINVAL);
    }
    let v = single(buf, len);
    if faults(&v) {
        return fail(libc::EFAULT);
    }
    if flags & MSG_FASTOPEN != 0 {
        return kernel_only(t, || {
            // SAFETY: as the C function.
            unsafe { real::sendto(t.fd, buf, len, flags, addr, addr_len) }
        });
    }
    // The kernel takes no notice of an address on a connected TCP socket.
    // SAFETY: as the C function.
    unsafe { transmit(t, &[v], flags) }
}

/// # Safety
/// `iov` describes readable memory.
#[inline]
unsafe fn transmit(t: Target<'_>, iov: &[iovec], flags: c_int) -> isize {
    if flags & libc::MSG_OOB != 0 && !t.to_kernel(Reason::KernelOnly) {
        return fail(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's promise.
    unsafe { t.send(iov, flags) }
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
    // SAFETY: null, or valid as the C function has it.
    let Some(header) = (unsafe { msg.as_ref() }) else { return fail(libc::EFAULT) };
    if header.msg_controllen > 0 && !header.msg_control.is_null() || flags & MSG_FASTOPEN != 0 {
        return kernel_only(t, || {
            // SAFETY: as the C function.
            unsafe { real::sendmsg(t.fd, msg, flags) }
        });
    }
    // SAFETY: as the C function.
    match unsafe { vector(header.msg_iov, header.msg_iovlen, libc::EMSGSIZE) } {
        // SAFETY: as the C function.
        Ok(iov) => unsafe { transmit(t, iov, flags) },
        Err(e) => fail(e),
    }
}

/// `sendmmsg`.
///
/// # Safety
/// As the C function.
pub unsafe fn sendmmsg(t: Target<'_>, msgs: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    let mut done: c_int = 0;
    while (done as usize) < (count as usize).min(MAX_VECTOR) {
        // SAFETY: within the caller's array.
        let m = unsafe { &mut *msgs.add(done as usize) };
        // SAFETY: as the C function.
        let n = unsafe { sendmsg(t, &m.msg_hdr, flags) };
        if n < 0 {
            return if done > 0 { done } else { -1 };
        }
        m.msg_len = n as c_uint;
        done += 1;
        // SAFETY: as the C function.
        let wanted = unsafe { headers_vector(&m.msg_hdr) }.map_or(0, |iov| iov.iter().map(|v| v.iov_len).sum());
        if (n as usize) < wanted {
            break;
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_refused_as_the_kernel_refuses_them() {
        let mut byte = 0u8;
        let base: *mut c_void = (&raw mut byte).cast();
        let v = |len| iovec { iov_base: base, iov_len: len };
        let null = |len| iovec { iov_base: std::ptr::null_mut(), iov_len: len };
        assert!(matches!(check(&[v(1), v(0), null(0)]), Ok(iov) if iov.len() == 3));
        assert!(matches!(check(&[v(1), v(usize::MAX)]), Err(libc::EINVAL)));
        assert!(matches!(check(&[v(1), null(1)]), Err(libc::EFAULT)));
        let at = |first: usize, len| iovec { iov_base: first as *mut c_void, iov_len: len };
        assert!(faults(&at(8, 1)) && faults(&at(usize::MAX, 1)) && faults(&at(BEYOND, 1)) && faults(&at(4096, BEYOND)));
        assert!(
            !faults(&at(8, 0)) && !faults(&at(usize::MAX, 0)) && !faults(&at(4096, 1)) && !faults(&at(BEYOND - 1, 1))
        );
        assert!(matches!(check(&[v(1), v(MAX_BYTES), v(1)]), Ok(iov) if iov.len() == 1));
        assert!(matches!(check(&[v(MAX_BYTES + 1), v(1)]), Ok(iov) if iov.len() == 1));
        let many = vec![v(1); MAX_VECTOR + 1];
        // SAFETY: the array has that many elements; null is refused before it is used.
        unsafe {
            assert!(matches!(vector(many.as_ptr(), many.len(), libc::EMSGSIZE), Err(libc::EMSGSIZE)));
            assert!(matches!(vector(many.as_ptr(), many.len() - 1, libc::EINVAL), Ok(iov) if iov.len() == MAX_VECTOR));
            assert!(matches!(vector(std::ptr::null(), 1, libc::EINVAL), Err(libc::EFAULT)));
            assert!(matches!(vector(std::ptr::null(), 0, libc::EINVAL), Ok([])));
        }
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
