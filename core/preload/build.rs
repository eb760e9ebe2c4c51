//! Compiles the C-variadic entry points, which stable Rust cannot define.

fn main() {
    println!("cargo:rerun-if-changed=src/variadic.c");
    cc::Build::new()
        .file("src/variadic.c")
        .flag("-fvisibility=hidden")
        .flag("-fexceptions")
        .warnings(true)
        .compile("netacc_variadic");
}
