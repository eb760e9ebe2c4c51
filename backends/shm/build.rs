//! Compiles the sleep in which a thread can be cancelled: see `src/sleep.c`.

fn main() {
    println!("cargo:rerun-if-changed=src/sleep.c");
    cc::Build::new().file("src/sleep.c").flag("-fexceptions").warnings(true).compile("netacc_shm_sleep");
}
