//! System calls by number that differ from the C function of their name: they take the size of a signal mask, and write back
//! how much of the time is left. `None`: nothing of the call is ours, or an argument is wrong. Then the caller makes the
//! kernel's call.

use std::ffi::{c_int, c_uint};

use libc::{fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::ops::readiness::{self, Events};
use crate::ops::select::{self, Sets};
use crate::os::access;
use crate::os::poll::KERNEL_MASK_LEN;

/// A signal mask, and the length that the program gave.
#[derive(Clone, Copy)]
pub struct Mask {
    /// Null for none.
    pub set: *const sigset_t,
    /// The kernel takes one length only.
    pub len: usize,
}

impl Mask {
    fn valid(self) -> Option<*const sigset_t> {
        (self.set.is_null() || self.len == KERNEL_MASK_LEN).then_some(self.set)
    }
}

/// `ppoll`.
///
/// # Safety
/// As the system call.
pub unsafe fn ppoll(fds: *mut pollfd, count: c_uint, timeout: *mut timespec, mask: Mask) -> Option<c_int> {
    let mask = mask.valid()?;
    // SAFETY: as the system call.
    unsafe { select::writing_time_left(timeout, || readiness::ppoll(fds, nfds_t::from(count), timeout, mask)) }
}

/// The three sets of a `select`.
pub type RawSets = [*mut fd_set; 3];

fn sets(n: c_int, [read, write, except]: RawSets) -> Option<Sets> {
    let limit = usize::try_from(n).ok()?;
    // SAFETY: as the system call.
    Some(unsafe { Sets::new(limit, read, write, except) })
}

/// `select`.
///
/// # Safety
/// As the system call.
pub unsafe fn select(n: c_int, of: RawSets, timeout: *mut timeval) -> Option<c_int> {
    // SAFETY: as the system call.
    unsafe { select::select(sets(n, of)?, timeout) }
}

/// `pselect6`, whose last argument is the address of an address and a length.
///
/// # Safety
/// As the system call.
pub unsafe fn pselect6(n: c_int, of: RawSets, timeout: *mut timespec, mask: *const [usize; 2]) -> Option<c_int> {
    let mask = if mask.is_null() {
        std::ptr::null()
    } else {
        // SAFETY: any bytes are two words.
        let [set, len] = unsafe { access::read(mask) }?;
        Mask { set: set as *const sigset_t, len }.valid()?
    };
    let sets = sets(n, of)?;
    // SAFETY: as the system call.
    unsafe { select::writing_time_left(timeout, || select::pselect(sets, timeout, mask)) }
}

/// `epoll_pwait`.
///
/// # Safety
/// As the system call.
pub unsafe fn epoll_pwait(epfd: c_int, events: Events, timeout: c_int, mask: Mask) -> Option<c_int> {
    // SAFETY: as the system call.
    unsafe { readiness::epoll_wait(epfd, events, readiness::millis(timeout), mask.valid()?) }
}

/// `epoll_pwait2`.
///
/// # Safety
/// As the system call.
pub unsafe fn epoll_pwait2(epfd: c_int, events: Events, timeout: *const timespec, mask: Mask) -> Option<c_int> {
    // SAFETY: as the system call.
    unsafe { readiness::epoll_pwait2(epfd, events, timeout, mask.valid()?) }
}
