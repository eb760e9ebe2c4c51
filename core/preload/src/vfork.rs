//! Children that share the memory of this process, but have descriptors of their own: those of `vfork`, and of `clone` with
//! `CLONE_VM` and without `CLONE_FILES`.
//!
//! Such a child uses the library's state of its parent. Its reads and writes on a connection take the parent's path,
//! also over a link, because the memory of the link is shared as well. The child's changes to its descriptors must not
//! change the parent's table. So here the child records the numbers that are not the parent's any more, and uses the
//! kernel for these.
//!
//! The child of `vfork` runs on its parent's stack and in its parent's thread, while the parent sleeps. So:
//! * the function is written in assembly, because the child returns from it first, and its next calls overwrite the
//!   place of the return address. The hook keeps that address in a register while the parent sleeps, as the C library
//!   does;
//! * the child is recognised by a variable of the thread, which the parent resets when it continues.
//!
//! The child of a `clone` without `CLONE_VFORK` runs beside its parent, with the same variables of the thread. It is
//! recognised by its number alone.

use std::cell::Cell;
use std::ffi::{c_int, c_long};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::os::errno::set_errno;
use crate::runtime;

/// Counts the parents that sleep until their child has started a program or has ended, and [`BESIDE`]. While it is 0
/// there is no such child. Calls on connections check only this word.
static CHILDREN: AtomicU32 = AtomicU32::new(0);
/// A child may run beside this process, from now on: see the module.
static BESIDE: AtomicBool = AtomicBool::new(false);

/// Numbers that a child may have changed before all are taken for changed. Arbitrary: those of most children are standard
/// input, output and error.
const MAX_CHANGED: usize = 32;

/// Descriptors of a child that are not its parent's any more.
#[derive(Clone, Copy)]
struct Changed {
    numbers: [c_int; MAX_CHANGED],
    /// How many of `numbers` are in use; more than fit: any descriptor may be changed.
    count: usize,
}

const NONE_CHANGED: Changed = Changed { numbers: [0; MAX_CHANGED], count: 0 };

thread_local! {
    /// How many of the processes that run in this thread are asleep: 0 in the first one.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static CHANGED: Cell<Changed> = const { Cell::new(NONE_CHANGED) };
}

/// Whether the caller is such a child.
#[inline]
pub fn is_child() -> bool {
    CHILDREN.load(Ordering::Relaxed) > 0 && (DEPTH.get() > 0 || BESIDE.load(Ordering::Relaxed) && is_beside())
}

#[cold]
fn is_beside() -> bool {
    runtime::get().is_some_and(|rt| !rt.belongs_to(std::process::id()))
}

/// Whether the caller is such a child and the descriptor is not its parent's any more.
#[inline]
pub fn has_changed(fd: c_int) -> bool {
    is_child() && is_changed(fd)
}

#[cold]
fn is_changed(fd: c_int) -> bool {
    // The variables of a child beside are its parent's too.
    if DEPTH.get() == 0 {
        return true;
    }
    let changed = CHANGED.get();
    changed.numbers.get(..changed.count).is_none_or(|numbers| numbers.contains(&fd))
}

/// The caller is such a child, and has closed or replaced its descriptor.
pub fn record_changed(fd: c_int) {
    if DEPTH.get() == 0 || is_changed(fd) {
        return;
    }
    let mut changed = CHANGED.get();
    if let Some(number) = changed.numbers.get_mut(changed.count) {
        *number = fd;
    }
    changed.count += 1;
    CHANGED.set(changed);
}

/// The parent, before it sleeps. Its depth, for [`child_begins`] and [`parent_goes_on`].
pub fn parent_will_sleep() -> u32 {
    CHILDREN.fetch_add(1, Ordering::SeqCst);
    DEPTH.get()
}

/// The child of a parent of this depth, which sleeps, begins.
pub fn child_begins(depth: u32) {
    if depth == 0 {
        CHANGED.set(NONE_CHANGED);
    }
    DEPTH.set(depth + 1);
}

/// The parent continues: its child has started a program, or has ended.
pub fn parent_goes_on(depth: u32) {
    DEPTH.set(depth);
    CHILDREN.fetch_sub(1, Ordering::SeqCst);
}

/// A child is about to run beside this process, with its memory.
pub fn child_runs_beside() {
    if !BESIDE.swap(true, Ordering::SeqCst) {
        CHILDREN.fetch_add(1, Ordering::SeqCst);
    }
}

extern "C" fn before_vfork() -> u32 {
    parent_will_sleep()
}

/// Runs in the child, and then in the parent. `result`: the result of the system call.
extern "C" fn after_vfork(result: c_long, depth: u32) -> libc::pid_t {
    if result == 0 {
        child_begins(depth);
        return 0;
    }
    parent_goes_on(depth);
    if result < 0 {
        set_errno(-result as c_int);
        return -1;
    }
    result as libc::pid_t
}

/// Interposes `vfork`.
///
/// # Safety
/// As the C function.
#[cfg_attr(not(test), no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn vfork() -> libc::pid_t {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!(
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        // The system call keeps rsi and rdi, for both processes.
        "mov esi, eax",
        "pop rdi",
        "mov eax, {number}",
        "syscall",
        "push rdi",
        "sub rsp, 8",
        "mov rdi, rax",
        "call {after}",
        "add rsp, 8",
        "ret",
        before = sym before_vfork,
        after = sym after_vfork,
        number = const libc::SYS_vfork,
    );
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!(
        "stp x29, x30, [sp, #-16]!",
        "bl {before}",
        "ldp x29, x30, [sp], #16",
        // The system call keeps all registers but x0, for both processes.
        "mov w9, w0",
        "mov x0, {flags}",
        "mov x1, #0",
        "mov x8, {number}",
        "svc #0",
        "stp x29, x30, [sp, #-16]!",
        "mov w1, w9",
        "bl {after}",
        "ldp x29, x30, [sp], #16",
        "ret",
        before = sym before_vfork,
        after = sym after_vfork,
        flags = const libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
        number = const libc::SYS_clone,
    );
}

/// Interposes `__vfork`.
///
/// # Safety
/// As the C function.
#[cfg_attr(not(test), no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn __vfork() -> libc::pid_t {
    #[cfg(target_arch = "x86_64")]
    std::arch::naked_asm!("jmp {vfork}", vfork = sym vfork);
    #[cfg(target_arch = "aarch64")]
    std::arch::naked_asm!("b {vfork}", vfork = sym vfork);
}
