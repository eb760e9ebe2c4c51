//! How many descriptors the process may have, and how many bytes a call may move.

use std::ffi::c_int;

/// Descriptors at or above this are never ours. An arbitrary bound.
pub const MAX_FDS: usize = 1 << 20;

/// Above the numbers that the process may open now. Those that are open may be higher: the limit can be lowered.
pub fn open_limit() -> c_int {
    soft_limit().min(MAX_FDS as u64) as c_int
}

/// How many descriptors the process may have.
pub fn soft_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the struct is writable.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    limit.rlim_cur
}

/// Most bytes that one call moves (`MAX_RW_COUNT`: INT_MAX rounded down to a page).
pub const MAX_BYTES: usize = 0x7fff_f000;
