//! See `netacc_fuzz::datagrams`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| netacc_fuzz::datagrams(bytes));
