//! `netacc_run COMMAND`: runs a program with its TCP sockets accelerated; see [`netacc_launcher::run`].
//!
//! C's `main` instead of Rust's: Rust's start-up sets SIGPIPE to "ignore", and the caller's disposition is then lost. A
//! launcher has to pass signal dispositions on unchanged (systemd, for example, starts services with SIGPIPE ignored,
//! and a shell does not).

#![no_main]
#![expect(unsafe_code, reason = "exporting `main`, whose arguments are C strings")]

use std::ffi::{c_char, c_int, CStr, OsStr};
use std::os::unix::ffi::OsStrExt;

use netacc_launcher::arena::Arena;

#[global_allocator]
static MEMORY: Arena = Arena::new();

/// Called by the C library. `std::env` has the arguments only after Rust's start-up, or with glibc.
#[unsafe(no_mangle)]
extern "C" fn main(_argc: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int {
    // SAFETY: the C library passes lists of strings that live as long as the process, and a null pointer behind each.
    let [arguments, environment] = unsafe { [strings(arguments), strings(environment)] };
    netacc_launcher::run(arguments.map(|argument| OsStr::from_bytes(argument.to_bytes()).to_owned()), environment)
        .into()
}

/// # Safety
/// The strings of the list live as long as the process, and a null pointer follows them.
unsafe fn strings(list: *const *const c_char) -> impl Iterator<Item = &'static CStr> {
    // SAFETY: the caller's promise; nothing behind the null pointer is read.
    let strings = (0..).map(move |i| unsafe { *list.add(i) }).take_while(|string| !string.is_null());
    // SAFETY: the caller's promise.
    strings.map(|string| unsafe { CStr::from_ptr(string) })
}
