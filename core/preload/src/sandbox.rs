//! Programs that give up rights: seccomp filters, and namespaces that a process with several threads may not enter.
//!
//! The library sees a filter before the kernel does. It evaluates the filter for each system call that accelerated
//! connections need (`needs`, by the interpreter in [`bpf`]), and chooses one of two states for the process:
//!
//! * *Free*: the filter permits all of them. Nothing changes.
//! * *Confined*: it does not, or that is unknown. Before the filter is installed all connections go back to TCP (reason
//!   `sandboxed`), the helper thread ends, and the table of descriptors is emptied. From then on every hook makes only
//!   the system call of the C library's function, in all threads and in all children.
//!
//! A filter without SECCOMP_FILTER_FLAG_TSYNC applies to one thread and its children. The process is confined all the
//! same, because its threads share its connections. A confined process stays so until it starts another program.
//!
//! A filter that the program was started with cannot be read. `inherited` finds by trial which calls it permits.

use std::ffi::{c_int, c_long, c_ulong, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use netacc_config::LogLevel;
use netacc_proto::Reason;

use crate::control::{exit, flows};
use crate::datagram::KernelOnly;
use crate::os::actions;
use crate::os::confinement::{self, is_confined};
use crate::os::errno::{errno, set_errno};
use crate::os::inside::Inside;
use crate::os::{kept, log, own, real};
use crate::runtime::{self, Runtime};
use crate::table::{self, Entry};
use crate::{leaving, stats};

pub mod bpf;
mod inherited;
mod needs;

use bpf::{Instruction, Program, MAX_INSTRUCTIONS};

/// Before the first socket is handled: confines a process that was started with a filter which does not permit links.
#[inline]
pub fn before_first_socket() {
    static CHECKED: AtomicBool = AtomicBool::new(false);
    if !CHECKED.load(Ordering::Relaxed) && !CHECKED.swap(true, Ordering::SeqCst) {
        check_inherited();
    }
}

#[cold]
fn check_inherited() {
    let saved = errno();
    if inherited::forbids() {
        confine("a filter that it was started with");
    }
    set_errno(saved);
}

/// `SECCOMP_MODE_STRICT` and `SECCOMP_MODE_FILTER` of prctl(2).
const MODE_STRICT: c_ulong = 1;
const MODE_FILTER: c_ulong = 2;

/// Before `prctl(option, first, second, ...)`.
pub fn before_prctl(option: c_int, first: c_ulong, second: c_ulong) {
    if option != libc::PR_SET_SECCOMP || is_confined() {
        return;
    }
    match first {
        MODE_STRICT => confine("strict mode"),
        MODE_FILTER => before_filter(second as *const libc::sock_fprog),
        _ => {}
    }
}

/// Before `seccomp(operation, flags, argument)`.
pub fn before_seccomp(operation: c_long, flags: c_long, argument: c_long) {
    if is_confined() {
        return;
    }
    match operation as u32 {
        libc::SECCOMP_SET_MODE_STRICT if flags == 0 && argument == 0 => confine("strict mode"),
        libc::SECCOMP_SET_MODE_FILTER => before_filter(argument as *const libc::sock_fprog),
        _ => {}
    }
}

/// Before `unshare(flags)`: the kernel refuses some namespaces to a process with more than one thread.
pub fn before_unshare(flags: c_int) {
    const SINGLE_THREADED: c_int = libc::CLONE_NEWUSER | libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_VM;
    if flags & SINGLE_THREADED != 0 && !is_confined() {
        confine("a namespace that the kernel opens to single threads only");
    }
}

/// Before `setns(fd, kind)`: likewise.
pub fn before_setns(fd: c_int, kind: c_int) {
    const SINGLE_THREADED: c_int = libc::CLONE_NEWUSER | libc::CLONE_NEWNS;
    const NS_GET_NSTYPE: c_ulong = 0xb703;
    if is_confined() {
        return;
    }
    let saved = errno();
    let kind = match kind {
        // Of a file of /proc/PID/ns; of a pidfd the caller names the kinds.
        // SAFETY: no pointers.
        0 => unsafe { real::ioctl(fd, NS_GET_NSTYPE, std::ptr::null_mut()) }.max(0),
        kind => kind,
    };
    set_errno(saved);
    if kind & SINGLE_THREADED != 0 {
        confine("a namespace that the kernel opens to single threads only");
    }
}

/// Before a filter is installed. One that the kernel will refuse changes nothing.
fn before_filter(filter: *const libc::sock_fprog) {
    let saved = errno();
    let instructions = may_filter().then(|| read_filter(filter)).flatten();
    if let Some(program) = instructions.and_then(|instructions| Program::new(&instructions)) {
        if let Some(missing) = needs::missing(&program) {
            confine(&format!("a filter that does not permit {missing}"));
        }
    }
    set_errno(saved);
}

/// Whether this thread may install filters: it must have given up new privileges, or be privileged.
fn may_filter() -> bool {
    const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
    const SYS_ADMIN: u32 = 21;
    // SAFETY: no pointers.
    if unsafe { real::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) } == 1 {
        return true;
    }
    let header = [CAPABILITY_VERSION_3, 0];
    // Effective, permitted, inheritable; the lower 32 of each, and then the upper.
    let mut sets = [0u32; 6];
    // SAFETY: a header and two sets, as version 3 has them.
    let rc = unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) };
    rc != 0 || sets[0] & 1 << SYS_ADMIN != 0
}

