//! What reads, writes, takes or ends connections beside the socket calls: asynchronous I/O of the C library, io_uring,
//! other processes' descriptors, the last thread.

use std::ffi::{c_int, c_long, c_uint};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use libc::aiocb;
use linux_raw_sys::io_uring::{io_uring_params, IORING_ENTER_REGISTERED_RING};
use netacc_config::UnseenIoPolicy;
use netacc_proto::Reason;

use crate::ops::{ending, errno, process, set_errno};
use crate::ring::{self, Does, Ring, Submission};
use crate::table::{self, Entry};
use crate::{epoll, real, runtime, stats};

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

/// Before an io_uring is made of which nothing is seen: whether it may be. What becomes of it is the policy for such I/O.
pub fn before_unseen_ring() -> bool {
    let saved = errno();
    let allowed = apply_policy("the program has an io_uring whose operations are not seen");
    set_errno(if allowed { saved } else { libc::ENOSYS });
    allowed
}

/// `io_uring_setup` by `syscall`, after which its submissions are seen if they can be.
///
/// # Safety
/// As the system call.
pub unsafe fn make_ring(entries: c_uint, parameters: *mut io_uring_params) -> c_long {
    // SAFETY: the caller's promise.
    let made = unsafe { real::syscall(libc::SYS_io_uring_setup, entries.into(), parameters as c_long, 0, 0, 0, 0) };
    if made < 0 || runtime::is_inside() {
        return made;
    }
    let fd = made as c_int;
    // SAFETY: the kernel has just read it and written to it.
    let ring = Ring::map(fd, unsafe { &*parameters }).filter(|_| (fd as usize) < table::MAX_FDS);
    match ring {
        Some(ring) => drop(table::insert(fd, Arc::new(Entry::Ring(ring)))),
        None if !before_unseen_ring() => {
            // SAFETY: the program has not been told of it.
            unsafe { real::close(fd) };
            set_errno(libc::ENOSYS);
            return -1;
        }
        None => {}
    }
    made
}

/// Before `io_uring_enter` by `syscall`: looks at what is submitted. Whether it may be.
pub fn before_enter(fd: c_int, submits: c_uint, flags: c_uint) -> bool {
    let entry = if flags & IORING_ENTER_REGISTERED_RING == 0 { table::get_full(fd) } else { None };
    let Some(Entry::Ring(ring)) = entry.as_deref() else { return runtime::is_kept_on_kernel() || unseen_ring() };
    let saved = errno();
    let allowed = ring.pending(submits).all(|mut submission| take_note(&mut submission));
    set_errno(if allowed { saved } else { libc::ENOSYS });
    allowed
}

/// Before `io_uring_register` by `syscall`. Whether it may be.
pub fn before_register(fd: c_int, kind: c_uint) -> bool {
    let is_seen = matches!(table::get_full(fd).as_deref(), Some(Entry::Ring(_)));
    is_seen && ring::keeps_descriptors_visible(kind) || runtime::is_kept_on_kernel() || unseen_ring()
}

/// A ring is used of which not everything is seen. The policy is applied once, unless it refuses.
#[cold]
fn unseen_ring() -> bool {
    static ALLOWED: AtomicBool = AtomicBool::new(false);
    if ALLOWED.load(Ordering::Relaxed) {
        return true;
    }
    let allowed = before_unseen_ring();
    ALLOWED.store(allowed, Ordering::Relaxed);
    allowed
}

/// What a submission to a ring means for connections. Whether the kernel may have it.
fn take_note(submission: &mut Submission) -> bool {
    match submission.does() {
        Does::Watch(instance, op, fd, event) => {
            let Some(entry) = table::get_full(instance) else { return true };
            if submission.is_late() {
                return runtime::is_kept_on_kernel() || unseen_ring();
            }
            let is_parked = epoll::is_parked(&entry, fd) && op != libc::EPOLL_CTL_ADD;
            // SAFETY: valid by the program's promise to the kernel.
            if unsafe { epoll::ctl(&entry, instance, op, fd, event) } == 0 {
                submission.replace(0);
            } else if is_parked {
                // For the kernel it is there still. Any other error is also the kernel's.
                submission.replace(-errno());
            }
        }
        Does::Close(fd) if runtime::is_helper_fd(fd) => submission.replace(-libc::EBADF),
        Does::Close(fd) => {
            if submission.is_late() {
                process::surrender(fd, Reason::KernelOnly);
            }
            if table::get(fd).is_some() {
                ending::forget(fd);
            }
        }
        Does::WaitFor(instance) if table::get(instance).is_some() => submission.replace(-libc::EINVAL),
        Does::Hide => return runtime::is_kept_on_kernel() || unseen_ring(),
        Does::Use(fd, other) => [Some(fd), other].into_iter().flatten().for_each(leave_to_ring),
        Does::WaitFor(_) | Does::Other => {}
    }
    true
}

/// A descriptor is used by a ring from now on.
fn leave_to_ring(fd: c_int) {
    match table::get_full(fd).as_deref() {
        Some(Entry::Stream(_)) => process::surrender(fd, Reason::KernelOnly),
        Some(Entry::Idle(listener)) => listener.kernel_only.store(true, Ordering::Relaxed),
        Some(Entry::Epoll(epoll)) => epoll.nest(),
        Some(Entry::Ring(_)) | None => {}
    }
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
            for (fd, entry) in table::entries() {
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
