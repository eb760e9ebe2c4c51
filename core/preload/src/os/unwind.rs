//! The unwinder of `libgcc_s.so.1`, loaded when it is first needed: a panic, or a thread that is cancelled within a hook.
//!
//! Most C programs do not load that library, and its start costs about a tenth of a millisecond in a virtual machine,
//! where `cpuid` is slow. The C library itself loads it as late as this one does. A copy linked into this library would
//! not do, because an unwinding that another copy has begun must end in that one.
//!
//! The names are hidden, so that the program's own calls do not come here.

use std::ffi::{c_void, CStr};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The functions that Rust's standard library uses, in the order of the entries below.
const NAMES: [&CStr; 12] = [
    c"_Unwind_Backtrace",
    c"_Unwind_DeleteException",
    c"_Unwind_GetDataRelBase",
    c"_Unwind_GetIP",
    c"_Unwind_GetIPInfo",
    c"_Unwind_GetLanguageSpecificData",
    c"_Unwind_GetRegionStart",
    c"_Unwind_GetTextRelBase",
    c"_Unwind_RaiseException",
    c"_Unwind_Resume",
    c"_Unwind_SetGR",
    c"_Unwind_SetIP",
];

/// Their addresses; null until they are needed.
static ADDRESSES: [AtomicPtr<c_void>; NAMES.len()] = [const { AtomicPtr::new(std::ptr::null_mut()) }; NAMES.len()];

/// Finds all of them. Without an unwinder neither a panic nor a cancellation can go on.
extern "C" fn load() {
    // SAFETY: a C string.
    let library = unsafe { libc::dlopen(c"libgcc_s.so.1".as_ptr(), libc::RTLD_NOW) };
    for (name, address) in NAMES.iter().zip(&ADDRESSES) {
        // SAFETY: a C string, and a library or null, which means the default search.
        let found = unsafe { libc::dlsym(library, name.as_ptr()) };
        if found.is_null() {
            std::process::abort();
        }
        address.store(found, Ordering::Release);
    }
}

/// An entry: continues at the address with this index, with all arguments as they were.
macro_rules! entry {
    ($name:literal, $index:literal) => {
        std::arch::global_asm!(
            concat!(".pushsection .text.", $name, ",\"ax\",@progbits"),
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ",@function"),
            concat!($name, ":"),
            "mov r11, qword ptr [rip + {addresses} + 8 * {index}]",
            "test r11, r11",
            "jnz 2f",
            "push rdi",
            "push rsi",
            "push rdx",
            "push rcx",
            "push r8",
            "push r9",
            "sub rsp, 8",
            "call {load}",
            "add rsp, 8",
            "pop r9",
            "pop r8",
            "pop rcx",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "mov r11, qword ptr [rip + {addresses} + 8 * {index}]",
            "2:",
            "jmp r11",
            concat!(".size ", $name, ",.-", $name),
            ".popsection",
            addresses = sym ADDRESSES,
            index = const $index,
            load = sym load,
        );
    };
}

entry!("_Unwind_Backtrace", 0);
entry!("_Unwind_DeleteException", 1);
entry!("_Unwind_GetDataRelBase", 2);
entry!("_Unwind_GetIP", 3);
entry!("_Unwind_GetIPInfo", 4);
entry!("_Unwind_GetLanguageSpecificData", 5);
entry!("_Unwind_GetRegionStart", 6);
entry!("_Unwind_GetTextRelBase", 7);
entry!("_Unwind_RaiseException", 8);
entry!("_Unwind_Resume", 9);
entry!("_Unwind_SetGR", 10);
entry!("_Unwind_SetIP", 11);
