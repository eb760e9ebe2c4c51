//! See `netacc_fuzz::code`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| netacc_fuzz::code(bytes));
