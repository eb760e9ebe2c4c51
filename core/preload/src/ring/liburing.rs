//! The structure in which liburing, whose system calls the library does not see, keeps a ring.
//!
//! A program fills submissions in by inline functions of liburing's header and has them submitted by functions of the library.
//! These can be interposed, and before they run the submissions are still the program's: also those of a ring whose
//! submissions the kernel takes by itself (`SQPOLL`).
//!
//! Invariants: the beginning of the structure is the same in all versions of liburing, because the inline functions are
//! compiled into programs. The rest of it is as declared
//! here since version 2.1: see [`is_supported`].

use std::ffi::c_int;
use std::ptr::NonNull;

use linux_raw_sys::io_uring as uring;
use linux_raw_sys::io_uring::io_uring_params;

use super::{Submission, LINKED, VISIBLE};
use crate::os::liburing::IoUring;
use crate::os::real::Symbol;

/// Properties of a ring of liburing's whose submissions can be read.
const READABLE: u32 = VISIBLE
    | uring::IORING_SETUP_IOPOLL
    | uring::IORING_SETUP_SQPOLL
    | uring::IORING_SETUP_SQ_AFF
    | uring::IORING_SETUP_NO_MMAP
    | uring::IORING_SETUP_REGISTERED_FD_ONLY
    | uring::IORING_SETUP_HYBRID_IOPOLL;

/// Whether the structure is as declared here: this is not certain in versions of liburing before 2.1.
pub fn is_supported() -> bool {
    static ONLY_SINCE_2_1: Symbol = Symbol::new(c"io_uring_register_iowq_max_workers");
    !ONLY_SINCE_2_1.address().is_null()
}

/// Whether the submissions of a ring that was made with these parameters can be read.
pub fn is_readable(made: &io_uring_params) -> bool {
    made.flags & !READABLE == 0 && is_supported()
}

impl IoUring {
    /// The ring's descriptor; negative if it has none.
    pub fn fd(&self) -> c_int {
        self.fd
    }

    /// Whether waiting with a timeout submits: on kernels that take the timeout only as an operation of its own. On others a
    /// thread may wait while another fills submissions in.
    pub fn submits_to_wait(&self) -> bool {
        self.features & uring::IORING_FEAT_EXT_ARG == 0
    }

    /// The submissions that liburing would pass to the kernel now.
    ///
    /// # Safety
    /// It is a ring that liburing has made, whose submissions no other thread fills in or submits meanwhile: liburing demands
    /// the same.
    pub unsafe fn pending(&self) -> impl Iterator<Item = Submission> {
        let queue = &self.submissions;
        let entries = NonNull::new(queue.entries);
        // SAFETY: where liburing keeps the ring's mask, in memory that is mapped as long as the ring exists.
        let mask = NonNull::new(queue.shared[2]).map_or(0, |mask| unsafe { mask.as_ptr().read() });
        let shift = u32::from(self.flags & uring::IORING_SETUP_SQE128 != 0);
        let (head, count) = (queue.head, queue.tail.wrapping_sub(queue.head).min(mask.saturating_add(1)));
        let mut follows = false;
        entries.into_iter().flat_map(move |entries| (0..count).map(move |i| (entries, i))).map(move |(entries, i)| {
            let index = (head.wrapping_add(i) & mask) as usize;
            // SAFETY: the mask keeps it within the array, whose elements take twice the room with `SQE128`.
            let at = unsafe { entries.add(index << shift) };
            let submission = Submission { at, follows };
            follows = submission.get().flags & LINKED != 0;
            submission
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Does;
    use linux_raw_sys::io_uring::io_uring_sqe;
    use std::mem::offset_of;

    #[test]
    fn the_structure_matches_liburing() {
        // As offsetof has it with liburing 2.3 on a machine of 64 bits.
        assert_eq!(offset_of!(IoUring, submissions.entries), 56);
        assert_eq!(offset_of!(IoUring, submissions.head), 64);
        assert_eq!(offset_of!(IoUring, completions), 104);
        assert_eq!(offset_of!(IoUring, flags), 192);
        assert_eq!(offset_of!(IoUring, fd), 196);
        assert_eq!(offset_of!(IoUring, features), 200);
    }

    #[test]
    fn submissions_are_read_around_the_end_of_the_queue() {
        // SAFETY: all zeros are valid for both.
        let (mut ring, mut entries): (IoUring, [io_uring_sqe; 4]) = unsafe { std::mem::zeroed() };
        // SAFETY: a ring without entries has no submissions.
        assert_eq!(unsafe { ring.pending() }.count(), 0);
        for (fd, entry) in entries.iter_mut().enumerate() {
            (entry.opcode, entry.fd) = (uring::io_uring_op::IORING_OP_RECV as u8, fd as c_int);
        }
        let mut mask = 3;
        ring.submissions.shared[2] = &mut mask;
        ring.submissions.entries = entries.as_mut_ptr();
        (ring.submissions.head, ring.submissions.tail) = (u32::MAX, 1);
        // SAFETY: the arrays live on, and no other code uses them.
        let found: Vec<Does> = unsafe { ring.pending() }.map(|submission| submission.does()).collect();
        assert_eq!(found, [Does::Use(Some(3), None), Does::Use(Some(0), None)]);
        ring.submissions.tail = 1000;
        // SAFETY: as above.
        assert_eq!(unsafe { ring.pending() }.count(), 4, "never more than there are");
    }
}
