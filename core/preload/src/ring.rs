//! io_urings whose submissions are read before the kernel takes them: those that the program makes and enters by `syscall`,
//! as libuv does, and those that it submits to by functions of liburing ([`liburing`]).
//!
//! A submission that registers a descriptor with an epoll instance, which is what libuv's rings are for, is executed
//! here, and the kernel gets a submission that does nothing in its place. The library records a submission that closes
//! a descriptor. So such a program's connections may be on links. Any other operation on a connection takes it off its
//! link first, for good: the kernel executes it on the anchor. So does putting it into the table of a ring's files,
//! whose entries submissions name by index ([`Register`]). A ring that never gets a connection costs no connection its
//! link.
//!
//! Invariants: a ring that can submit without a call that the library sees (`SQPOLL`, unless liburing submits), or
//! whose submissions cannot be read, is none of these ([`Ring::map`] refuses it). Positions and lengths are those of
//! the kernel's answer to `io_uring_setup`; a word that the program writes into the ring is never used as an index
//! without a check.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use linux_raw_sys::io_uring as uring;
use linux_raw_sys::io_uring::{
    io_uring_op as Op, io_uring_params, io_uring_register_op as RegisterOp, io_uring_rsrc_register,
    io_uring_rsrc_update, io_uring_rsrc_update2, io_uring_sqe,
};

use crate::os::access;

pub mod foreign;
pub mod liburing;

/// Properties of a ring whose submissions can be read.
const VISIBLE: u32 = uring::IORING_SETUP_CQSIZE
    | uring::IORING_SETUP_CLAMP
    | uring::IORING_SETUP_ATTACH_WQ
    | uring::IORING_SETUP_R_DISABLED
    | uring::IORING_SETUP_SUBMIT_ALL
    | uring::IORING_SETUP_COOP_TASKRUN
    | uring::IORING_SETUP_TASKRUN_FLAG
    | uring::IORING_SETUP_SQE128
    | uring::IORING_SETUP_CQE32
    | uring::IORING_SETUP_SINGLE_ISSUER
    | uring::IORING_SETUP_DEFER_TASKRUN
    | uring::IORING_SETUP_NO_SQARRAY;

/// `IOSQE_*`: bits of a submission's flags.
const FIXED_FILE: u8 = 1 << 0;
const DRAIN: u8 = 1 << 1;
const LINKED: u8 = 1 << 2 | 1 << 3;
const SKIP_SUCCESS: u8 = 1 << 6;

/// `SPLICE_F_FD_IN_FIXED`: the source is an index into the ring's table.
const SPLICE_FROM_TABLE: u32 = 1 << 31;

/// `nop_flags`: the operation's result is the value of `len`. Linux 6.10; before, it is 0.
const INJECT_RESULT: u32 = 1;

/// Memory that the kernel shares.
struct Mapping {
    base: NonNull<c_void>,
    len: usize,
}

// SAFETY: plain memory, unmapped once, by the last owner.
unsafe impl Send for Mapping {}
// SAFETY: as above; its users document their accesses.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(fd: c_int, len: usize, offset: u32) -> Option<Mapping> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping where the kernel likes.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, fd, offset.into()) };
        if base == libc::MAP_FAILED {
            return None;
        }
        Some(Mapping { base: NonNull::new(base)?, len })
    }

    /// The word at a byte offset; `None` if that is outside.
    fn word(&self, at: u32) -> Option<&AtomicU32> {
        let at = at as usize;
        if !at.is_multiple_of(align_of::<AtomicU32>()) || at.checked_add(size_of::<AtomicU32>())? > self.len {
            return None;
        }
        // SAFETY: aligned, within the mapping, and alive as long as it is.
        Some(unsafe { self.base.cast::<u8>().add(at).cast().as_ref() })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and not in use any more.
        unsafe { libc::munmap(self.base.as_ptr(), self.len) };
    }
}

/// A ring whose submissions are seen.
#[derive(Clone)]
pub enum Ring {
    /// The library sees every call that enters it, and its submissions are mapped.
    Mapped(Submissions),
    /// Only functions of liburing submit to it, and find its submissions in the program's own structure.
    OfLibrary,
}

/// The submissions of a ring. A child has them at the same address.
#[derive(Clone)]
pub struct Submissions {
    control: Arc<Mapping>,
    submissions: Arc<Mapping>,
    head: u32,
    tail: u32,
    /// The place of the array with the order of the submissions, unless they are in order themselves.
    array: Option<u32>,
    entries: u32,
    /// Bytes from one submission to the next.
    stride: usize,
}

impl Ring {
    /// A ring that the kernel has just made; `None` if its submissions cannot all be read.
    pub fn map(fd: c_int, made: &io_uring_params) -> Option<Ring> {
        Submissions::map(fd, made).map(Ring::Mapped)
    }
}

