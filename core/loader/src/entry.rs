//! The ways between the program's code and the loader's, in assembly: calls, threads, signals.
//!
//! Each way switches FS and the stack, and keeps all registers that the other side relies on: see [`block`](crate::block).

#![expect(clippy::too_many_lines, reason = "sequences of instructions, with a line for each register")]

use std::arch::naked_asm;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use netacc_loader::library_calls::{HANDLED, NUMBERS};

use crate::block::{Block, Frame};
use crate::numbers::interesting;

/// System call numbers that the loader or the library handles. The others stay as they are.
static INTERESTING: [u8; NUMBERS] = interesting();

/// A bit for each descriptor, of these many: whether the library moves its bytes.
pub(crate) static MOVED: AtomicUsize = AtomicUsize::new(0);
pub(crate) static DESCRIPTORS: AtomicUsize = AtomicUsize::new(0);
/// The function that handles calls: `extern "C" fn(&mut Frame) -> i64`.
pub(crate) static HANDLE: AtomicUsize = AtomicUsize::new(0);
/// Whether the program may keep values in vector registers over a system call.
pub(crate) static KEEPS_VECTORS: AtomicU64 = AtomicU64::new(1);
/// The program's signal handlers, by signal.
pub(crate) static HANDLERS: [AtomicUsize; 65] = [const { AtomicUsize::new(0) }; 65];
/// The library's own handler of faults.
pub(crate) static FAULT: AtomicUsize = AtomicUsize::new(0);

/// Room for all vector registers, in the processor's compact form: 2.4 KiB with AVX-512.
const VECTORS: usize = 4096;
/// Which: x87, SSE, AVX, AVX-512.
const WHICH: u32 = 0xe7;

/// Stubs jump here, with the address of the stub's system call in r11; rcx is free, too. Goes on at the system call if the
/// call is the kernel's alone, and behind it otherwise.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn call() {
    naked_asm!(
        "cmp rax, {numbers}",
        "jae 9f",
        "lea rcx, [rip + {interesting}]",
        "cmp byte ptr [rcx + rax], {handled}",
        "jb 9f",
        "je 3f",
        "cmp edi, [rip + {descriptors}]",
        "jae 3f",
        "mov rcx, [rip + {moved}]",
        "bt dword ptr [rcx], edi",
        "jnc 9f",
        "3:",
        // Up to the exchange a signal handler finds the program's stack, and uses the hook stack's top. The program's stack is
        // the hook stack in a handler that has interrupted a call: then this call's frames are below the handler's.
        "mov qword ptr gs:[{busy}], 1",
        "mov rcx, gs:[{stack_top}]",
        "cmp rsp, gs:[{stack_low}]",
        "jb 4f",
        "cmp rsp, rcx",
        "jae 4f",
        "lea rcx, [rsp - 128]",
        "and rcx, -64",
        "4:",
        "xchg rcx, rsp",
        "sub rsp, {frame}",
        "mov [rsp + {rax}], rax",
        "mov [rsp + {rdi}], rdi",
        "mov [rsp + {rsi}], rsi",
        "mov [rsp + {rdx}], rdx",
        "mov [rsp + {r10}], r10",
        "mov [rsp + {r8}], r8",
        "mov [rsp + {r9}], r9",
        "mov [rsp + {rbx}], rbx",
        "mov [rsp + {rbp}], rbp",
        "mov [rsp + {r12}], r12",
        "mov [rsp + {r13}], r13",
        "mov [rsp + {r14}], r14",
        "mov [rsp + {r15}], r15",
        "mov [rsp + {raw}], r11",
        "mov [rsp + {rsp}], rcx",
        "mov rcx, gs:[{host_fs}]",
        "wrfsbase rcx",
        "cld",
        "xor ebp, ebp",
        "mov rbx, rsp",
        "mov rdi, rsp",
        "cmp qword ptr [rip + {keeps}], 0",
        "jne 2f",
        "call [rip + {handle}]",
        // Go expects zero there, as the kernel leaves it.
        "pxor xmm15, xmm15",
        "jmp 5f",
        "2:",
        "sub rsp, {vectors}",
        "and rsp, -64",
        // The area's header has to be zero, 64 bytes behind the first 512.
        "xor eax, eax",
        "mov [rsp + 512], rax",
        "mov [rsp + 520], rax",
        "mov [rsp + 528], rax",
        "mov [rsp + 536], rax",
        "mov [rsp + 544], rax",
        "mov [rsp + 552], rax",
        "mov [rsp + 560], rax",
        "mov [rsp + 568], rax",
        "mov eax, {which}",
        "xor edx, edx",
        "xsavec [rsp]",
        "call [rip + {handle}]",
        "mov rcx, rax",
        "mov eax, {which}",
        "xor edx, edx",
        "xrstor [rsp]",
        "mov rax, rcx",
        "mov rsp, rbx",
        "5:",
        "mov rcx, gs:[{guest_fs}]",
        "wrfsbase rcx",
        "mov rdi, [rsp + {rdi}]",
        "mov rsi, [rsp + {rsi}]",
        "mov rdx, [rsp + {rdx}]",
        "mov r10, [rsp + {r10}]",
        "mov r8, [rsp + {r8}]",
        "mov r9, [rsp + {r9}]",
        "mov rbx, [rsp + {rbx}]",
        "mov rbp, [rsp + {rbp}]",
        "mov r11, [rsp + {raw}]",
        "mov rsp, [rsp + {rsp}]",
        "mov qword ptr gs:[{busy}], 0",
        "add r11, 2",
        "9: jmp r11",
        numbers = const NUMBERS,
        interesting = sym INTERESTING,
        handled = const HANDLED,
        descriptors = sym DESCRIPTORS,
        moved = sym MOVED,
        handle = sym HANDLE,
        keeps = sym KEEPS_VECTORS,
        vectors = const VECTORS,
        which = const WHICH,
        busy = const offset_of!(Block, busy),
        stack_top = const offset_of!(Block, stack_top),
        stack_low = const offset_of!(Block, stack_low),
        host_fs = const offset_of!(Block, host_fs),
        guest_fs = const offset_of!(Block, guest_fs),
        frame = const size_of::<Frame>(),
        rax = const offset_of!(Frame, rax),
        rdi = const offset_of!(Frame, rdi),
        rsi = const offset_of!(Frame, rsi),
        rdx = const offset_of!(Frame, rdx),
        r10 = const offset_of!(Frame, r10),
        r8 = const offset_of!(Frame, r8),
        r9 = const offset_of!(Frame, r9),
        rbx = const offset_of!(Frame, rbx),
        rbp = const offset_of!(Frame, rbp),
        r12 = const offset_of!(Frame, r12),
        r13 = const offset_of!(Frame, r13),
        r14 = const offset_of!(Frame, r14),
        r15 = const offset_of!(Frame, r15),
        raw = const offset_of!(Frame, raw),
        rsp = const offset_of!(Frame, rsp),
    );
}

