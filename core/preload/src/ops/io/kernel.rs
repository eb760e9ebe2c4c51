//! The real calls, and the kernel's state of a connection.

use std::ffi::c_int;

use libc::{iovec, msghdr};

use crate::os::immediate;
use crate::os::poll;
use crate::os::real;
use crate::os::sockopt::{self, SIOCOUTQNSD, SK_MEMINFO_SNDBUF, SK_MEMINFO_WMEM_QUEUED};
use crate::runtime::in_kernel;

/// Whether the kernel has an error to report, or has ended the connection.
#[cold]
pub(super) fn is_broken(fd: c_int) -> bool {
    poll::ready_events(fd, 0) != 0
}

/// Whether bytes wait because the peer's kernel, or the network, has no room for them.
pub(super) fn is_full(fd: c_int) -> bool {
    let mut n: c_int = 0;
    // SAFETY: SIOCOUTQNSD writes an int.
    unsafe { real::ioctl(fd, SIOCOUTQNSD, (&raw mut n).cast()) == 0 && n > 0 }
}

/// Whether the kernel takes bytes now.
pub(super) fn has_room(fd: c_int) -> bool {
    poll::ready_events(fd, libc::POLLOUT) != 0
}

/// Bytes that the peer's kernel has not acknowledged.
pub(super) fn unacknowledged(fd: c_int) -> c_int {
    let mut n: c_int = 0;
    // SAFETY: SIOCOUTQ writes an int.
    unsafe { real::ioctl(fd, libc::TIOCOUTQ, (&raw mut n).cast()) };
    n
}

/// Whether the kernel takes a write that does not block, in part at least. `poll` reports room only when a third of the buffer
/// is free.
pub(super) fn has_room_for_some(fd: c_int) -> bool {
    sockopt::memory(fd).is_some_and(|used| used[SK_MEMINFO_WMEM_QUEUED] < used[SK_MEMINFO_SNDBUF])
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
pub(super) unsafe fn kernel_recv(fd: c_int, iov: &[iovec], flags: c_int) -> isize {
    match iov {
        // SAFETY: the caller's promise.
        [one] if flags & libc::MSG_DONTWAIT != 0 => unsafe {
            return immediate::recv(fd, one.iov_base, one.iov_len, flags);
        },
        // SAFETY: the caller's promise.
        [one] => return unsafe { real::recv(fd, one.iov_base, one.iov_len, flags) },
        _ => {}
    }
    let mut msg = header(iov);
    // SAFETY: the caller's promise; the header is valid.
    unsafe { real::recvmsg(fd, &mut msg, flags) }
}

/// # Safety
/// `iov` describes readable memory.
pub(super) unsafe fn kernel_send(fd: c_int, iov: &[iovec], flags: c_int) -> isize {
    match iov {
        [one] if flags & libc::MSG_DONTWAIT != 0 => {
            // SAFETY: the caller's promise.
            return in_kernel(|| unsafe { immediate::send(fd, one.iov_base, one.iov_len, flags) });
        }
        // SAFETY: the caller's promise.
        [one] => return in_kernel(|| unsafe { real::send(fd, one.iov_base, one.iov_len, flags) }),
        _ => {}
    }
    let msg = header(iov);
    // SAFETY: the caller's promise; the header is valid.
    in_kernel(|| unsafe { real::sendmsg(fd, &msg, flags) })
}

/// Receives at most `limit` bytes into the vector from its `skip`-th byte on.
///
/// # Safety
/// `iov` describes writable memory.
pub(super) unsafe fn kernel_recv_limited(fd: c_int, iov: &[iovec], skip: usize, limit: u64, flags: c_int) -> isize {
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
pub(super) unsafe fn kernel_send_skipping(fd: c_int, iov: &[iovec], skip: usize, flags: c_int) -> isize {
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
