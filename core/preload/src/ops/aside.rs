//! What reads, writes, takes or ends connections beside the socket calls: asynchronous I/O of the C library, io_uring,
//! other processes' descriptors, the last thread.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::aiocb;
use netacc_config::UnseenIoPolicy;
use netacc_proto::Reason;

use crate::ops::{connection, errno, process, set_errno};
use crate::table::{self, Entry};
use crate::{runtime, stats};

/// Most operations of one `lio_listio` that are looked at; the C library has no limit of its own.
const MAX_LIST: usize = 1 << 16;

/// Before `aio_read` or `aio_write`: threads of the C library make the calls, where nothing is interposed.
///
/// # Safety
/// `operation` is null or valid.
pub unsafe fn before_aio(operation: *const aiocb) {
    // SAFETY: the caller's promise.
    let Some(operation) = (unsafe { operation.as_ref() }) else { return };
    if table::get(operation.aio_fildes).is_some() {
        process::surrender(operation.aio_fildes, Reason::KernelOnly);
    }
}

/// Before `lio_listio`.
///
/// # Safety
/// `list` is null or has `count` elements, each null or valid.
pub unsafe fn before_list(list: *const *mut aiocb, count: c_int) {
    if list.is_null() {
        return;
    }
    for i in 0..usize::try_from(count).unwrap_or(0).min(MAX_LIST) {
        // SAFETY: within the caller's array.
        unsafe { before_aio(*list.add(i)) };
    }
}

/// Before an io_uring is made: what is submitted to it is not seen. What becomes of it is the policy for such I/O; whether
/// it may be made.
pub fn before_ring() -> bool {
    let saved = errno();
    let allowed = apply_policy("the program makes an io_uring, whose operations are not seen");
    set_errno(if allowed { saved } else { libc::ENOSYS });
    allowed
}

/// An epoll instance reports a registration that was made unseen. Whoever relies on it would not be told of what comes on a
/// link.
#[cold]
pub fn unseen_registration() {
    static KNOWN: AtomicBool = AtomicBool::new(false);
    if !KNOWN.swap(true, Ordering::Relaxed) {
        let saved = errno();
        apply_policy("the program has registered a descriptor with an epoll instance unseen");
        set_errno(saved);
    }
}

/// What the policy for unseen I/O makes of a program of which anything may be unseen. Whether it may do `what`.
fn apply_policy(what: &str) -> bool {
    let rt = runtime::start();
    let policy = if rt.endpoint().is_some() { rt.config.unseen_io } else { UnseenIoPolicy::Log };
    let allowed = match policy {
        UnseenIoPolicy::Log => true,
        UnseenIoPolicy::Error => false,
        UnseenIoPolicy::Abort => std::process::abort(),
        _ => {
            runtime::keep_on_kernel();
            for (fd, entry) in table::entries(connection::open_limit()) {
                let Entry::Stream(sock) = &*entry else { continue };
                sock.note_reason(Reason::UnseenIo);
                process::surrender(fd, Reason::UnseenIo);
            }
            true
        }
    };
    runtime::log(&rt.config, &format!("{what}: {policy}"));
    allowed
}

/// Before `pidfd_getfd`: the process whose descriptor is taken must bring the connection back to the kernel, for it does
/// not see what becomes of it. A process without the library has nothing to bring back.
pub fn before_taking(pidfd: c_int, fd: c_int) {
    let saved = errno();
    if let Some(pid) = pid_of(pidfd) {
        if pid == std::process::id() {
            process::surrender(fd, Reason::Shared);
        } else {
            stats::surrender_elsewhere(pid, fd);
        }
    }
    set_errno(saved);
}

/// The process behind a pidfd.
fn pid_of(pidfd: c_int) -> Option<u32> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{pidfd}")).ok()?;
    info.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_behind_a_pidfd_is_told() {
        // SAFETY: no pointers.
        let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, std::process::id(), 0) } as c_int;
        assert!(pidfd >= 0);
        assert_eq!(pid_of(pidfd), Some(std::process::id()));
        // SAFETY: just opened.
        unsafe { libc::close(pidfd) };
        assert_eq!(pid_of(pidfd), None);
    }
}
