//! Calls as the stubs of a program make them. Compilers rely on registers that the kernel keeps only now and then, so a
//! program may run for long with one that is lost.

use super::*;
use crate::hooks::patched::thread::of_thread;

/// A program's registers, but for rcx and r11, which the call itself destroys.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Registers {
    rax: u64,
    rdi: u64,
    rsi: u64,
    rdx: u64,
    r10: u64,
    r8: u64,
    r9: u64,
    rbx: u64,
    rbp: u64,
    r12: u64,
    r13: u64,
    r14: u64,
    r15: u64,
    xmm15: u64,
    /// 1 after a call that went on at the system call, 0 after one that went on behind it.
    is_kernels: u64,
}

/// Makes a call with these registers, and stores those that the program finds afterwards.
#[unsafe(naked)]
unsafe extern "C" fn through(registers: *mut Registers) {
    naked_asm!(
        "push rbx", "push rbp", "push r12", "push r13", "push r14", "push r15",
        "push rdi",
        "mov rax, [rdi]", "mov rsi, [rdi + 16]", "mov rdx, [rdi + 24]", "mov r10, [rdi + 32]", "mov r8, [rdi + 40]",
        "mov r9, [rdi + 48]", "mov rbx, [rdi + 56]", "mov rbp, [rdi + 64]", "mov r12, [rdi + 72]",
        "mov r13, [rdi + 80]", "mov r14, [rdi + 88]", "mov r15, [rdi + 96]", "movq xmm15, [rdi + 104]",
        "mov rdi, [rdi + 8]",
        // As in a stub, but with a flag in place of the system call, of the same length.
        "lea r11, [rip + 2f]",
        "jmp {call}",
        "2: jmp 4f",
        "3: pop r11",
        "mov qword ptr [r11 + 112], 0",
        "5:",
        "mov [r11], rax", "mov [r11 + 8], rdi", "mov [r11 + 16], rsi", "mov [r11 + 24], rdx", "mov [r11 + 32], r10",
        "mov [r11 + 40], r8", "mov [r11 + 48], r9", "mov [r11 + 56], rbx", "mov [r11 + 64], rbp",
        "mov [r11 + 72], r12", "mov [r11 + 80], r13", "mov [r11 + 88], r14", "mov [r11 + 96], r15",
        "movq [r11 + 104], xmm15",
        "pop r15", "pop r14", "pop r13", "pop r12", "pop rbp", "pop rbx",
        "ret",
        "4: pop r11",
        "mov qword ptr [r11 + 112], 1",
        "jmp 5b",
        call = sym call,
    );
}

/// A call of a number with a descriptor, and all other registers filled.
fn asked(number: i64, fd: i32) -> Registers {
    let [rsi, rdx, r10, r8, r9, rbx, rbp, r12, r13, r14, r15, xmm15] = std::array::from_fn(|n| 0x1111_0000 + n as u64);
    Registers {
        rax: number as u64,
        rdi: fd as u32 as u64,
        rsi,
        rdx,
        r10,
        r8,
        r9,
        rbx,
        rbp,
        r12,
        r13,
        r14,
        r15,
        xmm15,
        is_kernels: 0,
    }
}

fn make(asked: Registers) -> Registers {
    let mut found = asked;
    // SAFETY: calls on a descriptor that is none, which read and write no memory.
    unsafe { through(&mut found) };
    found
}

/// A number that no process of this test has.
const NONE: i32 = 1 << 19;

// Breaks if a register is lost, also in the thread's first call, which maps its stack; if the stack's part is not given
// back; or if the error is not the kernel's.
#[test]
fn a_call_keeps_what_the_kernel_keeps() {
    prepare();
    let mut tops = Vec::new();
    for _ in 0..3 {
        let close = asked(libc::SYS_close, NONE);
        let closed = Registers { rax: -i64::from(libc::EBADF) as u64, xmm15: 0, ..close };
        assert_eq!(make(close), closed);
        // SAFETY: the thread's own.
        let stack = unsafe { &*of_thread() };
        tops.push((stack.top, stack.low, stack.left));
    }
    assert!(
        tops.iter().all(|top| *top == tops[0] && top.0 == top.1 + BYTES as u64 && top.2 == PARTS as i32),
        "{tops:x?}"
    );
}

// Breaks if a call that is the kernel's alone is changed, or comes to the library.
#[test]
fn a_call_of_the_kernel_goes_on_at_the_system_call() {
    prepare();
    let last = crate::table::MOVED_FDS as i32 - 1;
    for (number, fd) in [(libc::SYS_getppid, 0), (libc::SYS_read, last), (libc::SYS_read, 77), (1 << 20, 0)] {
        let call = asked(number, fd);
        assert_eq!(make(call), Registers { is_kernels: 1, ..call });
    }
    // A new thread goes on in the program with another stack.
    let thread = Registers { rdi: (libc::CLONE_VM | libc::CLONE_THREAD) as u64, ..asked(libc::SYS_clone, 0) };
    assert_eq!(make(thread), Registers { is_kernels: 1, ..thread });
}

// Breaks if a program with very many descriptors reads a connection on a link without the library.
#[test]
fn a_call_on_a_descriptor_without_a_bit_comes_to_the_library() {
    prepare();
    for fd in [NONE, crate::table::MOVED_FDS as i32, -1] {
        let read = asked(libc::SYS_read, fd);
        assert_eq!(make(read), Registers { rax: -i64::from(libc::EBADF) as u64, xmm15: 0, ..read });
    }
}

// Breaks if threads leave their stacks behind, or if an errno of the program is changed.
#[test]
fn a_thread_gives_its_stack_back_and_keeps_its_errno() {
    prepare();
    let of = || {
        crate::os::errno::set_errno(libc::EXDEV);
        make(asked(libc::SYS_close, NONE));
        assert_eq!(crate::os::errno::errno(), libc::EXDEV);
        // SAFETY: the thread's own.
        unsafe { (*of_thread()).low }
    };
    let low = std::thread::spawn(of).join().expect("it does not panic");
    let mut resident = 0;
    // SAFETY: asks for one page; the byte is writable.
    let is_mapped = unsafe { libc::mincore((low + 4096) as *mut libc::c_void, 4096, &mut resident) } == 0;
    assert!(low != 0 && !is_mapped);
}