/// Goes on in the program with these registers and 0 as the call's result: in a new thread, or in a child that shares the
/// memory. Returns when the thread calls [`leave`].
///
/// # Safety
/// The thread has a block with `guest_fs`, and the frame's `raw` is where the program goes on.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn enter(frame: *const Frame) {
    naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov gs:[{exit_stack}], rsp",
        "mov rax, gs:[{guest_fs}]",
        "wrfsbase rax",
        "mov r11, rdi",
        "mov rcx, [r11 + {raw}]",
        "mov rdi, [r11 + {rdi}]",
        "mov rsi, [r11 + {rsi}]",
        "mov rdx, [r11 + {rdx}]",
        "mov r10, [r11 + {r10}]",
        "mov r8, [r11 + {r8}]",
        "mov r9, [r11 + {r9}]",
        "mov rbx, [r11 + {rbx}]",
        "mov rbp, [r11 + {rbp}]",
        "mov r12, [r11 + {r12}]",
        "mov r13, [r11 + {r13}]",
        "mov r14, [r11 + {r14}]",
        "mov r15, [r11 + {r15}]",
        "mov rsp, [r11 + {rsp}]",
        "pxor xmm15, xmm15",
        "xor eax, eax",
        "mov qword ptr gs:[{busy}], 0",
        "jmp rcx",
        exit_stack = const offset_of!(Block, exit_stack),
        guest_fs = const offset_of!(Block, guest_fs),
        busy = const offset_of!(Block, busy),
        rdi = const offset_of!(Frame, rdi),
        rsi = const offset_of!(Frame, rsi),
        rdx = const offset_of!(Frame, rdx),
        r10 = const offset_of!(Frame, r10),
        r8 = const offset_of!(Frame, r8),
        r9 = const offset_of!(Frame, r9),
        rbx = const offset_of!(Frame, rbx),
        rbp = const offset_of!(Frame, rbp),
        r12 = const offset_of!(Frame, r12),
        r13 = const offset_of!(Frame, r13),
        r14 = const offset_of!(Frame, r14),
        r15 = const offset_of!(Frame, r15),
        raw = const offset_of!(Frame, raw),
        rsp = const offset_of!(Frame, rsp),
    );
}

