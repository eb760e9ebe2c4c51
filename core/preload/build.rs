//! Compiles what stable Rust cannot define: the C-variadic entry points, and a variable of each thread.

fn main() {
    println!("cargo:rerun-if-changed=src/variadic.c");
    println!("cargo:rerun-if-changed=src/calls.c");
    cc::Build::new()
        .file("src/variadic.c")
        .file("src/calls.c")
        .flag("-fvisibility=hidden")
        .flag("-fexceptions")
        .warnings(true)
        .compile("netacc_variadic");
}
