//! Processes: the steps that a connection needs before another process, or another program, gets its descriptor.
//!
//! * Fork: `pthread_atfork` handlers, so that every way through the C library's `fork` is seen: `fork`, `__fork`,
//!   `daemon`, `forkpty`. Only `_Fork`, which runs no handlers, is interposed.
//! * `clone` with memory of its own is such a fork too, also by `syscall()`. Children that share the memory: see [`vfork`](crate::vfork).
//! * `exec`, `posix_spawn`, `system`, `popen`: connections that would be inherited (no close-on-exec) leave their links
//!   first. They may be promoted again once no program holds them: see [`holders`](crate::holders).
//!   `posix_spawn_file_actions_adddup2` names a descriptor that will be inherited under another number whatever its
//!   flag: see [`spawn_actions`](crate::ops::spawn_actions).
//! * Programs that these start get the library too: see [`environment`](crate::ops::environment).

use std::ffi::{c_int, c_long, c_void};
use std::sync::Arc;

use crate::control::{exit, flows, fork};
use crate::ops::environment::{self, Strings};
use crate::ops::{ending, spawn_actions};
use crate::os::errno::{errno, set_errno};
use crate::os::{confinement, real};
use crate::table::{self, Entry};
use crate::{family, leaving, runtime, vfork};

/// Registers the fork handlers. Once, when the library is loaded: before any handler of the program, so that ours run
/// last before a fork and first after it.
pub fn register() {
    // SAFETY: the handlers take and return nothing, and the library is never unloaded.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}

unsafe extern "C" fn prepare() {
    keeping_errno(fork::before_fork);
}

unsafe extern "C" fn parent() {
    fork::after_fork_parent();
}

unsafe extern "C" fn child() {
    keeping_errno(fork::after_fork_child);
}

fn keeping_errno(action: impl FnOnce()) {
    let saved = errno();
    action();
    set_errno(saved);
}

/// `_Fork`, with the work of the handlers around it.
pub fn bare_fork() -> libc::pid_t {
    // SAFETY: no pointers.
    forks(|| unsafe { real::_Fork() }.into()) as libc::pid_t
}

/// A call that forks without running handlers: does the handlers' work around it.
pub fn forks(call: impl FnOnce() -> c_long) -> c_long {
    keeping_errno(fork::before_fork);
    let pid = call();
    match pid {
        0 => keeping_errno(fork::after_fork_child),
        _ => fork::after_fork_parent(),
    }
    pid
}

/// `exec` and its like. `call` makes the real call with the environment that the program is to have.
///
/// # Safety
/// `envp` is null or a list of strings that ends with null.
pub unsafe fn exec(envp: Strings, call: impl FnOnce(Strings) -> c_int) -> c_int {
    if confinement::is_confined() {
        return call(envp);
    }
    // A child that shares the memory replaces itself, and not the process whose links these are.
    let replaces = !vfork::is_child();
    if replaces {
        exit::leave();
    }
    before_start(&[]);
    if replaces {
        keeping_errno(|| {
            flows::end_all();
            release_children();
            family::set_replaced(true);
        });
    }
    // SAFETY: the caller's promise.
    let rc = unsafe { environment::with(envp, call) };
    if replaces {
        keeping_errno(|| family::set_replaced(false));
        exit::stay();
    }
    rc
}

/// `posix_spawn` and its like; as [`exec`].
///
/// # Safety
/// As for [`exec`].
pub unsafe fn spawn(actions: *const c_void, envp: Strings, call: impl FnOnce(Strings) -> c_int) -> c_int {
    if confinement::is_confined() {
        return call(envp);
    }
    before_start(&spawn_actions::copied_by(actions));
    // SAFETY: the caller's promise.
    unsafe { environment::with(envp, call) }
}

/// Before a program is started: the sockets that it inherits, and `others`, leave their links and rings, because this process
/// cannot see how another one uses them. A forked child that is about to exec requests them from its parent.
pub fn before_start(others: &[c_int]) {
    if confinement::is_confined() {
        return;
    }
    keeping_errno(|| {
        let inherited = table::entries().filter(|(fd, entry)| {
            // SAFETY: no pointers.
            let flags = || unsafe { real::fcntl(*fd, libc::F_GETFD, 0) };
            matches!(&**entry, Entry::Stream(_) | Entry::Datagram(_))
                && (others.contains(fd) || matches!(flags(), flags @ 0.. if flags & libc::FD_CLOEXEC == 0))
        });
        let (datagrams, connections): (Vec<_>, Vec<_>) =
            inherited.partition(|(_, entry)| matches!(&**entry, Entry::Datagram(_)));
        flows::lend(&datagrams);
        let mut lent: Vec<Arc<Entry>> = Vec::new();
        for (_, entry) in connections {
            // Several descriptors may name one connection.
            if !lent.iter().any(|other| Arc::ptr_eq(other, &entry)) {
                lent.push(entry);
            }
        }
        leaving::lend(&lent);
    });
}

/// Children that wait for connections of this process need not wait any longer: it is about to be replaced.
fn release_children() {
    let Some(rt) = runtime::get() else { return };
    for (_, entry) in table::entries() {
        if let Entry::Stream(sock) = &*entry {
            if let Some(cell) = &sock.stream {
                rt.release_children(cell);
            }
        }
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
