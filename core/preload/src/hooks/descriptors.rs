//! Descriptors: closing, copying, flags.
//!
//! `fcntl` and `ioctl` are variadic in C, with at most one argument after the fixed ones. On x86-64 and aarch64 Linux a
//! variadic integer or pointer argument travels in the same register as a fixed one (%rdx, x2), so a definition with a
//! fixed third parameter receives it; when the caller passes none, it receives garbage that the command does not use.

use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};

use super::{entry_or, hooks};
use crate::ops::{descriptors, ending, options};
use crate::os::real;

/// For `netacc-loader`, whose programs read and write other descriptors without the library: a bit for each of the first
/// descriptors, and their number. The others are all the library's to handle.
///
/// # Safety
/// `count` is writable.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn netacc_descriptors(count: *mut usize) -> *const std::sync::atomic::AtomicU64 {
    // SAFETY: the caller's promise.
    unsafe { *count = crate::table::MOVED_FDS };
    crate::table::MOVED.as_ptr()
}

hooks! {
    fn close(fd: c_int) -> c_int {
        ending::close(fd)
    }

    fn __close(fd: c_int) -> c_int {
        ending::close(fd)
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        descriptors::close_range(first, last, flags)
    }

    fn closefrom(first: c_int) -> () {
        descriptors::closefrom(first)
    }

    fn dup(fd: c_int) -> c_int {
        descriptors::dup(fd)
    }

    fn dup2(from: c_int, to: c_int) -> c_int {
        descriptors::dup2(from, to)
    }

    fn __dup2(from: c_int, to: c_int) -> c_int {
        descriptors::dup2(from, to)
    }

    fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
        descriptors::dup3(from, to, flags)
    }

    fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
        entry_or!(fd, descriptors::fcntl_of_others(fd, command, argument), |entry| options::fcntl(entry, fd, command, argument))
    }

    fn __fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
        fcntl(fd, command, argument)
    }

    fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int {
        fcntl(fd, command, argument)
    }

    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
        entry_or!(fd, real::ioctl(fd, request, argument), |entry| options::ioctl(entry, fd, request, argument))
    }
}
