//! `clone`: a child may share this process's memory (see [`vfork`]), or be forked.

use std::ffi::{c_int, c_long, c_void};

use crate::control::fork;
use crate::os::errno::{errno, set_errno};
use crate::os::real;
use crate::vfork::{self, child_begins, parent_goes_on, parent_will_sleep};

/// The arguments of `clone` that only the kernel needs.
#[derive(Clone, Copy)]
pub struct Clone {
    /// The start of the child's stack.
    pub stack: *mut c_void,
    /// The flags: the parts that parent and child share.
    pub flags: c_int,
    /// For `CLONE_PARENT_SETTID`.
    pub parent_tid: *mut c_void,
    /// For `CLONE_SETTLS`.
    pub tls: *mut c_void,
    /// For `CLONE_CHILD_SETTID`.
    pub child_tid: *mut c_void,
}

/// The function that a child runs, and the steps before it.
struct Start {
    work: real::Work,
    argument: *mut c_void,
    begin: Begin,
}

enum Begin {
    /// The child of a parent of this depth, which sleeps.
    Vfork(u32),
    /// The child has memory of its own.
    Fork,
}

/// Runs in the child. `start` is on its parent's stack, in memory that is shared with a parent that sleeps, or is the child's own.
unsafe extern "C" fn begin(start: *mut c_void) -> c_int {
    // SAFETY: `Clone::call` passes one that is still there.
    let Start { work, argument, ref begin } = unsafe { &*start.cast_const().cast::<Start>() };
    match begin {
        Begin::Vfork(depth) => child_begins(*depth),
        Begin::Fork => {
            let saved = errno();
            fork::after_fork_child();
            set_errno(saved);
        }
    }
    // SAFETY: passed on.
    unsafe { work(*argument) }
}

impl Clone {
    /// `clone`. For a thread, and for a child that shares the descriptors as well as the memory, only the kernel has
    /// work to do.
    ///
    /// # Safety
    /// As the C function.
    pub unsafe fn call(self, work: Option<real::Work>, argument: *mut c_void) -> c_int {
        let Clone { stack, flags, parent_tid, tls, child_tid } = self;
        // SAFETY: passed on.
        let real = |work, argument| unsafe { real::clone(work, stack, flags, argument, parent_tid, tls, child_tid) };
        let has = |flag| flags & flag != 0;
        let Some(program) = work.filter(|_| !has(libc::CLONE_VM) || !has(libc::CLONE_FILES | libc::CLONE_THREAD))
        else {
            return real(work, argument);
        };
        if !has(libc::CLONE_VM) {
            let saved = errno();
            fork::before_fork();
            set_errno(saved);
            let mut start = Start { work: program, argument, begin: Begin::Fork };
            let pid = real(Some(begin), (&raw mut start).cast());
            fork::after_fork_parent();
            return pid;
        }
        if !has(libc::CLONE_VFORK) {
            vfork::child_runs_beside();
            return real(work, argument);
        }
        let depth = parent_will_sleep();
        let mut start = Start { work: program, argument, begin: Begin::Vfork(depth) };
        let pid = real(Some(begin), (&raw mut start).cast());
        parent_goes_on(depth);
        pid
    }
}

/// Whether these are arguments of `clone3` for a child with memory of its own that begins on its copy of the stack: a fork.
///
/// The words are copied by the kernel, because a bad address is an error of the call, and not a fault; unless a filter
/// refuses that.
pub fn is_fork(arguments: c_long, len: c_long) -> bool {
    /// The flags, and four words behind them the stack and its length.
    const WORDS: usize = 7;
    let mut words = [0u64; WORDS];
    let bytes = size_of_val(&words);
    let saved = errno();
    if arguments == 0 || len < bytes as c_long {
        return false;
    }
    let to = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: bytes };
    let from = libc::iovec { iov_base: arguments as *mut c_void, iov_len: bytes };
    // SAFETY: `words` is writable to its length; the kernel checks the other address.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &to, 1, &from, 1, 0) };
    if copied != bytes as isize {
        if errno() == libc::EFAULT {
            return false;
        }
        // SAFETY: the program's arguments, as for the kernel.
        words = unsafe { (arguments as *const [u64; WORDS]).read_unaligned() };
    }
    set_errno(saved);
    words[0] & libc::CLONE_VM as u64 == 0 && words[5] == 0
}
