//! The structures of liburing, as far as the library reads them.

use std::ffi::{c_int, c_uint, c_void};

use linux_raw_sys::io_uring::io_uring_sqe;

/// `struct io_uring`, as far as the library needs it.
#[repr(C)]
pub struct IoUring {
    pub(crate) submissions: SubmissionQueue,
    pub(crate) completions: CompletionQueue,
    pub(crate) flags: c_uint,
    pub(crate) fd: c_int,
    pub(crate) features: c_uint,
}

#[repr(C)]
pub(crate) struct SubmissionQueue {
    /// Head, tail, mask, number of entries, flags, number of those dropped, order.
    pub(crate) shared: [*mut c_uint; 7],
    pub(crate) entries: *mut io_uring_sqe,
    /// Submissions from here on have not been submitted.
    pub(crate) head: c_uint,
    /// The program has got the submissions before this to fill them in.
    pub(crate) tail: c_uint,
    pub(crate) mapping_len: usize,
    pub(crate) mapping: *mut c_void,
    /// In version 2.2 and later: the mask, and the number of entries.
    pub(crate) padding: [c_uint; 4],
}

#[repr(C)]
pub(crate) struct CompletionQueue {
    pub(crate) shared: [*mut c_uint; 6],
    pub(crate) entries: *mut c_void,
    pub(crate) mapping_len: usize,
    pub(crate) mapping: *mut c_void,
    pub(crate) padding: [c_uint; 4],
}
