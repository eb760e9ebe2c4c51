//! Filters that the process was started with, as containers and services have. They cannot be read, so a child finds by
//! trial which calls they permit. It makes each call that the library needs, with arguments that the kernel refuses. A
//! filter that ends the child, or lets a call fail with a permission error, does not permit the call.
//!
//! Before the trial the library makes only calls that the dynamic loader has made under the same filter: `openat`,
//! `read`, `close`, `mmap`. The trial itself needs `clone`, as the helper thread does.

use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use super::needs;

/// Whether the process was started with filters that do not permit all calls that the library needs.
pub(super) fn forbids() -> bool {
    is_filtered() && (is_in_valgrind() || !try_out())
}

/// Whether valgrind runs the program: it loads a library of its own. Calls with arguments that the kernel refuses at once,
/// as those of the trial, keep valgrind 3.19 busy for ever.
fn is_in_valgrind() -> bool {
    const NAME: &[u8] = b"vgpreload_core";
    // SAFETY: a C string. No other thread runs while the library is loaded.
    let loaded = unsafe {
        let value = libc::getenv(c"LD_PRELOAD".as_ptr());
        if value.is_null() {
            return false;
        }
        std::ffi::CStr::from_ptr(value).to_bytes()
    };
    loaded.windows(NAME.len()).any(|part| part == NAME)
}

/// Whether there are filters. Without the standard library's files, which use more system calls.
fn is_filtered() -> bool {
    // The line comes after some two thousand bytes at most.
    let mut text = [0u8; 4096];
    // SAFETY: the path is a C string; the descriptor is closed here.
    let len = unsafe {
        let fd = libc::open(c"/proc/self/status".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if fd < 0 {
            return false;
        }
        let len = libc::read(fd, text.as_mut_ptr().cast(), text.len());
        libc::close(fd);
        len
    };
    let text = text.get(..usize::try_from(len).unwrap_or(0)).unwrap_or_default();
    mode(text).is_some_and(|mode| mode != b"0")
}

/// The value of the line `Seccomp:`.
fn mode(status: &[u8]) -> Option<&[u8]> {
    status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Seccomp:")).map(<[u8]>::trim_ascii)
}

/// The child's findings, in memory that it shares with its parent.
#[repr(C)]
struct Findings {
    /// Calls that it has survived.
    survived: AtomicU32,
    /// Calls that were not permitted and that the library cannot do without.
    refused: AtomicU32,
}

/// Whether a child survives all calls.
fn try_out() -> bool {
    let len = size_of::<Findings>();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh anonymous mapping.
    let page =
        unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0) };
    if page == libc::MAP_FAILED {
        return false;
    }
    // SAFETY: zeros are valid counts, and the mapping stays until below.
    let findings = unsafe { &*page.cast::<Findings>() };
    // No signal at its end, so that no wait of the program's sees it. This thread continues when the child has ended.
    let flags: c_long = libc::CLONE_VFORK.into();
    // SAFETY: the child has a copy of the memory, and makes system calls only.
    let child = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    if child == 0 {
        attempt(findings);
    }
    let survived = findings.survived.load(Ordering::SeqCst) as usize == needs::count();
    let passed = child > 0 && survived && findings.refused.load(Ordering::SeqCst) == 0;
    if survived {
        // SAFETY: the status is not requested.
        unsafe { libc::syscall(libc::SYS_wait4, child, 0, libc::__WALL, 0) };
    }
    // SAFETY: mapped above, and used no more.
    unsafe { libc::munmap(page, len) };
    passed
}

/// The child: makes every call.
fn attempt(findings: &Findings) -> ! {
    // SAFETY: no handler, and no pointers. It should leave no memory image behind if a filter ends it.
    unsafe {
        libc::signal(libc::SIGSYS, libc::SIG_DFL);
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
    }
    needs::for_each(|need| {
        let refused = needs::is_refused(need, probe(need.number, need.arguments()));
        findings.refused.fetch_add(u32::from(refused), Ordering::SeqCst);
        findings.survived.fetch_add(1, Ordering::SeqCst);
    });
    loop {
        // SAFETY: ends the child.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
}

/// Makes a call whose arguments are wrong except for those that filters check. Returns its error, or 0.
fn probe(number: c_long, fixed: &[(usize, u64)]) -> c_int {
    let word = 0u32;
    let mut arguments = [-1 as c_long; 6];
    match number {
        // These work with any arguments: one ends the child, the other jumps.
        libc::SYS_exit | libc::SYS_rt_sigreturn => return 0,
        // The kernel answers an unknown operation like an unknown call.
        libc::SYS_futex => arguments = [(&raw const word) as c_long, libc::FUTEX_WAKE.into(), 0, 0, 0, 0],
        _ => {}
    }
    for (index, value) in fixed {
        arguments[*index] = *value as c_long;
    }
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: no address is valid but the futex word's; a call that succeeds all the same affects the child alone.
    let rc = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if rc == -1 {
        crate::os::errno::errno()
    } else {
        0
    }
}

const _: () = assert!(size_of::<*const c_void>() <= size_of::<c_long>());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_is_found_among_other_lines() {
        assert_eq!(mode(b"Name:\tx\nNoNewPrivs:\t0\nSeccomp:\t2\nSeccomp_filters:\t1\n"), Some(&b"2"[..]));
        assert_eq!(mode(b"Seccomp_filters:\t1\n"), None);
        assert_eq!(mode(b""), None);
    }

    // Breaks if any call with wrong arguments harms the child, or fails as if it were not permitted.
    #[test]
    fn without_a_filter_everything_is_permitted() {
        assert!(try_out());
    }
}
