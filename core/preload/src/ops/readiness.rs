//! `epoll_create1`, and the arguments of `poll` and `epoll_wait` and their relatives. `None` of a function for these: nothing of the call is ours,
//! the caller makes the kernel's.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::time::Duration;

use libc::{epoll_event, nfds_t, pollfd, sigset_t, timespec};

use crate::control::shortage;
use crate::epoll::{self, Epoll};
use crate::ops::ending;
use crate::os::deferral::Busy;
use crate::os::errno::fail;
use crate::os::poll::{has_epoll_pwait2, KERNEL_MASK_LEN};
use crate::os::{access, actions, confinement, inside, limits, real};
use crate::table::{self, Entry};
use crate::wait;

/// A timespec as a duration; `None` if it is not valid.
pub fn duration(ts: &timespec) -> Option<Duration> {
    let nanos = u32::try_from(ts.tv_nsec).ok().filter(|n| *n < 1_000_000_000)?;
    Some(Duration::new(u64::try_from(ts.tv_sec).ok()?, nanos))
}

/// A count of milliseconds as a time limit; negative is none.
pub fn millis(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// The descriptors of a call, if any is ours. The kernel reports errors in the array.
fn ours<'a>(fds: *mut pollfd, count: nfds_t) -> Option<&'a [pollfd]> {
    // The kernel's argument is narrower.
    let count = count as c_uint as usize;
    let is_absurd = count == 0 || count > limits::MAX_FDS;
    if is_absurd || !actions::is_installed() || !access::is_readable(fds, count) {
        return None;
    }
    // SAFETY: readable, and any bytes are elements.
    let fds = unsafe { std::slice::from_raw_parts(fds, count) };
    wait::any_ours(fds).then_some(fds)
}

/// Polls into the program's array. As the kernel does, it finds out only at the end that it cannot write there.
///
/// # Safety
/// The array is the caller's to write, if it is there.
unsafe fn poll_into(fds: &[pollfd], limit: Option<Duration>, mask: *const sigset_t) -> c_int {
    const FIRST: usize = std::mem::offset_of!(pollfd, revents);
    let (start, len) = (fds.as_ptr().cast_mut(), size_of_val(fds) - FIRST);
    // SAFETY: the caller's promise.
    if unsafe { access::writable(start.cast::<u8>().add(FIRST), len) } == len {
        // SAFETY: writable.
        return wait::poll(wait::Call::Poll, unsafe { std::slice::from_raw_parts_mut(start, fds.len()) }, limit, mask);
    }
    match wait::poll(wait::Call::Poll, &mut fds.to_vec(), limit, mask) {
        n if n < 0 => n,
        _ => fail(libc::EFAULT) as c_int,
    }
}

/// Whether the kernel would take a signal mask.
pub(super) fn is_mask(mask: *const sigset_t) -> bool {
    mask.is_null() || access::is_readable(mask.cast::<u8>(), KERNEL_MASK_LEN)
}

/// `poll`.
///
/// # Safety
/// As the C function.
#[inline]
pub unsafe fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> Option<c_int> {
    let _busy = Busy::enter();
    let fds = ours(fds, count)?;
    // SAFETY: as the C function.
    Some(unsafe { poll_into(fds, millis(timeout), std::ptr::null()) })
}

/// `ppoll`.
///
/// # Safety
/// As the C function.
#[inline]
pub unsafe fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> Option<c_int> {
    let _busy = Busy::enter();
    let fds = ours(fds, count)?;
    let limit = time_limit(timeout).ok()?;
    // SAFETY: as the C function.
    is_mask(mask).then(|| unsafe { poll_into(fds, limit, mask) })
}

/// The time limit at an address of the program's, or the kernel's error.
pub(crate) fn time_limit(timeout: *const timespec) -> Result<Option<Duration>, c_int> {
    if timeout.is_null() {
        return Ok(None);
    }
    // SAFETY: any bytes are a time.
    let time = unsafe { access::read(timeout) }.ok_or(libc::EFAULT)?;
    duration(&time).map(Some).ok_or(libc::EINVAL)
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
    if !table::is_ours(epfd) {
        return None;
    }
    let _busy = Busy::enter();
    let guard = table::find(epfd);
    let entry = guard.as_deref()?;
    if !matches!(**entry, Entry::Epoll(_)) || !is_mask(mask) {
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
    let limit = time_limit(timeout).ok()?;
    if !has_epoll_pwait2() {
        return None;
    }
    // SAFETY: as the C function.
    unsafe { epoll_wait(epfd, events, limit, mask) }
}

/// `epoll_create1`.
pub fn epoll_create1(flags: c_int) -> c_int {
    let fd = shortage::opening_fd(|| {
        // SAFETY: no pointers.
        unsafe { real::epoll_create1(flags) }
    });
    if fd >= 0 && !inside::is_inside() && !confinement::leaves_new_sockets() {
        // The number's earlier file, if any, was closed unseen.
        ending::forget(fd);
        table::insert(fd, Arc::new(Entry::Epoll(Box::new(Epoll::new(fd)))));
    }
    fd
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
