//! Calls other than the socket calls that read, write, take or end connections: asynchronous I/O of the C library and
//! of the kernel, io_uring (see [`liburing`](super::liburing) too), other processes' descriptors, the last thread.

use std::ffi::{c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use libc::aiocb;
use linux_raw_sys::io_uring::{io_uring_params, IORING_ENTER_REGISTERED_RING};
use netacc_proto::Reason;

use crate::control::flows;
use crate::control::unseen::apply_policy;
use crate::datagram::KernelOnly;
use crate::holders::Sender;
use crate::ops::{ending, rights};
use crate::os::aio::Iocb;
use crate::os::errno::{errno, set_errno};
use crate::os::{access, confinement, inside, limits, real};
use crate::protected::is_protected;
use crate::ring::{foreign, Does, Register, Ring, Submission};
use crate::table::{self, Entry};
use crate::{epoll, leaving, runtime, stats};

/// Most operations of one `lio_listio` that are inspected; the C library has no limit of its own.
const MAX_LIST: usize = 1 << 16;

/// Most descriptors of one table of a ring's files: the kernel takes no more.
const MAX_FILES: c_uint = 1 << 20;

/// Before `aio_read` or `aio_write`: threads of the C library make the calls, where nothing is interposed.
///
/// # Safety
/// `operation` is null or valid.
pub unsafe fn before_aio(operation: *const aiocb) {
    // SAFETY: the caller's promise.
    let Some(operation) = (unsafe { operation.as_ref() }) else { return };
    if table::get(operation.aio_fildes).is_some() {
        leaving::surrender(operation.aio_fildes, Reason::KernelOnly);
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

/// Before the program makes an io_uring that the library cannot see into: whether it may. The policy for unseen I/O
/// decides.
pub fn before_unseen_ring() -> bool {
    if confinement::is_confined() {
        return true;
    }
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
    if made < 0 || inside::is_inside() {
        return made;
    }
    let fd = made as c_int;
    // SAFETY: the kernel has just read it and written to it.
    if !take_in_ring(fd, unsafe { &*parameters }) {
        // SAFETY: the program does not have the number yet.
        unsafe { real::close(fd) };
        set_errno(libc::ENOSYS);
        return -1;
    }
    made
}

/// The program has made a ring that it enters by calls which the library sees. Returns whether the program may have it.
pub(super) fn take_in_ring(fd: c_int, made: &io_uring_params) -> bool {
    match Ring::map(fd, made).filter(|_| (fd as usize) < limits::MAX_FDS) {
        Some(ring) => {
            foreign::record_seen(fd);
            table::insert(fd, Arc::new(Entry::Ring(ring)));
            true
        }
        None => before_unseen_ring(),
    }
}

/// Before an `io_uring_enter` that the library sees: reads the submissions. Returns whether the call may be made.
pub fn before_enter(fd: c_int, submits: c_uint, flags: c_uint) -> bool {
    let entry = if flags & IORING_ENTER_REGISTERED_RING == 0 { table::get_full(fd) } else { None };
    let Some(Entry::Ring(ring)) = entry.as_deref() else { return runtime::is_kept_on_kernel() || unseen_ring() };
    match ring {
        Ring::Mapped(submissions) => apply_submissions(submissions.pending(submits)),
        // Called by liburing itself, where it is built to use the C library's system calls: the submissions have
        // been read.
        Ring::OfLibrary => true,
    }
}

/// Before an `io_uring_register` that the library sees. Returns whether the call may be made.
///
/// # Safety
/// As the system call.
pub unsafe fn before_register(fd: c_int, kind: c_uint, argument: *const c_void, count: c_uint) -> bool {
    let is_seen = matches!(table::get_full(fd).as_deref(), Some(Entry::Ring(_)));
    // SAFETY: the caller's promise.
    match unsafe { Register::of(kind, argument, count) } {
        Register::Files(files, count) if is_seen => {
            // SAFETY: the kernel reads them next.
            unsafe { leave_files_to_ring(files, count) };
            true
        }
        Register::Other if is_seen => true,
        _ => runtime::is_kept_on_kernel() || unseen_ring(),
    }
}

/// The program uses a ring whose operations the library does not all see. Applies the policy once, unless it refuses.
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

/// Carries out the effects of submissions on connections, up to the first that the kernel must not get. Returns whether
/// the kernel may have all. Keeps errno.
pub(super) fn apply_submissions(submissions: impl Iterator<Item = Submission>) -> bool {
    let saved = errno();
    let allowed = submissions.into_iter().all(|mut submission| apply_submission(&mut submission));
    set_errno(if allowed { saved } else { libc::ENOSYS });
    allowed
}

/// Carries out the effect of a submission on connections. Returns whether the kernel may have it.
fn apply_submission(submission: &mut Submission) -> bool {
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
                // The kernel's registration still exists. The kernel returns any other error too.
                submission.replace(-errno());
            }
        }
        Does::Close(fd) if is_protected(fd) => submission.replace(-libc::EBADF),
        Does::Close(fd) => {
            if submission.is_late() {
                leaving::surrender(fd, Reason::KernelOnly);
            }
            if table::get(fd).is_some() {
                ending::forget(fd);
            }
        }
        Does::WaitFor(instance) if table::get(instance).is_some() => submission.replace(-libc::EINVAL),
        // SAFETY: valid by the program's promise to the kernel.
        Does::Register(files, count) => unsafe { leave_files_to_ring(files, count) },
        Does::SendMessage(fd, message) => match fd.filter(|fd| table::get(*fd).is_some()) {
            Some(fd) => leave_to_ring(fd),
            // SAFETY: as above.
            None => unsafe { rights::release(message) },
        },
        Does::Use(fd, other) => [fd, other].into_iter().flatten().for_each(leave_to_ring),
        Does::WaitFor(_) | Does::Other => {}
    }
    true
}

