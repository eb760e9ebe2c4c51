//! The way from the program's code to the hooks, in assembly.
//!
//! Go code has small stacks of its own, so the library's code runs on another one, which each thread gets at its first call. A
//! signal handler that interrupts a call, and makes calls itself, uses the next part of that stack. So `top` is lowered
//! by a part before the stack is switched, and raised after it is switched back.
//!
//! Go keeps no value in vector registers over a system call, but expects zero in xmm15.

#![expect(clippy::too_many_lines, reason = "a sequence of instructions, with a line for each register")]

use std::arch::naked_asm;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU8, Ordering};

use netacc_loader::library_calls::{table, HANDLED, NUMBERS};

use super::calls;
use crate::table::{MOVED, MOVED_FDS};

use super::thread::{Frame, Stack, BYTES, PART, PARTS};

/// Calls that the library does not handle by itself, but this module does.
const MORE: [i64; 5] = [libc::SYS_clone, libc::SYS_clone3, libc::SYS_fork, libc::SYS_vfork, libc::SYS_rt_sigaction];
/// Calls for [`calls::handle`] by number. All others stay as they are.
static INTERESTING: [AtomicU8; NUMBERS] = [const { AtomicU8::new(0) }; NUMBERS];

/// Before the first call.
pub(super) fn prepare() {
    for (entry, interesting) in INTERESTING.iter().zip(table(&MORE)) {
        entry.store(interesting, Ordering::SeqCst);
    }
}

/// Stubs jump here, with the address of the stub's system call in r11; rcx is free, too. Goes on at the system call if the
/// call is the kernel's alone, and behind it otherwise.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn call() {
    naked_asm!(
        "cmp rax, {numbers}",
        "jae 9f",
        "lea rcx, [rip + {interesting}]",
        "cmp byte ptr [rcx + rax], {handled}",
        "jb 9f",
        "je 3f",
        "cmp edi, {descriptors}",
        "jae 3f",
        "lea rcx, [rip + {moved}]",
        "bt dword ptr [rcx], edi",
        "jnc 9f",
        "3:",
        // A new thread, or a child beside its parent, goes on in the program with another stack.
        "cmp eax, {clone}",
        "jne 1f",
        "test edi, {vfork_flag}",
        "jnz 1f",
        "test edi, {memory_flag}",
        "jnz 9f",
        "1:",
        "mov rcx, qword ptr [rip + netacc_patched@GOTTPOFF]",
        "sub dword ptr fs:[rcx + {left}], 1",
        "js 5f",
        "2:",
        "sub qword ptr fs:[rcx + {top}], {part}",
        "mov rcx, fs:[rcx + {top}]",
        "lea rcx, [rcx + {part}]",
        "xchg rcx, rsp",
        "sub rsp, {frame}",
        "mov [rsp + {rax}], rax",
        "mov [rsp + {rdi}], rdi",
        "mov [rsp + {rsi}], rsi",
        "mov [rsp + {rdx}], rdx",
        "mov [rsp + {r10}], r10",
        "mov [rsp + {r8}], r8",
        "mov [rsp + {r9}], r9",
        "mov [rsp + {raw}], r11",
        "mov [rsp + {rsp}], rcx",
        "cld",
        "mov rdi, rsp",
        "call {handle}",
        "mov rdi, [rsp + {rdi}]",
        "mov rsi, [rsp + {rsi}]",
        "mov rdx, [rsp + {rdx}]",
        "mov r10, [rsp + {r10}]",
        "mov r8, [rsp + {r8}]",
        "mov r9, [rsp + {r9}]",
        "mov r11, [rsp + {raw}]",
        "mov rsp, [rsp + {rsp}]",
        "pxor xmm15, xmm15",
        "mov rcx, qword ptr [rip + netacc_patched@GOTTPOFF]",
        "add qword ptr fs:[rcx + {top}], {part}",
        "add dword ptr fs:[rcx + {left}], 1",
        "add r11, 2",
        "9: jmp r11",
        // The thread's first call: maps a stack. Its own stack may be too small for a word, so vector registers keep others.
        "5:",
        "add dword ptr fs:[rcx + {left}], 1",
        "cmp qword ptr fs:[rcx + {top}], 0",
        "jne 8f",
        "movq xmm0, rax",
        "movq xmm1, rdi",
        "movq xmm2, rsi",
        "movq xmm3, rdx",
        "movq xmm4, r10",
        "movq xmm5, r8",
        "movq xmm6, r9",
        "movq xmm7, r11",
        "mov eax, {mmap}",
        "xor edi, edi",
        "mov esi, {bytes}",
        "mov edx, {access}",
        "mov r10d, {kind}",
        "mov r8, -1",
        "xor r9d, r9d",
        "syscall",
        "movq rdi, xmm1",
        "movq rsi, xmm2",
        "movq rdx, xmm3",
        "movq r10, xmm4",
        "movq r8, xmm5",
        "movq r9, xmm6",
        "movq r11, xmm7",
        "cmp rax, -4096",
        "ja 7f",
        "mov rcx, qword ptr [rip + netacc_patched@GOTTPOFF]",
        "mov fs:[rcx + {low}], rax",
        "add rax, {bytes}",
        // A handler may have come in between, and have made a stack: then that one is lost.
        "mov fs:[rcx + {top}], rax",
        "mov dword ptr fs:[rcx + {left}], {parts} - 1",
        "movq rax, xmm0",
        "jmp 2b",
        // No memory: that is the call's result.
        "7:",
        "add r11, 2",
        "jmp r11",
        // More handlers within each other than there are parts.
        "8: ud2",
        numbers = const NUMBERS,
        interesting = sym INTERESTING,
        handled = const HANDLED,
        descriptors = const MOVED_FDS,
        moved = sym MOVED,
        handle = sym calls::handle,
        clone = const libc::SYS_clone,
        vfork_flag = const libc::CLONE_VFORK,
        memory_flag = const libc::CLONE_VM,
        mmap = const libc::SYS_mmap,
        access = const libc::PROT_READ | libc::PROT_WRITE,
        kind = const libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_NORESERVE,
        bytes = const BYTES,
        part = const PART,
        parts = const PARTS,
        top = const offset_of!(Stack, top),
        low = const offset_of!(Stack, low),
        left = const offset_of!(Stack, left),
        frame = const size_of::<Frame>(),
        rax = const offset_of!(Frame, rax),
        rdi = const offset_of!(Frame, rdi),
        rsi = const offset_of!(Frame, rsi),
        rdx = const offset_of!(Frame, rdx),
        r10 = const offset_of!(Frame, r10),
        r8 = const offset_of!(Frame, r8),
        r9 = const offset_of!(Frame, r9),
        raw = const offset_of!(Frame, raw),
        rsp = const offset_of!(Frame, rsp),
    );
}

#[cfg(test)]
mod tests;
