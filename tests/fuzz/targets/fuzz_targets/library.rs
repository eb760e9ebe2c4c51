//! See `netacc_fuzz::OnLibrary`. `NETACC_COUNTED` names the folder of `netacc-exec`, `netacc_run` and a library that counts
//! where its code goes.
#![no_main]

use std::cell::RefCell;
use std::path::PathBuf;
use std::ptr::addr_of_mut;

use netacc_fuzz::{OnLibrary, COUNTERS};

/// libFuzzer clears what is in this section before each input, and takes it for coverage afterwards.
#[link_section = "__libfuzzer_extra_counters"]
static mut COUNTED: [u8; COUNTERS] = [0; COUNTERS];

thread_local! {
    static BOTH: RefCell<Option<OnLibrary>> = const { RefCell::new(None) };
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // SAFETY: libFuzzer runs one input at a time, in one thread, and reads the counters between two.
    let counted = unsafe { &mut *addr_of_mut!(COUNTED) };
    BOTH.with_borrow_mut(|both| {
        let both = both.get_or_insert_with(|| {
            let binaries = std::env::var_os("NETACC_COUNTED").map(PathBuf::from).expect("NETACC_COUNTED names a folder");
            OnLibrary::start(&binaries).expect("the folder has the programs")
        });
        both.check(bytes, counted).expect("both sides run");
    });
});
