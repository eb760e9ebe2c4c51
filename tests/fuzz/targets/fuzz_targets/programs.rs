//! See `netacc_fuzz::Differential`. `NETACC_EXEC` names the oracle's executable.
#![no_main]

use std::cell::RefCell;
use std::path::PathBuf;

use netacc_fuzz::Differential;

thread_local! {
    static ORACLE: RefCell<Option<Differential>> = const { RefCell::new(None) };
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    ORACLE.with_borrow_mut(|oracle| {
        let oracle = oracle.get_or_insert_with(|| {
            let path = std::env::var_os("NETACC_EXEC").map_or("target/release/netacc-exec".into(), PathBuf::from);
            Differential::start(&path).expect("NETACC_EXEC is the path of a built netacc-exec")
        });
        oracle.check(bytes).expect("the oracle runs");
    });
});
