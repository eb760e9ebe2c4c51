//! io_urings that are made and entered by `syscall`, as libuv's are.
//!
//! Before the kernel takes submissions, each is looked at. What registers descriptors with an epoll instance, which is what
//! libuv's rings are for, is done here, and the kernel gets a submission that does nothing in its place; what closes
//! descriptors is noted. So such a program's connections may be on links. Any other operation on a connection takes it off
//! its link first, for good: the kernel does it on the anchor.
//!
//! Invariants: a ring that can submit without a call that is seen (`SQPOLL`), or whose submissions are not where they can
//! be read, is none of these ([`Ring::map`] refuses); nor may one name descriptors in a way that does not show them
//! ([`keeps_descriptors_visible`]). Positions and lengths are those of the kernel's answer to `io_uring_setup`; what the
//! program writes into the ring is never used as an index without a look.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use linux_raw_sys::io_uring as uring;
use linux_raw_sys::io_uring::{io_uring_op as Op, io_uring_params, io_uring_register_op as Register, io_uring_sqe};

/// Properties of a ring whose submissions can be looked at.
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

/// `nop_flags`: the operation's result is what stands in `len`. Linux 6.10; before, it is 0.
const INJECT_RESULT: u32 = 1;

/// Memory that the kernel shares.
struct Mapping {
    base: NonNull<c_void>,
    len: usize,
}

// SAFETY: plain memory, unmapped once, by the last owner.
unsafe impl Send for Mapping {}
// SAFETY: as above; what is in it is accessed as its users say.
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

    /// A word at so many bytes; `None` if that is not within.
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
        // SAFETY: mapped by `new`, and nobody has it any more.
        unsafe { libc::munmap(self.base.as_ptr(), self.len) };
    }
}

/// The submissions of a ring. A child has them at the same address.
#[derive(Clone)]
pub struct Ring {
    control: Arc<Mapping>,
    submissions: Arc<Mapping>,
    head: u32,
    tail: u32,
    /// Where the order of the submissions stands, unless they are in order themselves.
    array: Option<u32>,
    entries: u32,
    /// Bytes from one submission to the next.
    stride: usize,
}

impl Ring {
    /// The submissions of a ring that the kernel has just made; `None` if they cannot all be looked at.
    pub fn map(fd: c_int, made: &io_uring_params) -> Option<Ring> {
        if made.flags & !VISIBLE != 0 || !made.sq_entries.is_power_of_two() {
            return None;
        }
        let stride = size_of::<io_uring_sqe>() << u32::from(made.flags & uring::IORING_SETUP_SQE128 != 0);
        let word = size_of::<u32>();
        let array = (made.flags & uring::IORING_SETUP_NO_SQARRAY == 0).then_some(made.sq_off.array);
        let control = made.sq_off.head.max(made.sq_off.tail) as usize + word;
        let control = control.max(array.map_or(0, |at| at as usize + made.sq_entries as usize * word));
        Some(Ring {
            control: Arc::new(Mapping::new(fd, control, uring::IORING_OFF_SQ_RING)?),
            submissions: Arc::new(Mapping::new(fd, made.sq_entries as usize * stride, uring::IORING_OFF_SQES)?),
            head: made.sq_off.head,
            tail: made.sq_off.tail,
            array,
            entries: made.sq_entries,
            stride,
        })
    }

    /// What the kernel would take next, `most` at most.
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

/// What a submission does, as far as it matters to connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// `epoll_ctl`: instance, operation, descriptor, event.
    Watch(c_int, c_int, c_int, *mut libc::epoll_event),
    /// `close`.
    Close(c_int),
    /// Waits on an epoll instance, whose events would be taken past this library.
    WaitFor(c_int),
    /// Puts descriptors where submissions do not show them.
    Hide,
    /// Something with one or two descriptors.
    Use(c_int, Option<c_int>),
    /// Nothing with a descriptor that is there already.
    Other,
}

impl Submission {
    fn get(&self) -> &io_uring_sqe {
        // SAFETY: aligned, within a mapping that its ring keeps, and not written to meanwhile.
        unsafe { self.at.as_ref() }
    }

    /// By the program's wish it is done only after others.
    pub fn is_late(&self) -> bool {
        self.follows || self.get().flags & DRAIN != 0
    }

    /// What the kernel would do.
    pub fn does(&self) -> Does {
        let s = self.get();
        if s.flags & FIXED_FILE != 0 {
            return Does::Other;
        }
        // SAFETY: plain words, whichever was written.
        let (off, addr, second) =
            unsafe { (s.__bindgen_anon_1.off, s.__bindgen_anon_2.addr, s.__bindgen_anon_5.splice_fd_in) };
        match u32::from(s.opcode) {
            op if op == Op::IORING_OP_EPOLL_CTL as u32 => {
                Does::Watch(s.fd, s.len as c_int, off as c_int, addr as *mut _)
            }
            // With an index it is another table's.
            op if op == Op::IORING_OP_CLOSE as u32 && second == 0 => Does::Close(s.fd),
            op if op == Op::IORING_OP_EPOLL_WAIT as u32 => Does::WaitFor(s.fd),
            op if op == Op::IORING_OP_FILES_UPDATE as u32 => Does::Hide,
            op if op == Op::IORING_OP_SPLICE as u32 || op == Op::IORING_OP_TEE as u32 => Does::Use(s.fd, Some(second)),
            op if [
                Op::IORING_OP_NOP,
                Op::IORING_OP_TIMEOUT,
                Op::IORING_OP_TIMEOUT_REMOVE,
                Op::IORING_OP_LINK_TIMEOUT,
                Op::IORING_OP_POLL_REMOVE,
                Op::IORING_OP_SOCKET,
            ]
            .iter()
            .any(|other| *other as u32 == op) =>
            {
                Does::Other
            }
            _ => Does::Use(s.fd, None),
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

/// Whether submissions still show their descriptors after an `io_uring_register` of this kind.
pub fn keeps_descriptors_visible(register: u32) -> bool {
    [
        Register::IORING_REGISTER_BUFFERS,
        Register::IORING_UNREGISTER_BUFFERS,
        Register::IORING_UNREGISTER_FILES,
        Register::IORING_REGISTER_EVENTFD,
        Register::IORING_UNREGISTER_EVENTFD,
        Register::IORING_REGISTER_EVENTFD_ASYNC,
        Register::IORING_REGISTER_PROBE,
        Register::IORING_REGISTER_PERSONALITY,
        Register::IORING_UNREGISTER_PERSONALITY,
        Register::IORING_REGISTER_RESTRICTIONS,
        Register::IORING_REGISTER_ENABLE_RINGS,
        Register::IORING_REGISTER_BUFFERS2,
        Register::IORING_REGISTER_BUFFERS_UPDATE,
        Register::IORING_REGISTER_IOWQ_AFF,
        Register::IORING_UNREGISTER_IOWQ_AFF,
        Register::IORING_REGISTER_IOWQ_MAX_WORKERS,
        Register::IORING_UNREGISTER_RING_FDS,
        Register::IORING_REGISTER_PBUF_RING,
        Register::IORING_UNREGISTER_PBUF_RING,
        Register::IORING_REGISTER_SYNC_CANCEL,
        Register::IORING_REGISTER_PBUF_STATUS,
        Register::IORING_REGISTER_NAPI,
        Register::IORING_UNREGISTER_NAPI,
        Register::IORING_REGISTER_CLOCK,
        Register::IORING_REGISTER_CLONE_BUFFERS,
    ]
    .iter()
    .any(|kind| *kind as u32 == register)
}
