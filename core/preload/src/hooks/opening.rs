//! Calls that open a descriptor which is never ours. They are interposed for two reasons: if the program has none left, the
//! library gives back its own (see [`shortage`](crate::control::shortage)); and the program is given the lowest free numbers
//! also while the library makes descriptors (see [`netacc_descriptors`]).
//!
//! `open` and its like are variadic in C; see [`descriptors`](super::descriptors) for why fixed parameters receive the
//! arguments. Calls within the C library that open descriptors (`mkstemp`, `getaddrinfo`, `fork` with `exec` in
//! `popen`) are not seen.

use std::ffi::{c_char, c_int, c_uint};

use libc::{sigset_t, DIR, FILE};

use super::hooks;
use crate::control::shortage::{opening, opening_fd, opening_pair};
use crate::os::real;

hooks! {
    fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        opening_fd(|| real::open(path, flags, mode))
    }

    fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        opening_fd(|| real::open64(path, flags, mode))
    }

    fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        opening_fd(|| real::openat(dir, path, flags, mode))
    }

    fn openat64(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        opening_fd(|| real::openat64(dir, path, flags, mode))
    }

    fn __open_2(path: *const c_char, flags: c_int) -> c_int {
        opening_fd(|| real::__open_2(path, flags))
    }

    fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
        opening_fd(|| real::__open64_2(path, flags))
    }

    fn creat(path: *const c_char, mode: c_uint) -> c_int {
        opening_fd(|| real::creat(path, mode))
    }

    fn creat64(path: *const c_char, mode: c_uint) -> c_int {
        opening_fd(|| real::creat64(path, mode))
    }

    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
        opening(<*mut FILE>::is_null, || real::fopen(path, mode))
    }

    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
        opening(<*mut FILE>::is_null, || real::fopen64(path, mode))
    }

    fn opendir(path: *const c_char) -> *mut DIR {
        opening(<*mut DIR>::is_null, || real::opendir(path))
    }

    fn pipe(fds: *mut c_int) -> c_int {
        opening_pair(fds, || real::pipe(fds))
    }

    fn pipe2(fds: *mut c_int, flags: c_int) -> c_int {
        opening_pair(fds, || real::pipe2(fds, flags))
    }

    fn socketpair(domain: c_int, kind: c_int, protocol: c_int, fds: *mut c_int) -> c_int {
        opening_pair(fds, || real::socketpair(domain, kind, protocol, fds))
    }

    fn eventfd(count: c_uint, flags: c_int) -> c_int {
        opening_fd(|| real::eventfd(count, flags))
    }

    fn timerfd_create(clock: c_int, flags: c_int) -> c_int {
        opening_fd(|| real::timerfd_create(clock, flags))
    }

    fn signalfd(fd: c_int, mask: *const sigset_t, flags: c_int) -> c_int {
        if fd >= 0 {
            // Changes that one, which keeps its number.
            return real::signalfd(fd, mask, flags);
        }
        opening_fd(|| real::signalfd(fd, mask, flags))
    }

    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int {
        opening_fd(|| real::memfd_create(name, flags))
    }

    fn inotify_init() -> c_int {
        opening_fd(|| real::inotify_init())
    }

    fn inotify_init1(flags: c_int) -> c_int {
        opening_fd(|| real::inotify_init1(flags))
    }

    fn tmpfile() -> *mut FILE {
        opening(<*mut FILE>::is_null, || real::tmpfile())
    }
}
