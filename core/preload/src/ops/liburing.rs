//! Rings of liburing. Its functions are interposed, because its system calls cannot be: see
//! [`ring::liburing`](crate::ring::liburing).

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use linux_raw_sys::io_uring::io_uring_params;

use crate::ops::aside::{apply_submissions, before_unseen_ring, leave_files_to_ring, take_in_ring};
use crate::ops::ending;
use crate::os::inside;
use crate::os::liburing::IoUring;
use crate::os::limits;
use crate::os::real;
use crate::ring::liburing::{is_readable, is_supported};
use crate::ring::{foreign, Ring};
use crate::table::{self, Entry};

/// The result of functions of liburing that would make or enter a ring that the policy forbids.
pub const REFUSED: c_int = -libc::ENOSYS;

/// After `io_uring_queue_init` in its variants, which have returned `made`.
///
/// # Safety
/// `ring` and `parameters` are as the function has left them.
pub unsafe fn made(ring: *mut IoUring, parameters: *const io_uring_params, made: c_int) -> c_int {
    if made < 0 || inside::is_inside() {
        return made;
    }
    // SAFETY: liburing has just filled them in.
    let (fd, parameters) = unsafe { ((*ring).fd(), &*parameters) };
    if is_readable(parameters) {
        if (0..limits::MAX_FDS as c_int).contains(&fd) {
            foreign::record_seen(fd);
            let ring = Ring::map(fd, parameters).unwrap_or(Ring::OfLibrary);
            table::insert(fd, Arc::new(Entry::Ring(ring)));
        }
    } else if !before_unseen_ring() {
        // SAFETY: the program does not have the number yet.
        unsafe { real::io_uring_queue_exit(ring) };
        return REFUSED;
    }
    made
}

/// After `io_uring_setup` of liburing, by which a program makes a ring that it enters itself.
///
/// # Safety
/// `parameters` are as the function has left them.
pub unsafe fn set_up(parameters: *const io_uring_params, fd: c_int) -> c_int {
    // SAFETY: the kernel has just filled them in.
    if fd < 0 || inside::is_inside() || take_in_ring(fd, unsafe { &*parameters }) {
        return fd;
    }
    // SAFETY: the program does not have the number yet.
    unsafe { real::close(fd) };
    REFUSED
}

/// Before liburing hands submissions to the kernel. Whether it may.
///
/// # Safety
/// `ring` is null or a ring of liburing's that the program may submit to.
pub unsafe fn before_submit(ring: *const IoUring) -> bool {
    // SAFETY: the caller's promise.
    match unsafe { ring.as_ref() } {
        // SAFETY: as above.
        Some(ring) if is_supported() => apply_submissions(unsafe { ring.pending() }),
        // All connections are in the kernel.
        _ => true,
    }
}

/// Before liburing waits with a timeout, or without one if `timeout` is null. Whether it may.
///
/// # Safety
/// `ring` is null or a ring of liburing's that the program may submit to, if waiting submits.
pub unsafe fn before_wait(ring: *const IoUring, timeout: *const c_void) -> bool {
    // SAFETY: the caller's promise.
    let submits =
        !timeout.is_null() && is_supported() && unsafe { ring.as_ref() }.is_some_and(IoUring::submits_to_wait);
    // SAFETY: as above.
    !submits || unsafe { before_submit(ring) }
}

/// Before descriptors go into the ring's table of files.
///
/// # Safety
/// `files` is null or has `count` elements.
pub unsafe fn before_files(files: *const c_int, count: c_uint) {
    // SAFETY: the caller's promise.
    unsafe { leave_files_to_ring(files, count) };
}

/// Before liburing closes the ring's descriptor.
///
/// # Safety
/// `ring` is null or a ring of liburing's.
pub unsafe fn before_close(ring: *const IoUring) {
    // SAFETY: the caller's promise.
    let Some(ring) = (unsafe { ring.as_ref() }).filter(|_| is_supported()) else { return };
    if matches!(table::get_full(ring.fd()).as_deref(), Some(Entry::Ring(_))) {
        ending::forget(ring.fd());
    }
}

/// After a ring has got another queue: the old one is not in use any more.
///
/// # Safety
/// As [`before_close`].
pub unsafe fn resized(ring: *const IoUring) {
    // SAFETY: the caller's promise.
    let Some(ring) = (unsafe { ring.as_ref() }).filter(|_| is_supported()) else { return };
    if matches!(table::get_full(ring.fd()).as_deref(), Some(Entry::Ring(_))) {
        table::insert(ring.fd(), Arc::new(Entry::Ring(Ring::OfLibrary)));
    }
}
