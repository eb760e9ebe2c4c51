//! Sends and receives that do not wait.
//!
//! The C library's `send` and `recv` are cancellation points. In a process with several threads, and the library has one of its
//! own, that takes two atomic changes a call. A call that does not wait needs no such point beside the one at the beginning of
//! the hook, so it is made by number: unless the functions are those of another preloaded library, which is to see the call.

use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicU8, Ordering};

use libc::{size_t, ssize_t};

use super::real;

/// Whether the next `send` and `recv` are the C library's.
fn is_by_number() -> bool {
    const UNKNOWN: u8 = 0;
    const BY_NUMBER: u8 = 1;
    const BY_NAME: u8 = 2;
    static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);
    match ANSWER.load(Ordering::Relaxed) {
        UNKNOWN => {
            let answer = if real::sends_by_c_library() { BY_NUMBER } else { BY_NAME };
            ANSWER.store(answer, Ordering::Relaxed);
            answer == BY_NUMBER
        }
        answer => answer == BY_NUMBER,
    }
}

/// `send` with MSG_DONTWAIT.
///
/// # Safety
/// As the C function.
#[inline]
pub unsafe fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    debug_assert!(flags & libc::MSG_DONTWAIT != 0);
    if is_by_number() {
        // SAFETY: as the C function.
        return unsafe { call(libc::SYS_sendto, fd, buf, len, flags) };
    }
    // SAFETY: as the C function.
    unsafe { real::send(fd, buf, len, flags) }
}

/// `recv` with MSG_DONTWAIT.
///
/// # Safety
/// As the C function.
#[inline]
pub unsafe fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    debug_assert!(flags & libc::MSG_DONTWAIT != 0);
    if is_by_number() {
        // SAFETY: as the C function.
        return unsafe { call(libc::SYS_recvfrom, fd, buf, len, flags) };
    }
    // SAFETY: as the C function.
    unsafe { real::recv(fd, buf, len, flags) }
}

/// # Safety
/// As the system call, whose address is null.
#[inline]
unsafe fn call(number: c_long, fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe {
        real::syscall(number, c_long::from(fd), buf as c_long, len as c_long, c_long::from(flags), 0, 0) as ssize_t
    }
}
