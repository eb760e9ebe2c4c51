//! `syscall`: system calls by number go the way of the functions of the same name. libuv closes descriptors this way.
//!
//! Variadic in C; see [`descriptors`](super::descriptors) for why fixed parameters receive the arguments. The seventh
//! is on the stack on x86-64: if the caller passed fewer, the hook reads the caller's own frame, as glibc does.
//!
//! The table has every call by which a program can move bytes of a connection, wait for it, make, name, copy or end it.
//! Calls that are not interposed by name, because the kernel's answer is right, are not in the table either (see
//! [`hooks`](super)): `bind`, `getsockname`, `getpeername`, `preadv`, `pwritev`, `tee`, `vmsplice`, `copy_file_range`,
//! `fstat`. Not seen by number are `vfork`, and `clone` and `clone3` of children with another stack or
//! the same memory.

use std::ffi::{c_int, c_long, c_uint};

use super::aside::of_program as aside;
use super::bytes::of_program as bytes;
use super::confinement::of_program as confinement;
use super::descriptors::of_program as descriptors;
use super::hooks;
use super::process::of_program as process;
use super::readiness::of_program as readiness;
use super::sockets::of_program as sockets;
use crate::control::shortage::opening;
use crate::ops::raw::{self, Mask};
use crate::ops::signals::on_action;
use crate::os::{self, real};
use crate::sandbox;

/// The system call itself, if it names no descriptor of ours.
///
/// # Safety
/// As the system call.
unsafe fn or_kernel(ours: Option<c_int>, (number, [a, b, c, d, e, f]): (c_long, [c_long; 6])) -> c_long {
    match ours {
        Some(result) => result.into(),
        // SAFETY: passed on.
        None => unsafe { real::syscall(number, a, b, c, d, e, f) },
    }
}

