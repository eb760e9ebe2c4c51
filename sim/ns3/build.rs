//! Generates and compiles the C++ half of the boundary's shims; ns-3 itself is not needed here.

fn main() {
    println!("cargo:rerun-if-changed=src/lib.rs");
    println!("cargo:rerun-if-changed=include/network.h");
    cxx_build::bridge("src/lib.rs").std("c++17").compile("netacc-ns3-shims");
}
