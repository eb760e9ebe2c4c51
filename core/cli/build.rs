//! Links the programs so that they run on older systems, too.

fn main() {
    netacc_glibc::link(netacc_glibc::Linked::Programs);
}
