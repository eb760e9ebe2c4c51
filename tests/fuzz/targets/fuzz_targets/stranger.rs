//! See `netacc_fuzz::stranger`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| netacc_fuzz::stranger(bytes));
