//! Links the library so that it runs on older systems, too.

fn main() {
    netacc_glibc::link(netacc_glibc::Linked::SharedLibrary);
}
