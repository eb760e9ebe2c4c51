//! Processes: what a connection needs before another process, or another program, gets its descriptor.
//!
//! * Fork: `pthread_atfork` handlers, so that every way through the C library's `fork` is seen: `fork`, `__fork`,
//!   `daemon`, `forkpty`. Only `_Fork`, which runs no handlers, is interposed. A raw `clone` is not seen.
//! * `vfork` becomes `fork`. Its child shares memory with the parent, so a `close` or `dup2` in it would change the
//!   parent's table; and it may not return through a C frame, so it could only be watched from assembly. POSIX lets
//!   the two be the same.
//! * `exec`, `posix_spawn`, `system`, `popen`: connections that would be inherited (no close-on-exec) are made plain
//!   sockets first. `posix_spawn_file_actions_adddup2` names a descriptor that will be inherited under another
//!   number whatever its flag, so it makes that connection plain at once.

use std::ffi::c_int;

use netacc_proto::Reason;

use crate::ops::{ending, errno, io, set_errno};
use crate::table::{self, Entry};
use crate::{real, runtime};

/// Registers the fork handlers. Once, when the library is loaded: before any handler of the program, so that ours run
/// last before a fork and first after it.
pub fn register() {
    // SAFETY: the handlers take and return nothing, and the library is never unloaded.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}

unsafe extern "C" fn prepare() {
    keeping_errno(runtime::before_fork);
}

unsafe extern "C" fn parent() {
    runtime::after_fork_parent();
}

unsafe extern "C" fn child() {
    keeping_errno(runtime::after_fork_child);
}

fn keeping_errno(action: impl FnOnce()) {
    let saved = errno();
    action();
    set_errno(saved);
}

/// `_Fork`, with what the handlers do around it.
pub fn bare_fork() -> libc::pid_t {
    keeping_errno(runtime::before_fork);
    // SAFETY: no pointers.
    let pid = unsafe { real::_Fork() };
    match pid {
        0 => keeping_errno(runtime::after_fork_child),
        _ => runtime::after_fork_parent(),
    }
    pid
}

/// Before a program is replaced or started: what it inherits must be plain sockets, and stay so, for this process cannot
/// see what another does with them. In a forked child that is about to exec, they are asked for from the parent.
pub fn before_exec() {
    keeping_errno(|| {
        for (fd, entry) in table::entries() {
            let Entry::Stream(sock) = &*entry else { continue };
            // SAFETY: no pointers.
            let flags = unsafe { real::fcntl(fd, libc::F_GETFD, 0) };
            if flags >= 0 && flags & libc::FD_CLOEXEC == 0 {
                io::demote_for(sock, Reason::Shared);
            }
            if let (Some(cell), Some(rt)) = (&sock.stream, runtime::get()) {
                rt.tell_children(cell);
            }
        }
    });
}

/// `fd` is about to be used by somebody who does not call this library, or by another process: for good.
pub fn surrender(fd: c_int, reason: Reason) {
    let Some(entry) = table::get_full(fd) else { return };
    if let Entry::Stream(sock) = &*entry {
        keeping_errno(|| {
            io::demote_for(sock, reason);
        });
    }
}

/// After `daemon`, in the child: the standard descriptors have been replaced inside the C library.
pub fn after_daemon() {
    for fd in 0..3 {
        if table::get(fd).is_some() {
            keeping_errno(|| ending::forget(fd));
        }
    }
}
