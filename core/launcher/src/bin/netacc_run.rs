//! `netacc_run COMMAND`: runs a program with its TCP sockets accelerated; see [`netacc_launcher::run`].
//!
//! C's `main` instead of Rust's: Rust's start-up sets SIGPIPE to "ignore", and the caller's disposition is then lost. A
//! launcher has to pass signal dispositions on unchanged (systemd, for example, starts services with SIGPIPE ignored,
//! and a shell does not).

#![no_main]
#![expect(unsafe_code, reason = "exporting `main`, whose arguments are C strings")]

use std::ffi::{c_char, c_int, CStr, OsStr};
use std::os::unix::ffi::OsStrExt;

/// Called by the C library. `std::env` has the arguments only after Rust's start-up, or with glibc.
#[unsafe(no_mangle)]
extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    let count = usize::try_from(argc).unwrap_or(0);
    // SAFETY: the C library passes so many strings, which live as long as the process.
    let arguments = (0..count).map(|i| unsafe { CStr::from_ptr(*argv.add(i)) });
    netacc_launcher::run(arguments.map(|argument| OsStr::from_bytes(argument.to_bytes()).to_owned())).into()
}