/// Descriptors go into a ring's table of files, where submissions name them by index.
///
/// # Safety
/// `files` is null or has `count` elements.
pub(super) unsafe fn leave_files_to_ring(files: *const c_int, count: c_uint) {
    if files.is_null() {
        return;
    }
    let saved = errno();
    for i in 0..count.min(MAX_FILES) as usize {
        // SAFETY: any bytes are a number. The kernel reports a bad address.
        let Some(fd) = (unsafe { access::read(files.wrapping_add(i)) }) else { break };
        // Negative numbers stand for no file.
        leave_to_ring(fd);
    }
    set_errno(saved);
}

/// The kernel uses a descriptor past the library from now on.
fn leave_to_ring(fd: c_int) {
    match table::get_full(fd).as_deref() {
        Some(Entry::Stream(_)) => leaving::surrender(fd, Reason::KernelOnly),
        // An accepted connection is another file, and arrives at the kernel's listener in any case.
        Some(Entry::Idle(listener)) if listener.listening.load(Ordering::Relaxed) => {}
        Some(Entry::Idle(listener)) => listener.kernel_only.store(true, Ordering::Relaxed),
        Some(Entry::Epoll(epoll)) => epoll.nest(),
        Some(Entry::Datagram(socket)) => flows::withdraw(socket, fd, KernelOnly::Watched),
        Some(Entry::Ring(_)) | None => {}
    }
}

/// Before `io_submit`: the kernel executes operations on files past the library.
///
/// # Safety
/// `list` is null or has `count` elements, each null or valid.
pub unsafe fn before_submit(count: c_long, list: *const *const Iocb) {
    if list.is_null() {
        return;
    }
    let saved = errno();
    for i in 0..usize::try_from(count).unwrap_or(0).min(MAX_LIST) {
        // SAFETY: any bytes are valid for both. The kernel reports a bad address.
        let operation = unsafe { access::read(list.wrapping_add(i)).and_then(|operation| access::read(operation)) };
        let Some(operation) = operation else { break };
        leave_to_ring(operation.fd);
    }
    set_errno(saved);
}

/// Before `pidfd_getfd`: the process whose descriptor is taken must demote the connection, because it does not see how
/// the copy is used. A process without the library has nothing to demote.
pub fn before_taking(pidfd: c_int, fd: c_int) {
    if confinement::is_confined() {
        return;
    }
    let saved = errno();
    if let Some(pid) = pid_of(pidfd) {
        if pid == std::process::id() {
            leaving::surrender(fd, Reason::Shared);
        } else {
            stats::surrender_elsewhere(pid, fd);
        }
    }
    set_errno(saved);
}

/// The process that a descriptor was taken from.
pub fn sender(pidfd: c_int) -> Sender {
    let saved = errno();
    let pid = pid_of(pidfd).unwrap_or(0);
    set_errno(saved);
    Sender::Process(pid)
}

/// The process behind a pidfd.
fn pid_of(pidfd: c_int) -> Option<u32> {
    let info = netacc_descriptors::read_text(format!("/proc/self/fdinfo/{pidfd}")).ok()?;
    info.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_of_asynchronous_io_is_declared_as_the_kernel_has_it() {
        assert_eq!(std::mem::offset_of!(Iocb, fd), 20);
    }

    #[test]
    fn the_process_behind_a_pidfd_is_found() {
        // SAFETY: no pointers.
        let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, std::process::id(), 0) } as c_int;
        assert!(pidfd >= 0);
        assert_eq!(pid_of(pidfd), Some(std::process::id()));
        // SAFETY: just opened.
        unsafe { libc::close(pidfd) };
        assert_eq!(pid_of(pidfd), None);
    }
}
