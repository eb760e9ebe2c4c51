//! The library of links, whose `syscall` is in place of the C library's.

use std::ffi::c_long;

use crate::block::Frame;

/// Through the library's `syscall`, which sees to what is on links.
pub(crate) fn pass_on(frame: &Frame) -> i64 {
    let Frame { rax, rdi, rsi, rdx, r10, r8, r9, .. } = *frame;
    // SAFETY: the program's own arguments.
    let result = unsafe { libc::syscall(rax as c_long, rdi, rsi, rdx, r10, r8, r9) };
    if result == -1 {
        // SAFETY: the C library's variable of this thread.
        -i64::from(unsafe { *libc::__errno_location() })
    } else {
        result
    }
}
