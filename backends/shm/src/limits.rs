//! Resource limits of the process that shared memory runs into: file sizes, address space.
//!
//! A limit is a reason to stay on TCP. It must never end the program, nor take resources from the program that it would
//! have without this backend.

#![expect(unsafe_code, reason = "signal masks and limits are system calls")]

use std::mem::zeroed;
use std::ptr::null_mut;

/// Links take at most one part in this many of the address space that a limited process has left. Arbitrary.
const ADDRESS_SPACE_SHARE: u64 = 8;

/// Runs `f`, which sets the size of a file or writes to one. Where `RLIMIT_FSIZE` forbids that, `f` gets EFBIG as usual, but
/// the program gets no SIGXFSZ, which would end it.
pub fn without_file_size_signal<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: the sets are initialised by the calls before they are used, and the mask is restored below. The kernel
    // sends the signal to the calling thread, so no other thread's signal is taken here; one that was pending before
    // stays.
    unsafe {
        let (mut one, mut old, mut pending) = (zeroed(), zeroed(), zeroed());
        libc::sigemptyset(&mut one);
        libc::sigaddset(&mut one, libc::SIGXFSZ);
        libc::pthread_sigmask(libc::SIG_BLOCK, &one, &mut old);
        libc::sigpending(&mut pending);
        let earlier = libc::sigismember(&pending, libc::SIGXFSZ) == 1;
        let result = f();
        let errno = *libc::__errno_location();
        if !earlier {
            let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(&one, null_mut(), &at_once);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, null_mut());
        *libc::__errno_location() = errno;
        result
    }
}

/// The largest file that this process may make.
pub(crate) fn file_size() -> u64 {
    soft(libc::RLIMIT_FSIZE)
}

/// The largest segment that this process may map for one more pair.
pub(crate) fn segment_bytes() -> u64 {
    let limit = soft(libc::RLIMIT_AS);
    let room = match limit {
        libc::RLIM_INFINITY => u64::MAX,
        limit => limit.saturating_sub(mapped_bytes().unwrap_or(limit)) / ADDRESS_SPACE_SHARE,
    };
    room.min(file_size())
}

/// The largest number of descriptors that the device takes: half of the process's limit.
pub(crate) fn descriptors() -> usize {
    usize::try_from(soft(libc::RLIMIT_NOFILE) / 2).unwrap_or(usize::MAX)
}

fn soft(resource: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the struct is writable.
    unsafe { libc::getrlimit(resource, &mut limit) };
    limit.rlim_cur
}

/// The number of bytes that this process has mapped.
fn mapped_bytes() -> Option<u64> {
    let statm = netacc_descriptors::read_text("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_ascii_whitespace().next()?.parse().ok()?;
    // SAFETY: no pointers.
    Some(pages * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;

    /// Runs `f` in a forked child, whose limits are its own; returns its status.
    fn in_child(f: impl FnOnce() -> bool) -> libc::c_int {
        // SAFETY: the child only makes system calls, and leaves without running anything else.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let status = i32::from(!f());
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: the status is writable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        status
    }

    fn limit_files(bytes: u64) {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: a valid limit.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
    }

    /// Breaks if the library were ended by SIGXFSZ where it sizes a file, or left the signal pending.
    #[test]
    fn a_file_that_is_too_large_is_an_error_and_no_signal() {
        for (limit, bytes, fits) in [(0, 4096, false), (4095, 4096, false), (4096, 4096, true), (0, 0, true)] {
            let status = in_child(|| {
                limit_files(limit);
                sys::memfd(c"netacc-test", bytes)
                    .map_or_else(|e| e.raw_os_error() == Some(libc::EFBIG) && !fits, |_| fits)
            });
            assert_eq!(status, 0, "limit {limit}, file of {bytes}");
        }
    }

    /// A signal that the program has kept pending is the program's.
    #[test]
    fn a_signal_that_was_pending_before_stays() {
        let status = in_child(|| {
            limit_files(0);
            // SAFETY: the sets are initialised by the calls.
            unsafe {
                let (mut set, mut pending) = (zeroed(), zeroed());
                libc::sigemptyset(&mut set);
                libc::sigaddset(&mut set, libc::SIGXFSZ);
                libc::pthread_sigmask(libc::SIG_BLOCK, &set, null_mut());
                libc::raise(libc::SIGXFSZ);
                let refused = sys::memfd(c"netacc-test", 1).is_err();
                libc::sigpending(&mut pending);
                refused && libc::sigismember(&pending, libc::SIGXFSZ) == 1
            }
        });
        assert_eq!(status, 0);
    }
}