impl Submissions {
    fn map(fd: c_int, made: &io_uring_params) -> Option<Submissions> {
        if made.flags & !VISIBLE != 0 || !made.sq_entries.is_power_of_two() {
            return None;
        }
        let stride = size_of::<io_uring_sqe>() << u32::from(made.flags & uring::IORING_SETUP_SQE128 != 0);
        let word = size_of::<u32>();
        let array = (made.flags & uring::IORING_SETUP_NO_SQARRAY == 0).then_some(made.sq_off.array);
        let control = made.sq_off.head.max(made.sq_off.tail) as usize + word;
        let control = control.max(array.map_or(0, |at| at as usize + made.sq_entries as usize * word));
        Some(Submissions {
            control: Arc::new(Mapping::new(fd, control, uring::IORING_OFF_SQ_RING)?),
            submissions: Arc::new(Mapping::new(fd, made.sq_entries as usize * stride, uring::IORING_OFF_SQES)?),
            head: made.sq_off.head,
            tail: made.sq_off.tail,
            array,
            entries: made.sq_entries,
            stride,
        })
    }

    /// The submissions that the kernel would take next, `most` at most.
    pub fn pending(&self, most: u32) -> impl Iterator<Item = Submission> + '_ {
        let word = |at| self.control.word(at).map_or(0, |word| word.load(Ordering::Acquire));
        let head = word(self.head);
        let count = word(self.tail).wrapping_sub(head).min(most).min(self.entries);
        let mut follows = false;
        (0..count).filter_map(move |i| {
            let position = head.wrapping_add(i) & (self.entries - 1);
            let index = match self.array {
                Some(array) => self.control.word(array + 4 * position)?.load(Ordering::Relaxed),
                None => position,
            };
            // The kernel drops one that is out of range.
            let at = (index < self.entries).then_some(index as usize * self.stride)?;
            // SAFETY: within the mapping, and aligned as it begins a page.
            let at = unsafe { self.submissions.base.cast::<u8>().add(at).cast::<io_uring_sqe>() };
            let submission = Submission { at, follows };
            follows = submission.get().flags & LINKED != 0;
            Some(submission)
        })
    }
}

/// One that the kernel has not taken yet. The program, which is about to have it taken, does not write to it.
pub struct Submission {
    at: NonNull<io_uring_sqe>,
    /// It is done after the one before it.
    follows: bool,
}

/// The effect of a submission, as far as it matters to connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// `epoll_ctl`: instance, operation, descriptor, event.
    Watch(c_int, c_int, c_int, *mut libc::epoll_event),
    /// `close`.
    Close(c_int),
    /// Waits on an epoll instance, and would take its events past this library.
    WaitFor(c_int),
    /// Puts descriptors into the ring's table of files: their address, and how many.
    Register(*const c_int, u32),
    /// Sends a message, which may carry descriptors, on this descriptor or on a file of the ring's table.
    SendMessage(Option<c_int>, *const libc::msghdr),
    /// Something with at most two descriptors.
    Use(Option<c_int>, Option<c_int>),
    /// Nothing with a descriptor that is there already.
    Other,
}

impl Submission {
    fn get(&self) -> &io_uring_sqe {
        // SAFETY: aligned, within a mapping that its ring keeps, and not written to meanwhile.
        unsafe { self.at.as_ref() }
    }

    /// The program has requested that it is done only after others.
    pub fn is_late(&self) -> bool {
        self.follows || self.get().flags & DRAIN != 0
    }

    /// The kernel's behaviour.
    pub fn does(&self) -> Does {
        let s = self.get();
        // SAFETY: plain words, whichever was written.
        let (off, addr, second, flags) = unsafe {
            let words = (s.__bindgen_anon_1.off, s.__bindgen_anon_2.addr);
            (words.0, words.1, s.__bindgen_anon_5.splice_fd_in, s.__bindgen_anon_3.splice_flags)
        };
        // An index into the ring's table names a file that was seen when it was put there.
        let fd = (s.flags & FIXED_FILE == 0).then_some(s.fd);
        let is = |op: Op| op as u32 == u32::from(s.opcode);
        if is(Op::IORING_OP_EPOLL_CTL) {
            Does::Watch(s.fd, s.len as c_int, off as c_int, addr as *mut _)
        } else if is(Op::IORING_OP_CLOSE) {
            // With an index it closes an entry of the ring's table.
            fd.filter(|_| second == 0).map_or(Does::Other, Does::Close)
        } else if is(Op::IORING_OP_EPOLL_WAIT) {
            fd.map_or(Does::Other, Does::WaitFor)
        } else if is(Op::IORING_OP_FILES_UPDATE) {
            Does::Register(addr as *const c_int, s.len)
        } else if is(Op::IORING_OP_SENDMSG) || is(Op::IORING_OP_SENDMSG_ZC) {
            Does::SendMessage(fd, addr as *const _)
        } else if is(Op::IORING_OP_SPLICE) || is(Op::IORING_OP_TEE) {
            Does::Use(fd, (flags & SPLICE_FROM_TABLE == 0).then_some(second))
        } else if WITHOUT_DESCRIPTOR.iter().any(|op| is(*op)) {
            Does::Other
        } else {
            Does::Use(fd, None)
        }
    }

