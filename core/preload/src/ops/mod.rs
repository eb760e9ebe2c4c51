//! What each call does for a descriptor of ours.

pub mod aside;
pub mod connection;
pub mod control;
pub mod descriptors;
pub mod ending;
pub mod environment;
pub mod files;
pub mod io;
pub mod liburing;
pub mod message;
pub mod options;
pub mod process;
pub mod raw;
pub mod readiness;
pub mod rights;
pub mod select;
pub mod signals;
pub mod spawn_actions;
pub mod state;
pub mod stdio;
pub mod waiting;

pub use crate::ops::errno::{errno, fail, set_errno};

mod errno {
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
}
