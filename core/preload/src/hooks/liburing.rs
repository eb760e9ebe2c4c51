//! Functions of liburing that make rings, submit to them, register files with them, or close them. They return errors as
//! negative numbers. See [`ops::liburing`](crate::ops::liburing).
//!
//! The inline functions of its header call no others that submit or register files, and a newer version's others are
//! variants of these.

use std::ffi::{c_int, c_uint, c_ulong, c_void};

use libc::{sigset_t, size_t};
use linux_raw_sys::io_uring::io_uring_params;

use super::hooks;
use crate::ops::aside;
use crate::ops::liburing::{self, REFUSED};
use crate::os::liburing::IoUring;
use crate::os::real;

/// The real function, unless it would submit a forbidden operation.
macro_rules! submit {
    ($ring:expr, $real:expr) => {
        match liburing::before_submit($ring) {
            true => $real,
            false => REFUSED,
        }
    };
}

hooks! {
    fn io_uring_setup(entries: c_uint, parameters: *mut io_uring_params) -> c_int {
        let fd = real::io_uring_setup(entries, parameters);
        liburing::set_up(parameters, fd)
    }

    fn io_uring_queue_init(entries: c_uint, ring: *mut IoUring, flags: c_uint) -> c_int {
        // As liburing does, which does not return the kernel's changes to the flags.
        let mut parameters: io_uring_params = std::mem::zeroed();
        parameters.flags = flags;
        let made = real::io_uring_queue_init_params(entries, ring, &mut parameters);
        liburing::made(ring, &parameters, made)
    }

    fn io_uring_queue_init_params(entries: c_uint, ring: *mut IoUring, parameters: *mut io_uring_params) -> c_int {
        let made = real::io_uring_queue_init_params(entries, ring, parameters);
        liburing::made(ring, parameters, made)
    }

    fn io_uring_queue_init_mem(entries: c_uint, ring: *mut IoUring, parameters: *mut io_uring_params, buffer: *mut c_void, len: size_t) -> c_int {
        let made = real::io_uring_queue_init_mem(entries, ring, parameters, buffer, len);
        liburing::made(ring, parameters, made)
    }

    fn io_uring_queue_exit(ring: *mut IoUring) -> () {
        liburing::before_close(ring);
        real::io_uring_queue_exit(ring);
    }

    fn io_uring_close_ring_fd(ring: *mut IoUring) -> c_int {
        liburing::before_close(ring);
        real::io_uring_close_ring_fd(ring)
    }

    fn io_uring_resize_rings(ring: *mut IoUring, parameters: *mut io_uring_params) -> c_int {
        let done = real::io_uring_resize_rings(ring, parameters);
        liburing::resized(ring);
        done
    }

    fn io_uring_submit(ring: *mut IoUring) -> c_int {
        submit!(ring, real::io_uring_submit(ring))
    }

    fn io_uring_submit_and_wait(ring: *mut IoUring, count: c_uint) -> c_int {
        submit!(ring, real::io_uring_submit_and_wait(ring, count))
    }

    fn io_uring_submit_and_get_events(ring: *mut IoUring) -> c_int {
        submit!(ring, real::io_uring_submit_and_get_events(ring))
    }

    fn io_uring_submit_and_wait_timeout(ring: *mut IoUring, completion: *mut c_void, count: c_uint, timeout: *mut c_void, mask: *mut sigset_t) -> c_int {
        submit!(ring, real::io_uring_submit_and_wait_timeout(ring, completion, count, timeout, mask))
    }

    fn io_uring_submit_and_wait_min_timeout(ring: *mut IoUring, completion: *mut c_void, count: c_uint, timeout: *mut c_void, least: c_uint, mask: *mut sigset_t) -> c_int {
        submit!(ring, real::io_uring_submit_and_wait_min_timeout(ring, completion, count, timeout, least, mask))
    }

    fn io_uring_submit_and_wait_reg(ring: *mut IoUring, completion: *mut c_void, count: c_uint, index: c_int) -> c_int {
        submit!(ring, real::io_uring_submit_and_wait_reg(ring, completion, count, index))
    }

    fn io_uring_wait_cqes(ring: *mut IoUring, completion: *mut c_void, count: c_uint, timeout: *mut c_void, mask: *mut sigset_t) -> c_int {
        if !liburing::before_wait(ring, timeout) {
            return REFUSED;
        }
        real::io_uring_wait_cqes(ring, completion, count, timeout, mask)
    }

    fn io_uring_wait_cqe_timeout(ring: *mut IoUring, completion: *mut c_void, timeout: *mut c_void) -> c_int {
        if !liburing::before_wait(ring, timeout) {
            return REFUSED;
        }
        real::io_uring_wait_cqe_timeout(ring, completion, timeout)
    }

    fn io_uring_enter(fd: c_uint, submits: c_uint, count: c_uint, flags: c_uint, mask: *mut sigset_t) -> c_int {
        if !aside::before_enter(fd as c_int, submits, flags) {
            return REFUSED;
        }
        real::io_uring_enter(fd, submits, count, flags, mask)
    }

    fn io_uring_enter2(fd: c_uint, submits: c_uint, count: c_uint, flags: c_uint, argument: *mut c_void, len: size_t) -> c_int {
        if !aside::before_enter(fd as c_int, submits, flags) {
            return REFUSED;
        }
        real::io_uring_enter2(fd, submits, count, flags, argument, len)
    }

    fn io_uring_register(fd: c_uint, kind: c_uint, argument: *const c_void, count: c_uint) -> c_int {
        if !aside::before_register(fd as c_int, kind, argument, count) {
            return REFUSED;
        }
        real::io_uring_register(fd, kind, argument, count)
    }

    fn io_uring_register_files(ring: *mut IoUring, files: *const c_int, count: c_uint) -> c_int {
        liburing::before_files(files, count);
        real::io_uring_register_files(ring, files, count)
    }

    fn io_uring_register_files_tags(ring: *mut IoUring, files: *const c_int, tags: *const c_ulong, count: c_uint) -> c_int {
        liburing::before_files(files, count);
        real::io_uring_register_files_tags(ring, files, tags, count)
    }

    fn io_uring_register_files_update(ring: *mut IoUring, offset: c_uint, files: *const c_int, count: c_uint) -> c_int {
        liburing::before_files(files, count);
        real::io_uring_register_files_update(ring, offset, files, count)
    }

    fn io_uring_register_files_update_tag(ring: *mut IoUring, offset: c_uint, files: *const c_int, tags: *const c_ulong, count: c_uint) -> c_int {
        liburing::before_files(files, count);
        real::io_uring_register_files_update_tag(ring, offset, files, tags, count)
    }
}
