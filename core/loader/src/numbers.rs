//! The system calls that the loader or the library handles.

use netacc_loader::library_calls::{table, NUMBERS};

/// The loader's own: what two C libraries in one process, or a program in another one's place, would do wrong.
const LOADER: [i64; 14] = [
    libc::SYS_vfork,
    libc::SYS_clone3,
    libc::SYS_exit,
    libc::SYS_arch_prctl,
    libc::SYS_set_tid_address,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_brk,
    libc::SYS_open,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_rt_sigaction,
    libc::SYS_clone,
    libc::SYS_fork,
];

pub(crate) const fn interesting() -> [u8; NUMBERS] {
    table(&LOADER)
}
