//! The system calls of the program's Go code.

use std::ffi::{c_int, c_long, c_void};
use std::sync::OnceLock;

use netacc_loader::clone3::{Arguments, LONGEST};

use super::thread::{of_thread, Frame, Stack, BYTES};
use crate::hooks::syscall::of_program::syscall;
use crate::os::errno::{errno, set_errno};
use crate::os::real;

/// The kernel's result: a negative error, or what the call returns.
pub(super) extern "C" fn handle(frame: &mut Frame) -> i64 {
    let saved = errno();
    // SAFETY: the calling thread's, and only the thread uses it.
    let stack = unsafe { &mut *of_thread() };
    if stack.registered == 0 {
        register(stack);
    }
    let result = match frame.rax as c_long {
        libc::SYS_clone | libc::SYS_fork | libc::SYS_vfork => fork(frame),
        libc::SYS_clone3 => clone3(frame),
        _ => pass_on(frame),
    };
    set_errno(saved);
    result
}

fn pass_on(frame: &Frame) -> i64 {
    let Frame { rax, rdi, rsi, rdx, r10, r8, r9, .. } = *frame;
    // SAFETY: the program's own arguments.
    result(unsafe { syscall(rax as _, rdi as _, rsi as _, rdx as _, r10 as _, r8 as _, r9 as _) })
}

/// As the kernel returns what the C library has returned.
fn result(of: c_long) -> i64 {
    if of == -1 {
        -i64::from(errno())
    } else {
        of
    }
}

/// `clone`, `fork` and `vfork`: the child has memory of its own. A child that shared it would run on this stack, which the
/// parent needs.
fn fork(frame: &mut Frame) -> i64 {
    const SHARED: u64 = (libc::CLONE_VM | libc::CLONE_VFORK) as u64;
    let is_clone = frame.rax == libc::SYS_clone as u64;
    let flags = if is_clone { frame.rdi & !SHARED } else { libc::SIGCHLD as u64 };
    let wants_descriptor = flags & libc::CLONE_PIDFD as u64 != 0;
    let pid = if flags & !(libc::CLONE_PIDFD as u64) == libc::SIGCHLD as u64 {
        // SAFETY: no arguments. The child goes on in this function, with one thread.
        let pid = result(unsafe { libc::fork() }.into());
        if pid > 0 && wants_descriptor {
            // SAFETY: no pointers; the child is there until the program waits for it.
            let fd = unsafe { real::syscall(libc::SYS_pidfd_open, pid, 0, 0, 0, 0, 0) };
            // SAFETY: the program's word, as for the kernel.
            unsafe { *(frame.rdx as *mut c_int) = fd as c_int };
        }
        pid
    } else {
        pass_on(&Frame { rdi: flags, rsi: 0, ..*frame })
    };
    if pid == 0 && is_clone && frame.rsi != 0 {
        frame.rsp = frame.rsi;
    }
    pid
}

/// `clone3`, which Go uses for children that begin in a control group: as [`fork`].
fn clone3(frame: &mut Frame) -> i64 {
    if frame.rdi == 0 {
        return -i64::from(libc::EFAULT);
    }
    let len = usize::try_from(frame.rsi).unwrap_or(usize::MAX).min(LONGEST + 1);
    // SAFETY: the program's arguments are readable, as for the kernel, which reads no more.
    let bytes = unsafe { std::slice::from_raw_parts(frame.rdi as *const u8, len) };
    let asked = match Arguments::read(bytes).and_then(|asked| asked.way().map(|_| asked)) {
        // Threads are made by the C library.
        Ok(asked) if asked.has(libc::CLONE_VM) && !asked.has(libc::CLONE_VFORK) => return -i64::from(libc::ENOSYS),
        Ok(asked) => asked,
        Err(error) => return -i64::from(error),
    };
    let apart = asked.apart();
    let (at, len) = ((&raw const apart) as u64, size_of::<Arguments>() as u64);
    let pid = pass_on(&Frame { rdi: at, rsi: len, ..*frame });
    if pid == 0 && asked.stack_top() != 0 {
        frame.rsp = asked.stack_top();
    }
    pid
}

/// Has the stack given back when the thread ends, and takes away the access to the page below it.
#[cold]
fn register(stack: &mut Stack) {
    static KEY: OnceLock<libc::pthread_key_t> = OnceLock::new();
    stack.registered = 1;
    // SAFETY: the lowest page of the stack, which no call reaches unless it needs too much.
    unsafe { libc::mprotect(stack.low as *mut c_void, 4096, libc::PROT_NONE) };
    let key = KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: a writable word, and a function that takes a value of this key.
        unsafe { libc::pthread_key_create(&mut key, Some(give_back)) };
        key
    });
    // SAFETY: a key of this process.
    unsafe { libc::pthread_setspecific(*key, stack.low as *const c_void) };
}

/// Runs at the thread's end, on the thread's own stack.
unsafe extern "C" fn give_back(low: *mut c_void) {
    // SAFETY: the calling thread's; no call of the thread uses it now. A later destructor's call makes another one.
    unsafe { of_thread().write(std::mem::zeroed()) };
    // SAFETY: the thread's stack, which has been mapped for it.
    unsafe { libc::munmap(low, BYTES) };
}
