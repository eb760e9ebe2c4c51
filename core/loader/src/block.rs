//! The state of each of the program's threads, at the thread's GS base: static programs use FS for their own variables, and
//! nothing uses GS. And the program's registers at a system call, and what it asks for by `clone`.
//!
//! Invariants:
//! * FS has the program's value in the program's code and the C library's value in the loader's and the library's.
//! * `busy` is 1 from the entry of a call to its end, 0 in the program's code, also in a signal handler that has interrupted
//!   a call.
//! * Code of the library runs on the thread's hook stack, below `stack_top`. A signal handler lowers `stack_top` below the
//!   frames of the call that it has interrupted, and then puts it back.

use std::arch::asm;
use std::ffi::c_int;

/// A thread of the program. Assembly uses the first fields.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Block {
    /// The address of this block.
    pub(crate) own: *mut Block,
    /// Where the free part of the hook stack begins, from above.
    pub(crate) stack_top: u64,
    /// The whole hook stack: its lowest and its highest address.
    pub(crate) stack_low: u64,
    pub(crate) stack_high: u64,
    pub(crate) host_fs: u64,
    pub(crate) guest_fs: u64,
    pub(crate) busy: u64,
    /// The stack pointer of [`enter`](crate::entry::enter), for [`leave`](crate::entry::leave).
    pub(crate) exit_stack: u64,
    /// A word of the program that the kernel would set to zero at the thread's end.
    pub(crate) clear_tid: *mut i32,
    pub(crate) role: Role,
}

/// How a thread ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The first thread of the process.
    First,
    /// A thread that the loader has made.
    Other,
    /// The child of `vfork`, which borrows its parent's block until it ends or starts a program.
    Vforked,
}

/// The program's registers at a system call, but those that the call destroys.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Frame {
    pub(crate) rax: u64,
    pub(crate) rdi: u64,
    pub(crate) rsi: u64,
    pub(crate) rdx: u64,
    pub(crate) r10: u64,
    pub(crate) r8: u64,
    pub(crate) r9: u64,
    pub(crate) rbx: u64,
    pub(crate) rbp: u64,
    pub(crate) r12: u64,
    pub(crate) r13: u64,
    pub(crate) r14: u64,
    pub(crate) r15: u64,
    /// The address of the stub's system call.
    pub(crate) raw: u64,
    pub(crate) rsp: u64,
    pub(crate) reserved: u64,
}

/// The arguments of `clone`.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) flags: u64,
    /// Where the child's stack begins, from above; 0 for the parent's.
    pub(crate) stack: u64,
    pub(crate) parent_tid: u64,
    pub(crate) child_tid: u64,
    pub(crate) tls: u64,
}

impl Request {
    /// Without arguments but for the signal at the child's end.
    pub(crate) fn with_flags(flags: c_int) -> Request {
        Request { flags: (flags | libc::SIGCHLD) as u64, stack: 0, parent_tid: 0, child_tid: 0, tls: 0 }
    }

    pub(crate) fn has(&self, flag: c_int) -> bool {
        self.flags & flag as u64 != 0
    }
}

/// The calling thread's block, which it has.
pub(crate) fn current() -> *mut Block {
    let block;
    // SAFETY: the callers run for a thread of the program, whose GS base is its block: the first field is its address.
    unsafe { asm!("mov {}, gs:[0]", out(reg) block, options(nostack, preserves_flags, readonly)) };
    block
}

/// Gives the calling thread its block, which stays where it is until the thread ends.
///
/// # Safety
/// `block` is valid for that time.
pub(crate) unsafe fn install(block: *mut Block) {
    // SAFETY: the loader has checked that there is such an instruction; nothing else uses GS.
    unsafe { asm!("wrgsbase {}", in(reg) block, options(nostack, preserves_flags)) };
}

/// The calling thread's FS base.
pub(crate) fn fs() -> u64 {
    let base;
    // SAFETY: reads a register; the loader has checked that there is such an instruction.
    unsafe { asm!("rdfsbase {}", out(reg) base, options(nostack, preserves_flags, nomem)) };
    base
}
