//! The program's system calls: those that the loader answers, and the library's.

use std::ffi::{c_long, CStr};
use std::sync::OnceLock;

use crate::block::{current, Frame};
use crate::library::pass_on;
use crate::program::Identity;
use crate::{heap, processes, signals, threads};

/// The program's file, in place of the loader's.
pub(crate) static PROGRAM: OnceLock<Identity> = OnceLock::new();

const OWN_FILE: &CStr = c"/proc/self/exe";

/// The code for `arch_prctl`.
const ARCH_SET_GS: u64 = 0x1001;
const ARCH_SET_FS: u64 = 0x1002;
const ARCH_GET_FS: u64 = 0x1003;
const ARCH_GET_GS: u64 = 0x1004;

/// A system call of the program: its result, as the kernel returns it.
pub(crate) extern "C" fn handle(frame: &mut Frame) -> i64 {
    // SAFETY: the C library's variable of this thread. A signal handler's calls do not change what the interrupted call
    // is about to read.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let result = answer(frame);
    // SAFETY: as above.
    unsafe { *errno = before };
    result
}

fn answer(frame: &mut Frame) -> i64 {
    let block = current();
    match frame.rax as c_long {
        libc::SYS_clone => processes::clone_call(frame),
        libc::SYS_clone3 => processes::clone3_call(frame),
        libc::SYS_fork => processes::fork_call(frame),
        libc::SYS_vfork => processes::vfork_call(frame),
        // The thread's area is the C library's.
        libc::SYS_rseq => -i64::from(libc::ENOSYS),
        libc::SYS_exit => threads::exit(frame.rdi as i32),
        libc::SYS_set_tid_address => {
            // SAFETY: the thread's own block.
            unsafe { (*block).clear_tid = frame.rdi as *mut i32 };
            // SAFETY: no arguments.
            unsafe { libc::gettid().into() }
        }
        // The thread's list is the C library's.
        libc::SYS_set_robust_list => 0,
        libc::SYS_arch_prctl => match frame.rdi {
            ARCH_SET_FS => {
                // SAFETY: the thread's own block.
                unsafe { (*block).guest_fs = frame.rsi };
                0
            }
            ARCH_GET_FS => {
                // SAFETY: the thread's own block; the program's address is writable, as for the kernel.
                unsafe { *(frame.rsi as *mut u64) = (*block).guest_fs };
                0
            }
            // GS has the block.
            ARCH_SET_GS | ARCH_GET_GS => -i64::from(libc::EPERM),
            _ => pass_on(frame),
        },
        libc::SYS_brk => heap::set_end(frame.rdi),
        libc::SYS_rt_sigaction => signals::set_action(frame),
        libc::SYS_readlink => link_of_program(frame.rdi, frame.rsi, frame.rdx).unwrap_or_else(|| pass_on(frame)),
        libc::SYS_readlinkat => link_of_program(frame.rsi, frame.rdx, frame.r10).unwrap_or_else(|| pass_on(frame)),
        libc::SYS_open | libc::SYS_execve => pass_on(&in_place(frame, frame.rdi)),
        libc::SYS_openat | libc::SYS_execveat => pass_on(&in_place(frame, frame.rsi)),
        _ => pass_on(frame),
    }
}

/// Whether the path is the link to the process's own program.
fn is_own_file(path: u64) -> bool {
    // SAFETY: not null, and then a C string, as for the kernel.
    path != 0 && unsafe { CStr::from_ptr(path as *const _) } == OWN_FILE
}

/// A call that opens or executes the file at `path`, with the program's file in place of the link to it.
fn in_place(frame: &Frame, path: u64) -> Frame {
    let Some(program) = PROGRAM.get().filter(|_| is_own_file(path)) else { return *frame };
    let (file, none) = (program.file.as_ptr() as u64, c"".as_ptr() as u64);
    let Frame { rsi: arguments, rdx: environment, .. } = *frame;
    let at = |fd| Frame { rdi: fd as u64, rsi: none, r8: libc::AT_EMPTY_PATH as u64, ..*frame };
    match (frame.rax as c_long, program.descriptor) {
        (libc::SYS_execve, Some(fd)) => {
            Frame { rax: libc::SYS_execveat as u64, rdx: arguments, r10: environment, ..at(fd) }
        }
        (libc::SYS_execveat, Some(fd)) => at(fd),
        (libc::SYS_open | libc::SYS_execve, _) => Frame { rdi: file, ..*frame },
        _ => Frame { rsi: file, ..*frame },
    }
}

/// `readlink` of the program's own link.
fn link_of_program(path: u64, buffer: u64, len: u64) -> Option<i64> {
    let program = PROGRAM.get().filter(|_| is_own_file(path))?.link.as_bytes();
    let len = program.len().min(usize::try_from(len).ok()?);
    // SAFETY: the program's buffer is writable to this length, as for the kernel.
    unsafe { std::ptr::copy_nonoverlapping(program.as_ptr(), buffer as *mut u8, len) };
    Some(len as i64)
}
