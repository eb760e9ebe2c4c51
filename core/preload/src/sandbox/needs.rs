//! The system calls that an accelerated process makes by itself, in threads of the program and in the helper.

use std::ffi::{c_int, c_long};

use super::bpf::{Answer, Call, Program};

/// `AUDIT_ARCH_*` of this machine, as filters see it.
#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xc000_00b7;

/// The consequence for the library if a filter lets a call fail.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Failure {
    /// Connections break.
    Breaks,
    /// The library works without it, as on a kernel that does not have the call.
    Tolerated,
}

pub(super) struct Need {
    name: &'static str,
    /// The number of the call.
    pub(super) number: c_long,
    /// Arguments that are always the same; all others may be anything.
    arguments: &'static [(usize, u64)],
    failure: Failure,
}

impl Need {
    /// The arguments that are always the same.
    pub(super) fn arguments(&self) -> &'static [(usize, u64)] {
        self.arguments
    }
}

macro_rules! needs {
    ($($failure:ident { $($name:ident $(($($index:literal: $value:expr),*))?,)* })*) => {
        &[$($(Need {
            name: stringify!($name),
            number: libc::$name,
            arguments: &[$($(($index, $value as u64)),*)?],
            failure: Failure::$failure,
        },)*)*]
    };
}

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Every one of them, whichever backend is in use: whether there is an RDMA device may change at any time.
const NEEDS: &[Need] = needs! {
    Breaks {
        // Moving bytes, and records on anchors.
        SYS_read, SYS_write, SYS_recvfrom, SYS_sendto, SYS_recvmsg, SYS_sendmsg, SYS_shutdown,
        SYS_getsockopt, SYS_setsockopt, SYS_getsockname, SYS_getpeername, SYS_ioctl,
        // Waiting.
        SYS_futex, SYS_ppoll, SYS_epoll_pwait, SYS_epoll_ctl, SYS_epoll_create1, SYS_eventfd2, SYS_signalfd4,
        SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigtimedwait, SYS_rt_sigpending, SYS_clock_nanosleep, SYS_clock_gettime,
        SYS_sched_yield,
        // Links within the host.
        SYS_socket (0: libc::AF_UNIX), SYS_connect, SYS_accept4, SYS_memfd_create, SYS_ftruncate,
        SYS_mmap (2: READ_WRITE), SYS_mmap (2: libc::PROT_NONE), SYS_munmap, SYS_mprotect (2: READ_WRITE), SYS_madvise,
        SYS_brk, SYS_mremap,
        // Descriptors.
        SYS_close, SYS_fcntl, SYS_dup3, SYS_dup, SYS_prlimit64 (2: 0),
        // The identity of this process and its peers.
        SYS_getpid, SYS_gettid, SYS_geteuid, SYS_openat, SYS_fstat, SYS_newfstatat, SYS_lseek, SYS_getrandom,
        // The fork handlers, and the end of a thread.
        SYS_set_robust_list, SYS_exit, SYS_rt_sigreturn,
    }
    Tolerated {
        // `statx` falls back to `newfstatat`, and `clone3` to `clone`. Without a thread `netacc_ss` gets no answer.
        SYS_socket (0: libc::AF_NETLINK), SYS_statx, SYS_clone3, SYS_clone, SYS_rseq, SYS_epoll_pwait2, SYS_pidfd_open, SYS_bind, SYS_listen,
        SYS_sched_getattr, SYS_sched_setattr, SYS_sched_setaffinity, SYS_sched_getaffinity, SYS_nanosleep, SYS_getdents64,
        SYS_readlinkat, SYS_unlinkat, SYS_mkdirat, SYS_flock, SYS_fchmod, SYS_membarrier, SYS_prctl, SYS_sigaltstack,
        SYS_fallocate, SYS_fstatfs, SYS_mlock, SYS_tgkill, SYS_wait4,
        SYS_pread64, SYS_process_vm_readv, SYS_rt_tgsigqueueinfo,
    }
};

/// The C library's functions of these names make the calls of these names where these exist.
#[cfg(target_arch = "x86_64")]
const OLD_NEEDS: &[Need] = needs! {
    Breaks { SYS_poll, SYS_epoll_wait, }
    Tolerated { SYS_readlink, SYS_rmdir, SYS_mkdir, }
};
#[cfg(not(target_arch = "x86_64"))]
const OLD_NEEDS: &[Need] = &[];

fn all() -> impl Iterator<Item = &'static Need> {
    NEEDS.iter().chain(OLD_NEEDS)
}

/// How many calls there are.
pub(super) fn count() -> usize {
    all().count()
}

/// Every call, in order.
pub(super) fn for_each(action: impl FnMut(&'static Need)) {
    all().for_each(action);
}

/// Whether the library cannot continue because a call has failed with this error.
pub(super) fn is_refused(need: &Need, error: c_int) -> bool {
    need.failure == Failure::Breaks && matches!(error, libc::EPERM | libc::EACCES | libc::ENOSYS)
}

/// The first call that the library needs and the filter does not permit; `None` if all is well.
pub(super) fn missing(filter: &Program) -> Option<&'static str> {
    let lacks = |need: &&Need| {
        let start = Call::new(ARCH, need.number as u32);
        let call = need.arguments.iter().fold(start, |call, (index, value)| call.with_argument(*index, *value));
        match need.failure {
            Failure::Breaks => !filter.permits(&call),
            Failure::Tolerated => filter.answers(&call).contains(&Answer::Catches),
        }
    };
    all().find(lacks).map(|need| need.name.trim_start_matches("SYS_"))
}

#[cfg(test)]
mod tests {
    use super::super::bpf::Instruction;
    use super::*;

    /// A filter that lets everything pass but one call, to which it answers `verdict`.
    fn all_but(number: c_long, verdict: u32) -> Program {
        let instruction = |code, jt, jf, k| Instruction { code, jt, jf, k };
        let filter = [
            instruction(0x20, 0, 0, 0),
            instruction(0x15, 0, 1, number as u32),
            instruction(0x06, 0, 0, verdict),
            instruction(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        Program::new(&filter).expect("a valid filter")
    }

    #[test]
    fn a_filter_must_permit_every_call() {
        let kill = libc::SECCOMP_RET_KILL_PROCESS;
        assert_eq!(missing(&all_but(libc::SYS_reboot, kill)), None);
        assert_eq!(missing(&all_but(libc::SYS_memfd_create, kill)), Some("memfd_create"));
        assert_eq!(missing(&all_but(libc::SYS_statx, kill)), Some("statx"));
    }

    #[test]
    fn some_calls_may_fail_but_not_be_caught() {
        let fails = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
        assert_eq!(missing(&all_but(libc::SYS_clone3, fails)), None);
        assert_eq!(missing(&all_but(libc::SYS_clone3, libc::SECCOMP_RET_TRAP)), Some("clone3"));
        assert_eq!(missing(&all_but(libc::SYS_futex, fails)), Some("futex"));
    }
}
