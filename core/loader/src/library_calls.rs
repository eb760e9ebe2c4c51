//! The system calls that the library handles.

/// Numbers from this on are not in a [`table`]. There are fewer system calls.
pub const NUMBERS: usize = 512;

/// Those of the library's `syscall` hook. Without it these would act on the kernel's sockets beneath links.
const LIBRARY: [i64; 61] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_socket,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_shutdown,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_epoll_create,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_pidfd_getfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_submit,
    libc::SYS_exit_group,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_prctl,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_seccomp,
    libc::SYS_openat,
    libc::SYS_pipe2,
    libc::SYS_socketpair,
    libc::SYS_eventfd2,
    libc::SYS_memfd_create,
    libc::SYS_timerfd_create,
    libc::SYS_signalfd4,
    libc::SYS_inotify_init1,
    libc::SYS_pidfd_open,
];

/// Those of the library's calls that concern it only if their first argument is a descriptor whose bytes it moves.
const BY_DESCRIPTOR: [i64; 8] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
];

/// In a [`table`]: the kernel's alone.
pub const OTHER: u8 = 0;
/// In a [`table`]: always handled.
pub const HANDLED: u8 = 1;
/// In a [`table`]: handled if the first argument is a descriptor whose bytes the library moves.
pub const HANDLED_BY_DESCRIPTOR: u8 = 2;

/// A table by number of the library's calls, and of `more`, which are always handled.
pub const fn table(more: &[i64]) -> [u8; NUMBERS] {
    let mut table = [OTHER; NUMBERS];
    set(&mut table, &LIBRARY, HANDLED);
    set(&mut table, &BY_DESCRIPTOR, HANDLED_BY_DESCRIPTOR);
    set(&mut table, more, HANDLED);
    table
}

const fn set(table: &mut [u8; NUMBERS], numbers: &[i64], value: u8) {
    let mut at = 0;
    while at < numbers.len() {
        table[numbers[at] as usize] = value;
        at += 1;
    }
}
