//! See `netacc_fuzz::encodings`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| netacc_fuzz::encodings(bytes));