/// A filter in the program's memory. `None` if it cannot be read: the kernel will return EFAULT or EINVAL. Programs
/// pass a null pointer to learn whether there are filters.
fn read_filter(filter: *const libc::sock_fprog) -> Option<Vec<Instruction>> {
    let mut header = libc::sock_fprog { len: 0, filter: std::ptr::null_mut() };
    // SAFETY: any bytes are a valid header.
    if !unsafe { copy(filter.cast(), (&raw mut header).cast(), size_of_val(&header)) } {
        return None;
    }
    let len = usize::from(header.len);
    if len == 0 || len > MAX_INSTRUCTIONS {
        return None;
    }
    let mut instructions = vec![Instruction { code: 0, jt: 0, jf: 0, k: 0 }; len];
    let bytes = len * size_of::<Instruction>();
    // SAFETY: any bytes are valid instructions, and there is room for so many.
    unsafe { copy(header.filter.cast(), instructions.as_mut_ptr().cast(), bytes) }.then_some(instructions)
}

/// Copies from an address that may be wrong. Returns whether that worked. Where another filter forbids the system call,
/// the address is assumed to be valid if it is not null.
///
/// # Safety
/// `to` has room for `len` bytes, of which any are valid.
unsafe fn copy(from: *const c_void, to: *mut c_void, len: usize) -> bool {
    if from.is_null() {
        return false;
    }
    let theirs = libc::iovec { iov_base: from.cast_mut(), iov_len: len };
    let ours = libc::iovec { iov_base: to, iov_len: len };
    // SAFETY: the kernel checks the other address; ours is the caller's promise.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &ours, 1, &theirs, 1, 0) };
    if copied < 0 && errno() != libc::EFAULT {
        // SAFETY: the program passes it to the kernel as valid.
        unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), len) };
        return true;
    }
    copied == len as isize
}

/// Makes this process behave as if there were no library, before `cause`. Bounded by the time limit of demotions.
#[cold]
fn confine(cause: &str) {
    let saved = errno();
    let inside = Inside::enter();
    if !confinement::begin() {
        // Another thread is confining the process.
        while !is_confined() {
            std::thread::sleep(Duration::from_micros(50));
        }
        drop(inside);
        return set_errno(saved);
    }
    real::resolve_all();
    let rt = runtime::get();
    bring_connections_back();
    if let Some(rt) = rt {
        exit::leave();
        forget_streams(rt);
        log::append(&rt.config, LogLevel::Warn, &format!("all connections stay on TCP, because of {cause}"));
        stats::report_at_exit();
        // No thread answers other processes any more.
        rt.end_helpers();
        stats::await_answers();
    }
    for (fd, entry) in table::entries() {
        if let Entry::Epoll(epoll) = &*entry {
            epoll.return_to_kernel();
        }
        retire(fd, entry);
    }
    own::protect_nothing();
    actions::leave();
    confinement::finish();
    drop(inside);
    set_errno(saved);
}

/// Afterwards every connection is a plain socket, also one whose link belongs to a parent.
fn bring_connections_back() {
    for (fd, entry) in table::entries() {
        match &*entry {
            Entry::Stream(sock) => drop(leaving::demote_for(sock, Reason::Sandboxed)),
            Entry::Datagram(socket) => flows::withdraw(socket, fd, KernelOnly::Confined),
            _ => {}
        }
    }
}

/// The library touches no descriptor of the program any more, because its number may name something else by then. The
/// peers of streams that were closed before have had until now to take the remaining bytes.
fn forget_streams(rt: &Runtime) {
    let Some(endpoint) = rt.endpoint() else { return };
    for (_, entry) in table::entries() {
        let Entry::Stream(sock) = &*entry else { continue };
        // A call that waits in another thread continues with the stream, which is a plain socket for good.
        if let Some(cell) = sock.stream.as_ref().filter(|_| !sock.callers.wait_elsewhere()) {
            if cell.lock(endpoint).close_plain() {
                cell.tag().store(table::NO_FD, Ordering::Relaxed);
                rt.given_up(cell);
                endpoint.forget(cell);
            }
        }
    }
}

/// Removes a descriptor from the table, for good. Its object stays in memory: other threads may be using it, and
/// dropping it makes system calls.
fn retire(fd: c_int, entry: Arc<Entry>) {
    table::remove(fd);
    kept::keep(entry);
}
