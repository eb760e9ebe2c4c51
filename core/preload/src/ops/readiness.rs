//! Arguments of `poll` and `epoll_wait` and their relatives. `None` of a function here: nothing of the call is ours,
//! the caller makes the kernel's.

use std::ffi::c_int;
use std::time::Duration;

use libc::{epoll_event, nfds_t, pollfd, sigset_t, timespec};

use crate::table::{self, Entry};
use crate::{epoll, wait};

/// A timespec as a duration; `None` if it is not valid.
pub fn duration(ts: &timespec) -> Option<Duration> {
    let nanos = u32::try_from(ts.tv_nsec).ok().filter(|n| *n < 1_000_000_000)?;
    Some(Duration::new(u64::try_from(ts.tv_sec).ok()?, nanos))
}

/// A count of milliseconds as a time limit; negative is none.
pub fn millis(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// # Safety
/// `fds` is null or has `count` elements.
unsafe fn ours<'a>(fds: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    // More than there can be descriptors: the kernel says what is wrong with it.
    if fds.is_null() || count == 0 || count > table::MAX_FDS as nfds_t {
        return None;
    }
    // SAFETY: not null, and the caller's promise.
    let fds = unsafe { std::slice::from_raw_parts_mut(fds, count as usize) };
    wait::any_ours(fds).then_some(fds)
}

/// `poll`.
///
/// # Safety
/// As the C function.
#[inline]
pub unsafe fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> Option<c_int> {
    // SAFETY: as the C function.
    let fds = unsafe { ours(fds, count) }?;
    Some(wait::poll(fds, millis(timeout), std::ptr::null()))
}

/// `ppoll`.
///
/// # Safety
/// As the C function.
#[inline]
pub unsafe fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> Option<c_int> {
    // SAFETY: as the C function.
    let fds = unsafe { ours(fds, count) }?;
    // SAFETY: as the C function.
    let limit = unsafe { limit(timeout) }?;
    Some(wait::poll(fds, limit, mask))
}

/// A time limit; `None` if it is not valid.
///
/// # Safety
/// `timeout` is null or valid.
unsafe fn limit(timeout: *const timespec) -> Option<Option<Duration>> {
    // SAFETY: the caller's promise.
    match unsafe { timeout.as_ref() } {
        None => Some(None),
        Some(ts) => duration(ts).map(Some),
    }
}

/// Where `epoll_wait` and its relatives put events.
pub type Events = (*mut epoll_event, c_int);

/// `epoll_wait` and `epoll_pwait`.
///
/// # Safety
/// As the C function.
#[inline]
pub unsafe fn epoll_wait(
    epfd: c_int,
    events: Events,
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Option<c_int> {
    let guard = table::get(epfd);
    let entry = guard.as_deref().and_then(Option::as_ref)?;
    if !matches!(**entry, Entry::Epoll(_)) {
        return None;
    }
    // SAFETY: as the C function.
    Some(unsafe { epoll::wait(entry, epfd, events.0, events.1, timeout, mask) })
}

/// `epoll_pwait2`.
///
/// # Safety
/// As the C function.
#[inline]
pub unsafe fn epoll_pwait2(
    epfd: c_int,
    events: Events,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> Option<c_int> {
    // SAFETY: as the C function.
    let limit = unsafe { limit(timeout) }?;
    // SAFETY: as the C function.
    unsafe { epoll_wait(epfd, events, limit, mask) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_checked() {
        let ts = |tv_sec, tv_nsec| timespec { tv_sec, tv_nsec };
        assert_eq!(duration(&ts(1, 2)), Some(Duration::new(1, 2)));
        assert_eq!(duration(&ts(-1, 0)), None);
        assert_eq!(duration(&ts(0, 1_000_000_000)), None);
        assert_eq!(millis(-1), None);
        assert_eq!(millis(0), Some(Duration::ZERO));
    }

    #[test]
    fn absurd_arguments_are_the_kernels() {
        let mut p = pollfd { fd: 0, events: 0, revents: 0 };
        // SAFETY: an array of that length, or refused before it is used.
        unsafe {
            assert_eq!(poll(std::ptr::null_mut(), 1, 0), None);
            assert_eq!(poll(&mut p, nfds_t::MAX, 0), None);
            assert_eq!(poll(&mut p, 1, 0), None);
            assert_eq!(ppoll(&mut p, 1, std::ptr::null(), std::ptr::null()), None);
            assert_eq!(epoll_wait(-1, (std::ptr::null_mut(), 1), None, std::ptr::null()), None);
        }
    }
}
