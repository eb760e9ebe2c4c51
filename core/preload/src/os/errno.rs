//! The thread's errno.

use std::ffi::c_int;

/// The thread's errno.
pub fn errno() -> c_int {
    // SAFETY: always a valid thread-local.
    unsafe { *libc::__errno_location() }
}

/// Sets the thread's errno.
pub fn set_errno(e: c_int) {
    // SAFETY: always a valid thread-local.
    unsafe { *libc::__errno_location() = e }
}

/// Sets errno and returns -1, as C calls fail.
pub fn fail(e: c_int) -> isize {
    set_errno(e);
    -1
}
