//! `netacc_run COMMAND`: runs a program with its TCP sockets accelerated; see [`netacc_cli::run`].
//!
//! C's `main` instead of Rust's: Rust's start-up sets SIGPIPE to "ignore", and the caller's disposition is then lost. A
//! launcher has to pass signal dispositions on unchanged (systemd, for example, starts services with SIGPIPE ignored,
//! and a shell does not).

#![no_main]
#![expect(unsafe_code, reason = "exporting `main`; there is no unsafe operation here")]

use std::ffi::{c_char, c_int};

/// Called by the C library. The arguments are taken from `std::env`, which has them without Rust's
/// start-up on every glibc.
#[unsafe(no_mangle)]
extern "C" fn main(_argc: c_int, _argv: *const *const c_char) -> c_int {
    netacc_cli::run::run(std::env::args_os()).into()
}
