//! The state of a thread that runs changed code: the stack for the library's code, and the registers at a system call.

use crate::os::thread_variable::thread_variable;

/// The variable of `calls.c`.
#[repr(C)]
pub(super) struct Stack {
    /// Where the unused part begins, from above; 0 until the thread has a stack.
    pub(super) top: u64,
    /// The lowest address.
    pub(super) low: u64,
    /// The parts that are unused.
    pub(super) left: i32,
    /// Whether the stack is given back when the thread ends.
    pub(super) registered: u32,
}

/// The program's registers at a system call that the hooks need, or that the kernel would keep.
#[repr(C)]
pub(super) struct Frame {
    pub(super) rax: u64,
    pub(super) rdi: u64,
    pub(super) rsi: u64,
    pub(super) rdx: u64,
    pub(super) r10: u64,
    pub(super) r8: u64,
    pub(super) r9: u64,
    /// The address of the stub's system call.
    pub(super) raw: u64,
    pub(super) rsp: u64,
    pub(super) reserved: u64,
}

/// The stack for one call. Arbitrary: the library's deepest calls need less than half of it.
pub(super) const PART: usize = 128 << 10;
/// How many calls may interrupt each other. Go's handlers block all signals, so there are two at most.
pub(super) const PARTS: usize = 3;
/// All parts, and a page without access below.
pub(super) const BYTES: usize = PARTS * PART + 4096;

/// The calling thread's stack.
pub(super) fn of_thread() -> *mut Stack {
    thread_variable!("netacc_patched")
}
