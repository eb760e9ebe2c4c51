//! Sleeping on a word without a descriptor, and without a lock that a forked child would find held.

use std::ffi::c_long;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use super::clock::timespec;
use super::real;

/// Sleeps until woken, if the word still is `seen`, or for so long (`None`: for ever).
pub fn wait(word: &AtomicU32, seen: u32, patience: Option<Duration>) {
    let time = patience.map(timespec);
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let call = c_long::from(libc::FUTEX_WAIT);
    // SAFETY: a word that lives on, and null or a valid time.
    unsafe { real::syscall(libc::SYS_futex, word.as_ptr() as _, call, seen.into(), time as _, 0, 0) };
}

/// Wakes all threads that sleep on the word. Safe in a signal handler.
pub fn wake_all(word: &AtomicU32) {
    let call = c_long::from(libc::FUTEX_WAKE);
    // SAFETY: the address is only used as a key.
    unsafe { real::syscall(libc::SYS_futex, word.as_ptr() as _, call, c_long::from(i32::MAX), 0, 0, 0) };
}