hooks! {
    fn syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long {
        if os::confinement::is_confined() {
            return real::syscall(number, a, b, c, d, e, f);
        }
        let fd = a as c_int;
        match number {
            libc::SYS_read => bytes::read(fd, b as _, c as _) as c_long,
            libc::SYS_write => bytes::write(fd, b as _, c as _) as c_long,
            libc::SYS_readv => bytes::readv(fd, b as _, c as _) as c_long,
            libc::SYS_writev => bytes::writev(fd, b as _, c as _) as c_long,
            // The upper half of the offset is in the next argument, and is ignored where a word holds the whole offset.
            libc::SYS_preadv2 => bytes::preadv2(fd, b as _, c as _, d, f as _) as c_long,
            libc::SYS_pwritev2 => bytes::pwritev2(fd, b as _, c as _, d, f as _) as c_long,
            libc::SYS_recvfrom => bytes::recvfrom(fd, b as _, c as _, d as _, e as _, f as _) as c_long,
            libc::SYS_sendto => bytes::sendto(fd, b as _, c as _, d as _, e as _, f as _) as c_long,
            libc::SYS_recvmsg => bytes::recvmsg(fd, b as _, c as _) as c_long,
            libc::SYS_sendmsg => bytes::sendmsg(fd, b as _, c as _) as c_long,
            libc::SYS_recvmmsg => bytes::recvmmsg(fd, b as _, c as _, d as _, e as _).into(),
            libc::SYS_sendmmsg => bytes::sendmmsg(fd, b as _, c as _, d as _).into(),
            libc::SYS_sendfile => bytes::sendfile(fd, b as _, c as _, d as _) as c_long,
            libc::SYS_splice => bytes::splice(fd, b as _, c as _, d as _, e as _, f as _) as c_long,
            libc::SYS_close => descriptors::close(fd).into(),
            libc::SYS_close_range => descriptors::close_range(a as c_uint, b as _, c as _).into(),
            libc::SYS_dup => descriptors::dup(fd).into(),
            libc::SYS_dup3 => descriptors::dup3(fd, b as _, c as _).into(),
            libc::SYS_fcntl => descriptors::fcntl(fd, b as _, c).into(),
            libc::SYS_ioctl => descriptors::ioctl(fd, b as _, c as _).into(),
            libc::SYS_socket => sockets::socket(fd, b as _, c as _).into(),
            libc::SYS_listen => sockets::listen(fd, b as _).into(),
            libc::SYS_accept => sockets::accept(fd, b as _, c as _).into(),
            libc::SYS_accept4 => sockets::accept4(fd, b as _, c as _, d as _).into(),
            libc::SYS_connect => sockets::connect(fd, b as _, c as _).into(),
            libc::SYS_shutdown => sockets::shutdown(fd, b as _).into(),
            libc::SYS_getpeername => sockets::getpeername(fd, b as _, c as _).into(),
            libc::SYS_getsockopt => sockets::getsockopt(fd, b as _, c as _, d as _, e as _).into(),
            libc::SYS_setsockopt => sockets::setsockopt(fd, b as _, c as _, d as _, e as _).into(),
            libc::SYS_epoll_create1 => readiness::epoll_create1(fd).into(),
            libc::SYS_epoll_ctl => readiness::epoll_ctl(fd, b as _, c as _, d as _).into(),
            libc::SYS_epoll_pwait => or_kernel(
                raw::epoll_pwait(fd, (b as _, c as _), d as _, Mask { set: e as _, len: f as _ }),
                (number, [a, b, c, d, e, f]),
            ),
            libc::SYS_epoll_pwait2 => or_kernel(
                raw::epoll_pwait2(fd, (b as _, c as _), d as _, Mask { set: e as _, len: f as _ }),
                (number, [a, b, c, d, e, f]),
            ),
            libc::SYS_ppoll => or_kernel(
                raw::ppoll(a as _, b as _, c as _, Mask { set: d as _, len: e as _ }),
                (number, [a, b, c, d, e, f]),
            ),
            libc::SYS_pselect6 => or_kernel(
                raw::pselect6(fd, [b as _, c as _, d as _], e as _, f as _),
                (number, [a, b, c, d, e, f]),
            ),
            libc::SYS_rt_sigaction => on_action(fd, || real::syscall(number, a, b, c, d, e, f)),
            libc::SYS_pidfd_getfd => aside::pidfd_getfd(fd, b as _, c as _).into(),
            libc::SYS_io_uring_setup => crate::ops::aside::make_ring(a as _, b as _),
            libc::SYS_io_uring_enter if !crate::ops::aside::before_enter(fd, b as _, d as _) => -1,
            libc::SYS_io_uring_register if !crate::ops::aside::before_register(fd, b as _, c as _, d as _) => -1,
            libc::SYS_io_submit => {
                crate::ops::aside::before_submit(b, c as _);
                real::syscall(number, a, b, c, d, e, f)
            }
            libc::SYS_exit_group => crate::hooks::process::_exit(fd),
            // On the same stack, as a fork; all other kinds return on another stack.
            libc::SYS_clone if a & c_long::from(libc::CLONE_VM) == 0 && b == 0 => {
                crate::ops::process::forks(|| real::syscall(number, a, b, c, d, e, f))
            }
            libc::SYS_clone3 if crate::ops::clone::is_fork(a, b) => {
                crate::ops::process::forks(|| real::syscall(number, a, b, c, d, e, f))
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_fork => crate::ops::process::forks(|| real::syscall(number, a, b, c, d, e, f)),
            libc::SYS_execve => process::execve(a as _, b as _, c as _).into(),
            libc::SYS_execveat => process::execveat(fd, b as _, c as _, d as _, e as _).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => descriptors::dup2(fd, b as _).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => readiness::poll(a as _, b as _, c as _).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => or_kernel(
                raw::select(fd, [b as _, c as _, d as _], e as _),
                (number, [a, b, c, d, e, f]),
            ),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_create => readiness::epoll_create(fd).into(),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => readiness::epoll_wait(fd, b as _, c as _, d as _).into(),
            libc::SYS_prctl => confinement::prctl(a as c_int, b as _, c as _, d as _, e as _).into(),
            libc::SYS_unshare => confinement::unshare(a as c_int).into(),
            libc::SYS_setns => confinement::setns(fd, b as _).into(),
            libc::SYS_seccomp => {
                sandbox::before_seccomp(a, b, c);
                real::syscall(number, a, b, c, d, e, f)
            }
            libc::SYS_openat | libc::SYS_pipe2 | libc::SYS_socketpair | libc::SYS_eventfd2 | libc::SYS_memfd_create
            | libc::SYS_timerfd_create | libc::SYS_signalfd4 | libc::SYS_inotify_init1 | libc::SYS_pidfd_open => {
                opening(|result| result < 0, || real::syscall(number, a, b, c, d, e, f))
            }
            _ => real::syscall(number, a, b, c, d, e, f),
        }
    }
}