    /// Has the kernel do nothing instead, with this result.
    pub fn replace(&mut self, result: c_int) {
        // SAFETY: as in `get`; all zeros are a valid submission, one that does nothing.
        unsafe {
            let old = self.at.read();
            let mut new: io_uring_sqe = std::mem::zeroed();
            new.flags = old.flags & SKIP_SUCCESS;
            new.user_data = old.user_data;
            if result != 0 {
                new.__bindgen_anon_3.rw_flags = INJECT_RESULT;
                new.len = result as u32;
            }
            self.at.write(new);
        }
    }
}

/// Operations that act on no descriptor, or only on requests that the ring has already. Some have a number of another kind
/// where others have the descriptor.
const WITHOUT_DESCRIPTOR: [Op; 13] = [
    Op::IORING_OP_NOP,
    Op::IORING_OP_TIMEOUT,
    Op::IORING_OP_TIMEOUT_REMOVE,
    Op::IORING_OP_LINK_TIMEOUT,
    Op::IORING_OP_POLL_REMOVE,
    Op::IORING_OP_ASYNC_CANCEL,
    Op::IORING_OP_SOCKET,
    Op::IORING_OP_PROVIDE_BUFFERS,
    Op::IORING_OP_REMOVE_BUFFERS,
    Op::IORING_OP_WAITID,
    Op::IORING_OP_FUTEX_WAIT,
    Op::IORING_OP_FUTEX_WAKE,
    Op::IORING_OP_FUTEX_WAITV,
];

/// The effect of an `io_uring_register`, as far as it matters to connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// Puts descriptors into the ring's table of files: their address, and how many.
    Files(*const c_int, u32),
    /// Submissions may be elsewhere, or may be entered in other ways.
    Unseen,
    /// None.
    Other,
}

impl Register {
    /// The registration of a call with these arguments.
    ///
    /// # Safety
    /// As the system call.
    pub unsafe fn of(kind: u32, argument: *const c_void, count: u32) -> Register {
        let is = |other: RegisterOp| other as u32 == kind;
        if is(RegisterOp::IORING_REGISTER_FILES) {
            return Register::Files(argument.cast(), count);
        }
        // SAFETY: any bytes are valid for all three. The kernel reports a bad address.
        let table = unsafe {
            if is(RegisterOp::IORING_REGISTER_FILES_UPDATE) {
                access::read(argument.cast::<io_uring_rsrc_update>()).map(|update| (update.data, count))
            } else if is(RegisterOp::IORING_REGISTER_FILES2) {
                access::read(argument.cast::<io_uring_rsrc_register>()).map(|table| (table.data, table.nr))
            } else if is(RegisterOp::IORING_REGISTER_FILES_UPDATE2) {
                access::read(argument.cast::<io_uring_rsrc_update2>()).map(|update| (update.data, update.nr))
            } else {
                None
            }
        };
        if let Some((files, count)) = table {
            return Register::Files(files as *const _, count);
        }
        match HARMLESS_REGISTRATIONS.iter().any(|other| is(*other)) {
            true => Register::Other,
            false => Register::Unseen,
        }
    }
}

