//! The memory that the system lets this process lock.

use std::mem::MaybeUninit;

/// Whether the memory that this process may lock is limited: `RLIMIT_MEMLOCK` is set, and the process has no capability
/// to exceed it.
pub(crate) fn is_limited() -> bool {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the structure is writable.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    limit.rlim_cur != libc::RLIM_INFINITY && !disregards_limits()
}

/// `struct __user_cap_header_struct` and `struct __user_cap_data_struct` of capget(2).
#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Sets {
    effective: u32,
    _permitted: u32,
    _inheritable: u32,
}

fn disregards_limits() -> bool {
    /// `_LINUX_CAPABILITY_VERSION_3`, whose sets come in two halves.
    const VERSION: u32 = 0x2008_0522;
    const CAP_IPC_LOCK: u32 = 14;
    let mut header = Header { version: VERSION, pid: 0 };
    let mut sets = MaybeUninit::<[Sets; 2]>::zeroed();
    // SAFETY: header and sets are as large as this version has them; plain numbers, zeroed before.
    let (status, sets) =
        unsafe { (libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()), sets.assume_init()) };
    status == 0 && sets[0].effective & 1 << CAP_IPC_LOCK != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Breaks if the capability were read from the wrong place: the kernel's text for user space must agree.
    #[test]
    fn the_kernel_agrees_on_the_capability() {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("there is /proc");
        let sets = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("it has the line");
        let sets = u64::from_str_radix(sets.trim(), 16).expect("it is a hexadecimal number");
        assert_eq!(disregards_limits(), sets & 1 << 14 != 0);
        assert!(!(disregards_limits() && is_limited()));
    }
}
