//! System calls that the library is not to see.

use std::arch::asm;

/// The kernel's result: a negative error, or what the call returns.
///
/// # Safety
/// As the system call.
pub(crate) unsafe fn call(number: i64, [a, b, c, d, e]: [u64; 5]) -> i64 {
    let result;
    // SAFETY: the caller's promise; the kernel keeps all other registers.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}