/// Registrations after which submissions are seen as before.
const HARMLESS_REGISTRATIONS: [RegisterOp; 30] = [
    RegisterOp::IORING_REGISTER_BUFFERS,
    RegisterOp::IORING_UNREGISTER_BUFFERS,
    RegisterOp::IORING_UNREGISTER_FILES,
    RegisterOp::IORING_REGISTER_EVENTFD,
    RegisterOp::IORING_UNREGISTER_EVENTFD,
    RegisterOp::IORING_REGISTER_EVENTFD_ASYNC,
    RegisterOp::IORING_REGISTER_PROBE,
    RegisterOp::IORING_REGISTER_PERSONALITY,
    RegisterOp::IORING_UNREGISTER_PERSONALITY,
    RegisterOp::IORING_REGISTER_RESTRICTIONS,
    RegisterOp::IORING_REGISTER_ENABLE_RINGS,
    RegisterOp::IORING_REGISTER_BUFFERS2,
    RegisterOp::IORING_REGISTER_BUFFERS_UPDATE,
    RegisterOp::IORING_REGISTER_IOWQ_AFF,
    RegisterOp::IORING_UNREGISTER_IOWQ_AFF,
    RegisterOp::IORING_REGISTER_IOWQ_MAX_WORKERS,
    RegisterOp::IORING_UNREGISTER_RING_FDS,
    RegisterOp::IORING_REGISTER_PBUF_RING,
    RegisterOp::IORING_UNREGISTER_PBUF_RING,
    RegisterOp::IORING_REGISTER_SYNC_CANCEL,
    RegisterOp::IORING_REGISTER_PBUF_STATUS,
    RegisterOp::IORING_REGISTER_NAPI,
    RegisterOp::IORING_UNREGISTER_NAPI,
    RegisterOp::IORING_REGISTER_CLOCK,
    RegisterOp::IORING_REGISTER_CLONE_BUFFERS,
    RegisterOp::IORING_REGISTER_FILES,
    RegisterOp::IORING_REGISTER_FILES2,
    RegisterOp::IORING_REGISTER_FILES_UPDATE,
    RegisterOp::IORING_REGISTER_FILES_UPDATE2,
    RegisterOp::IORING_REGISTER_FILE_ALLOC_RANGE,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn does(op: Op, fill: impl FnOnce(&mut io_uring_sqe)) -> Does {
        // SAFETY: all zeros are a valid submission.
        let mut sqe: io_uring_sqe = unsafe { std::mem::zeroed() };
        (sqe.opcode, sqe.fd) = (op as u8, 7);
        fill(&mut sqe);
        Submission { at: NonNull::from(&mut sqe), follows: false }.does()
    }

    #[test]
    fn descriptors_of_submissions_are_found() {
        assert_eq!(does(Op::IORING_OP_RECV, |_| {}), Does::Use(Some(7), None));
        assert_eq!(does(Op::IORING_OP_POLL_ADD, |_| {}), Does::Use(Some(7), None));
        let spliced = |s: &mut io_uring_sqe| s.__bindgen_anon_5.splice_fd_in = 8;
        assert_eq!(does(Op::IORING_OP_SPLICE, spliced), Does::Use(Some(7), Some(8)));
        assert_eq!(does(Op::IORING_OP_CLOSE, |_| {}), Does::Close(7));
    }

    #[test]
    fn a_file_of_the_table_is_no_descriptor() {
        let fixed = |s: &mut io_uring_sqe| s.flags = FIXED_FILE;
        assert_eq!(does(Op::IORING_OP_RECV, fixed), Does::Use(None, None));
        assert_eq!(does(Op::IORING_OP_SENDMSG, fixed), Does::SendMessage(None, std::ptr::null()));
        let from_table = |s: &mut io_uring_sqe| s.__bindgen_anon_3.splice_flags = SPLICE_FROM_TABLE;
        assert_eq!(does(Op::IORING_OP_SPLICE, from_table), Does::Use(Some(7), None));
        let to_table = |s: &mut io_uring_sqe| {
            (s.flags, s.__bindgen_anon_5.splice_fd_in) = (FIXED_FILE, 8);
        };
        assert_eq!(does(Op::IORING_OP_SPLICE, to_table), Does::Use(None, Some(8)));
        assert_eq!(does(Op::IORING_OP_CLOSE, |s| s.__bindgen_anon_5.file_index = 3), Does::Other);
    }

    #[test]
    fn a_count_of_buffers_is_no_descriptor() {
        assert_eq!(does(Op::IORING_OP_PROVIDE_BUFFERS, |_| {}), Does::Other);
        assert_eq!(does(Op::IORING_OP_WAITID, |_| {}), Does::Other);
    }

    #[test]
    fn tables_of_files_are_found_in_registrations() {
        let files = [4, -1, 6];
        let update =
            io_uring_rsrc_update2 { offset: 1, resv: 0, data: files.as_ptr() as u64, tags: 0, nr: 3, resv2: 0 };
        let of = |kind: RegisterOp, argument: *const c_void, count| {
            // SAFETY: the arguments are valid for their kinds.
            unsafe { Register::of(kind as u32, argument, count) }
        };
        let expected = Register::Files(files.as_ptr(), 3);
        assert_eq!(of(RegisterOp::IORING_REGISTER_FILES, files.as_ptr().cast(), 3), expected);
        assert_eq!(of(RegisterOp::IORING_REGISTER_FILES_UPDATE, (&raw const update).cast(), 3), expected);
        let len = size_of_val(&update) as u32;
        assert_eq!(of(RegisterOp::IORING_REGISTER_FILES_UPDATE2, (&raw const update).cast(), len), expected);
        assert_eq!(of(RegisterOp::IORING_REGISTER_BUFFERS, files.as_ptr().cast(), 3), Register::Other);
        assert_eq!(of(RegisterOp::IORING_REGISTER_RING_FDS, files.as_ptr().cast(), 1), Register::Unseen);
    }
}
