//! Calls that take rights from the program, and so from this library. See [`sandbox`](crate::sandbox).
//!
//! `prctl` is variadic in C, with at most four arguments after the first; see [`descriptors`](super::descriptors) for why
//! fixed parameters receive them. `seccomp` has no function in the C library: it comes by [`syscall`](super::syscall).

use std::ffi::{c_int, c_ulong};

use super::hooks;
use crate::os::real;
use crate::sandbox;

hooks! {
    fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
        sandbox::before_prctl(option, a, b);
        real::prctl(option, a, b, c, d)
    }

    fn unshare(flags: c_int) -> c_int {
        sandbox::before_unshare(flags);
        real::unshare(flags)
    }

    fn setns(fd: c_int, kind: c_int) -> c_int {
        sandbox::before_setns(fd, kind);
        real::setns(fd, kind)
    }
}
