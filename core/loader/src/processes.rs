//! Forks of the program. The C library and the library of links have work at a fork, so theirs is used.

use std::ffi::{c_int, c_void};

use netacc_loader::clone3::{Arguments, Way, LONGEST};

use crate::block::{current, Block, Frame, Request, Role};
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
    let Frame { rdi: flags, rsi: stack, rdx: parent_tid, r10: child_tid, r8: tls, .. } = *frame;
    start(frame, Request { flags, stack, parent_tid, child_tid, tls })
}

/// `clone3`.
pub(crate) fn clone3_call(frame: &mut Frame) -> i64 {
    if frame.rdi == 0 {
        return -i64::from(libc::EFAULT);
    }
    let len = usize::try_from(frame.rsi).unwrap_or(usize::MAX).min(LONGEST + 1);
    // SAFETY: the program's arguments are readable, as for the kernel, which reads no more.
    let bytes = unsafe { std::slice::from_raw_parts(frame.rdi as *const u8, len) };
    let found = Arguments::read(bytes).and_then(|arguments| Ok((arguments, arguments.way()?)));
    let (arguments, way) = match found {
        Ok(found) => found,
        Err(error) => return -i64::from(error),
    };
    let has_descriptor = arguments.has(libc::CLONE_PIDFD);
    let request = Request {
        flags: arguments.flags | arguments.exit_signal,
        stack: arguments.stack_top(),
        parent_tid: if has_descriptor { arguments.pidfd } else { arguments.parent_tid },
        child_tid: arguments.child_tid,
        tls: arguments.tls,
    };
    match way {
        Way::Clone => start(frame, request),
        Way::Apart => {
            let apart = arguments.apart();
            let (at, len) = ((&raw const apart) as u64, size_of::<Arguments>() as u64);
            let call = Frame { rax: libc::SYS_clone3 as u64, rdi: at, rsi: len, ..*frame };
            forked(frame, &request, || pass_on(&call))
        }
    }
}

/// `fork`.
pub(crate) fn fork_call(frame: &mut Frame) -> i64 {
    fork(frame, &Request::with_flags(0))
}

/// `vfork`.
pub(crate) fn vfork_call(frame: &Frame) -> i64 {
    vfork(frame, &Request::with_flags(libc::CLONE_VM | libc::CLONE_VFORK))
}

fn start(frame: &mut Frame, request: Request) -> i64 {
    if request.has(libc::CLONE_THREAD) {
        return threads::make(frame, &request);
    }
    if !request.has(libc::CLONE_VM) {
        return fork(frame, &request);
    }
    if request.has(libc::CLONE_VFORK) {
        return vfork(frame, &request);
    }
    // A process beside this one with the same memory.
    -i64::from(libc::EINVAL)
}

/// A child with memory of its own.
fn fork(frame: &mut Frame, request: &Request) -> i64 {
    let ids = (libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID) as u64;
    if request.flags & !ids == libc::SIGCHLD as u64 {
        return forked(frame, request, || {
            // SAFETY: no arguments. The child goes on in this function, with one thread.
            let pid = unsafe { libc::fork() };
            if pid < 0 {
                // SAFETY: the C library's variable of this thread.
                return -i64::from(unsafe { *libc::__errno_location() });
            }
            pid.into()
        });
    }
    // On the same stack: see `after_fork`.
    let Request { flags, parent_tid, child_tid, .. } = *request;
    let flags = flags & !(libc::CLONE_SETTLS as u64);
    let rax = libc::SYS_clone as u64;
    let call = Frame { rax, rdi: flags, rsi: 0, rdx: parent_tid, r10: child_tid, ..*frame };
    forked(frame, request, || pass_on(&call))
}

/// Makes the call that forks, which returns in both.
fn forked(frame: &mut Frame, request: &Request, call: impl FnOnce() -> i64) -> i64 {
    let pid = heap::unchanged(call);
    if pid == 0 {
        after_fork(frame, request);
    }
    pid
}

/// In the child.
fn after_fork(frame: &mut Frame, request: &Request) {
    let block = current();
    threads::after_fork();
    if request.stack != 0 {
        frame.rsp = request.stack;
    }
    if request.has(libc::CLONE_CHILD_SETTID) {
        // SAFETY: the program's word, as for the kernel.
        unsafe { *(request.child_tid as *mut i32) = libc::gettid() };
    }
    let clears = request.has(libc::CLONE_CHILD_CLEARTID);
    // SAFETY: the thread's own block.
    unsafe {
        (*block).role = Role::First;
        if request.has(libc::CLONE_SETTLS) {
            (*block).guest_fs = request.tls;
        }
        (*block).clear_tid = if clears { request.child_tid as *mut i32 } else { std::ptr::null_mut() };
    }
}

/// Arbitrary, as the hook stack of a thread.
const CHILD_STACK: usize = 256 << 10;

/// `CLONE_VFORK`: the child shares the memory, and this thread sleeps until the child has started a
/// program or has ended. The child has this thread's block, and a hook stack of its own, because this thread sleeps on the
/// block's.
fn vfork(frame: &Frame, request: &Request) -> i64 {
    let block = current();
    // SAFETY: the thread's own block.
    let kept = unsafe { *block };
    let mut child = Child { frame: *frame, fs: kept.guest_fs, stack: 0 };
    child.frame.raw += 2;
    if request.stack != 0 {
        child.frame.rsp = request.stack;
    }
    if request.has(libc::CLONE_SETTLS) {
        child.fs = request.tls;
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK;
    // SAFETY: a fresh anonymous mapping.
    let low = unsafe { libc::mmap(std::ptr::null_mut(), CHILD_STACK, access, kind, -1, 0) };
    if low == libc::MAP_FAILED {
        return -i64::from(libc::ENOMEM);
    }
    child.stack = low as u64;
    let flags = (request.flags & !(libc::CLONE_SETTLS as u64)) as c_int;
    let (parent_tid, child_tid) = (request.parent_tid as *mut c_void, request.child_tid as *mut c_void);
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
