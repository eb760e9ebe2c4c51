//! `poll`, `select`, `epoll`.

use std::ffi::c_int;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

use super::bytes::fits;
use super::{entry_or, hooks};
use crate::epoll;
use crate::ops::readiness;
use crate::ops::select::{self, Sets};
use crate::os::errno::fail;
use crate::os::{confinement, real};

hooks! {
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        match readiness::poll(fds, count, timeout) {
            Some(n) => n,
            None => real::poll(fds, count, timeout),
        }
    }

    fn __poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        poll(fds, count, timeout)
    }

    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int {
        fits(count as usize, room / size_of::<pollfd>());
        poll(fds, count, timeout)
    }

    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        match readiness::ppoll(fds, count, timeout, mask) {
            Some(n) => n,
            None => real::ppoll(fds, count, timeout, mask),
        }
    }

    fn __ppoll_chk(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t) -> c_int {
        fits(count as usize, room / size_of::<pollfd>());
        ppoll(fds, count, timeout, mask)
    }

    fn select(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *mut timeval) -> c_int {
        if confinement::is_confined() {
            return real::select(n, r, w, e, timeout);
        }
        let sets = usize::try_from(n).map(|limit| Sets::new(limit, r, w, e));
        match sets.ok().and_then(|sets| select::select(sets, timeout)) {
            Some(count) => count,
            None => real::select(n, r, w, e, timeout),
        }
    }

    fn __select(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *mut timeval) -> c_int {
        select(n, r, w, e, timeout)
    }

    fn pselect(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        if confinement::is_confined() {
            return real::pselect(n, r, w, e, timeout, mask);
        }
        let sets = usize::try_from(n).map(|limit| Sets::new(limit, r, w, e));
        match sets.ok().and_then(|sets| select::pselect(sets, timeout, mask)) {
            Some(count) => count,
            None => real::pselect(n, r, w, e, timeout, mask),
        }
    }

    fn epoll_create(size: c_int) -> c_int {
        if confinement::is_confined() {
            real::epoll_create(size)
        } else if size <= 0 {
            fail(libc::EINVAL) as c_int
        } else {
            readiness::epoll_create1(0)
        }
    }

    fn epoll_create1(flags: c_int) -> c_int {
        readiness::epoll_create1(flags)
    }

    fn epoll_ctl(ep: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        entry_or!(ep, real::epoll_ctl(ep, op, fd, event), |entry| epoll::ctl(entry, ep, op, fd, event))
    }

    fn epoll_wait(ep: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
        match readiness::epoll_wait(ep, (events, max), readiness::millis(timeout), std::ptr::null()) {
            Some(n) => n,
            None => real::epoll_wait(ep, events, max, timeout),
        }
    }

    fn epoll_pwait(ep: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int {
        match readiness::epoll_wait(ep, (events, max), readiness::millis(timeout), mask) {
            Some(n) => n,
            None => real::epoll_pwait(ep, events, max, timeout, mask),
        }
    }

    fn epoll_pwait2(ep: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        match readiness::epoll_pwait2(ep, (events, max), timeout, mask) {
            Some(n) => n,
            None => real::epoll_pwait2(ep, events, max, timeout, mask),
        }
    }
}