/// Returns from the thread's [`enter`]. Nothing between is dropped.
///
/// # Safety
/// The thread is in a call of the program, which it entered that way.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn leave() -> ! {
    naked_asm!(
        "mov rsp, gs:[{exit_stack}]",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
        exit_stack = const offset_of!(Block, exit_stack),
    );
}

/// Starts the program: copies its arguments, environment and auxiliary vector to the stack, which is the process's first,
/// and goes to its entry.
///
/// # Safety
/// The thread has a block; `words` are `count` words, and the code at `entry` expects them.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn begin(words: *const u64, count: usize, entry: u64) -> ! {
    naked_asm!(
        "mov r11, rdx",
        "mov rcx, rsi",
        "lea rax, [rcx * 8]",
        "sub rsp, rax",
        "and rsp, -16",
        "mov rsi, rdi",
        "mov rdi, rsp",
        "cld",
        "rep movsq",
        "mov rax, gs:[{guest_fs}]",
        "wrfsbase rax",
        "pxor xmm15, xmm15",
        "xor eax, eax",
        "xor ebx, ebx",
        // A function that the C library would call at exit.
        "xor edx, edx",
        "xor ebp, ebp",
        "mov qword ptr gs:[{busy}], 0",
        "jmp r11",
        guest_fs = const offset_of!(Block, guest_fs),
        busy = const offset_of!(Block, busy),
    );
}

/// The kernel calls this for each signal that the program handles. The program's handler gets the program's FS. If the
/// signal has interrupted a call, calls of the handler use the hook stack below that call's frames.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn signal() {
    naked_asm!(
        // A thread that is not the program's blocks all signals.
        "rdgsbase rax",
        "test rax, rax",
        "jz 9f",
        "push rbx",
        "push r12",
        "push r13",
        "rdfsbase rbx",
        "mov r12, gs:[{busy}]",
        "mov r13, gs:[{stack_top}]",
        "test r12, r12",
        "jz 3f",
        // The interrupted stack pointer, or this one if the handler runs below it on the hook stack, too.
        "mov rcx, [rdx + {interrupted}]",
        "cmp rcx, gs:[{stack_low}]",
        "jb 2f",
        "cmp rcx, gs:[{stack_high}]",
        "ja 2f",
        "cmp rsp, gs:[{stack_low}]",
        "jb 1f",
        "cmp rsp, rcx",
        "cmovb rcx, rsp",
        "1:",
        "sub rcx, 1024",
        "and rcx, -64",
        "cmp rcx, r13",
        "jae 2f",
        "mov gs:[{stack_top}], rcx",
        "2:",
        "mov qword ptr gs:[{busy}], 0",
        "3:",
        "mov rcx, gs:[{guest_fs}]",
        "wrfsbase rcx",
        "movsxd rax, edi",
        "lea rcx, [rip + {handlers}]",
        "call [rcx + rax * 8]",
        "wrfsbase rbx",
        // First: a signal that comes in between must find that the stack is in use.
        "mov gs:[{busy}], r12",
        "mov gs:[{stack_top}], r13",
        "pop r13",
        "pop r12",
        "pop rbx",
        "9: ret",
        handlers = sym HANDLERS,
        interrupted = const INTERRUPTED,
        busy = const offset_of!(Block, busy),
        stack_top = const offset_of!(Block, stack_top),
        stack_low = const offset_of!(Block, stack_low),
        stack_high = const offset_of!(Block, stack_high),
        guest_fs = const offset_of!(Block, guest_fs),
    );
}

/// Where the stack pointer is in the context that a signal handler gets.
const INTERRUPTED: usize =
    offset_of!(libc::ucontext_t, uc_mcontext) + offset_of!(libc::mcontext_t, gregs) + 8 * libc::REG_RSP as usize;

/// The kernel calls this for the library's own handler of faults, which needs the C library's FS in the program's code, too.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn fault() {
    naked_asm!(
        "push rbx",
        "rdfsbase rbx",
        "rdgsbase rax",
        "test rax, rax",
        "jz 2f",
        "mov rcx, gs:[{host_fs}]",
        "wrfsbase rcx",
        "2:",
        "call [rip + {fault}]",
        "wrfsbase rbx",
        "pop rbx",
        "ret",
        fault = sym FAULT,
        host_fs = const offset_of!(Block, host_fs),
    );
}
