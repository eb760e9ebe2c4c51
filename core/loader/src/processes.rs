//! Forks of the program. The C library and the library of links have work at a fork, so theirs is used.

use std::ffi::{c_int, c_void};

use crate::block::{current, Block, Frame, Role};
use crate::library::pass_on;
use crate::{entry, heap, threads};

extern "C" {
    /// The library's `clone`: what a child that shares the memory needs.
    fn clone(
        work: unsafe extern "C" fn(*mut c_void) -> c_int,
        stack: *mut c_void,
        flags: c_int,
        argument: *mut c_void,
        parent_tid: *mut c_void,
        tls: *mut c_void,
        child_tid: *mut c_void,
    ) -> c_int;
}

/// `clone`: a thread, a fork, or the child of a parent that sleeps.
pub(crate) fn clone_call(frame: &mut Frame) -> i64 {
    let has = |flag: c_int| frame.rdi & flag as u64 != 0;
    if has(libc::CLONE_THREAD) {
        return threads::make(frame);
    }
    if !has(libc::CLONE_VM) {
        return fork(frame);
    }
    if has(libc::CLONE_VFORK) {
        return vfork(frame);
    }
    // A process beside this one with the same memory.
    -i64::from(libc::EINVAL)
}

/// `fork`, and `clone` with memory of its own.
pub(crate) fn fork(frame: &mut Frame) -> i64 {
    let ids = (libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID) as u64;
    let plain = frame.rax == libc::SYS_fork as u64;
    let flags = if plain { libc::SIGCHLD as u64 } else { frame.rdi };
    let pid = if flags & !ids == libc::SIGCHLD as u64 {
        // SAFETY: no arguments. The child goes on in this function, with one thread.
        let pid = heap::unchanged(|| unsafe { libc::fork() });
        if pid < 0 {
            // SAFETY: the C library's variable of this thread.
            return -i64::from(unsafe { *libc::__errno_location() });
        }
        pid.into()
    } else {
        // On the same stack: see below.
        let tls = libc::CLONE_SETTLS as u64;
        pass_on(&Frame { rsi: 0, rdi: flags & !tls, ..*frame })
    };
    if pid == 0 {
        after_fork(frame, flags, plain);
    }
    pid
}

/// In the child.
fn after_fork(frame: &mut Frame, flags: u64, plain: bool) {
    let block = current();
    threads::after_fork();
    let has = |flag: c_int| flags & flag as u64 != 0;
    // SAFETY: the thread's own block.
    unsafe { (*block).role = Role::First };
    if plain {
        return;
    }
    if frame.rsi != 0 {
        frame.rsp = frame.rsi;
    }
    if has(libc::CLONE_SETTLS) {
        // SAFETY: as above.
        unsafe { (*block).guest_fs = frame.r8 };
    }
    if has(libc::CLONE_CHILD_SETTID) {
        // SAFETY: the program's word, as for the kernel.
        unsafe { *(frame.r10 as *mut i32) = libc::gettid() };
    }
    // SAFETY: as above.
    unsafe { (*block).clear_tid = std::ptr::null_mut() };
}

/// Arbitrary, as the hook stack of a thread.
const CHILD_STACK: usize = 256 << 10;

/// `vfork`, and `clone` with `CLONE_VFORK`: the child shares the memory, and this thread sleeps until the child has started a
/// program or has ended. The child has this thread's block, and a hook stack of its own, because this thread sleeps on the
/// block's.
pub(crate) fn vfork(frame: &Frame) -> i64 {
    let plain = frame.rax == libc::SYS_vfork as u64;
    let flags = if plain { (libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD) as u64 } else { frame.rdi };
    let block = current();
    // SAFETY: the thread's own block.
    let kept = unsafe { *block };
    let mut child = Child { frame: *frame, fs: kept.guest_fs, stack: 0 };
    child.frame.raw += 2;
    if !plain && frame.rsi != 0 {
        child.frame.rsp = frame.rsi;
    }
    if flags & libc::CLONE_SETTLS as u64 != 0 {
        child.fs = frame.r8;
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK;
    // SAFETY: a fresh anonymous mapping.
    let low = unsafe { libc::mmap(std::ptr::null_mut(), CHILD_STACK, access, kind, -1, 0) };
    if low == libc::MAP_FAILED {
        return -i64::from(libc::ENOMEM);
    }
    child.stack = low as u64;
    let flags = (flags & !(libc::CLONE_SETTLS as u64)) as c_int;
    let (parent_tid, child_tid) = (frame.rdx as *mut c_void, frame.r10 as *mut c_void);
    // SAFETY: the stack is writable, and `child` is there until this thread continues.
    let pid = unsafe {
        let top = low.byte_add(CHILD_STACK);
        clone(run_child, top, flags, (&raw mut child).cast(), parent_tid, std::ptr::null_mut(), child_tid)
    };
    // SAFETY: the C library's variable of this thread.
    let error = unsafe { *libc::__errno_location() };
    // SAFETY: the thread's own block again: the child has ended, or has memory of its own.
    unsafe { *block = kept };
    // SAFETY: mapped above, and not in use any more.
    unsafe { libc::munmap(low, CHILD_STACK) };
    if pid < 0 {
        return -i64::from(error);
    }
    pid.into()
}

struct Child {
    frame: Frame,
    fs: u64,
    /// The lowest address of its hook stack.
    stack: u64,
}

extern "C" fn run_child(child: *mut c_void) -> c_int {
    /// For this function's frame, and those around it.
    const SPARE: u64 = 8 << 10;
    // SAFETY: the parent keeps it while it sleeps.
    let child = unsafe { &*child.cast::<Child>() };
    let block = current();
    let high = child.stack + CHILD_STACK as u64;
    // SAFETY: the parent's block, which it restores.
    unsafe {
        *block = Block {
            stack_low: child.stack,
            stack_high: high,
            stack_top: high - SPARE,
            guest_fs: child.fs,
            role: Role::Vforked,
            ..*block
        };
        entry::enter(&child.frame);
    }
    0
}
