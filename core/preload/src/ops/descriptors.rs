//! Copies of descriptors, and closing many at once.
//!
//! A copy shares the entry: both numbers name one connection. A number that the kernel hands out again cannot be
//! ours any more. If the table still has it, it was closed unseen, and its entry is removed first.
//!
//! Descriptors that the library keeps for itself behave as if they were not open: see `runtime::protected_fds`.

use std::ffi::{c_int, c_uint};
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use crate::control::shortage;
use crate::ops::ending;
use crate::os::deferral::Busy;
use crate::os::errno::{errno, set_errno};
use crate::os::{confinement, limits, real};
use crate::protected::is_protected;
use crate::table::{self, Entry};
use crate::{leaving, runtime, vfork, watched};

/// Makes `new`, a fresh copy of `from` in the kernel, a copy in the table too. Keeps errno.
pub fn copied(from: c_int, new: c_int) {
    let _busy = Busy::enter();
    let saved = errno();
    if table::get(new).is_some() {
        ending::forget(new);
    }
    match table::get_full(from) {
        // The program that the child starts gets the connection by a number that this process does not see.
        Some(entry) if vfork::is_child() => leaving::lend(&[entry]),
        Some(entry) => share(entry, new),
        None => {}
    }
    set_errno(saved);
}

/// Makes `new`, which has no entry yet, one more descriptor of `entry`.
pub(super) fn share(entry: Arc<Entry>, new: c_int) {
    match &*entry {
        Entry::Stream(sock) => {
            watched::come_back(&sock.watchers, &sock.outliving, new);
            sock.descriptors.fetch_add(1, Ordering::AcqRel)
        }
        Entry::Idle(listener) => listener.descriptors.fetch_add(1, Ordering::AcqRel),
        Entry::Epoll(epoll) => {
            epoll.named(new);
            0
        }
        Entry::Datagram(socket) => socket.descriptors.fetch_add(1, Ordering::AcqRel),
        Entry::Ring(_) => 0,
    };
    table::insert(new, entry);
}

/// `dup`.
pub fn dup(fd: c_int) -> c_int {
    if is_protected(fd) {
        return bad();
    }
    let new = shortage::opening_fd(|| {
        // SAFETY: no pointers.
        unsafe { real::dup(fd) }
    });
    if new >= 0 {
        copied(fd, new);
    }
    new
}

/// `fcntl(F_DUPFD)` and `fcntl(F_DUPFD_CLOEXEC)`.
pub fn dup_from(fd: c_int, command: c_int, lowest: std::ffi::c_long) -> c_int {
    let new = shortage::opening_fd_from(lowest.try_into().unwrap_or(0), || {
        // SAFETY: no pointers with these commands.
        unsafe { real::fcntl(fd, command, lowest) }
    });
    if new >= 0 {
        copied(fd, new);
    }
    new
}

/// `fcntl` of a descriptor that is not ours.
///
/// # Safety
/// As the C function.
pub unsafe fn fcntl_of_others(fd: c_int, command: c_int, argument: std::ffi::c_long) -> c_int {
    let call = || {
        // SAFETY: passed on.
        unsafe { real::fcntl(fd, command, argument) }
    };
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => shortage::opening_fd_from(argument.try_into().unwrap_or(0), call),
        _ => call(),
    }
}

/// `dup2`.
pub fn dup2(from: c_int, to: c_int) -> c_int {
    if from == to {
        // Only a check, which changes nothing.
        // SAFETY: no pointers.
        return unsafe { real::dup2(from, to) };
    }
    replace(from, to, || {
        // SAFETY: no pointers.
        unsafe { real::dup2(from, to) }
    })
}

/// `dup3`.
pub fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    if from == to || flags & !libc::O_CLOEXEC != 0 {
        // SAFETY: no pointers; the kernel returns EINVAL.
        return unsafe { real::dup3(from, to, flags) };
    }
    replace(from, to, || {
        // SAFETY: no pointers.
        unsafe { real::dup3(from, to, flags) }
    })
}

fn replace(from: c_int, to: c_int, duplicate: impl FnOnce() -> c_int) -> c_int {
    if is_protected(to) || is_protected(from) {
        return bad();
    }
    let is_known = table::get(to).is_some();
    if is_known {
        // The file of `to` is ended only if the call is going to succeed: `to` is open, so its number is
        // valid. SAFETY: no pointers.
        if unsafe { real::fcntl(from, libc::F_GETFD, 0) } < 0 {
            return -1;
        }
        ending::forget(to);
    }
    // A number in the table is the program's own, and closing a connection may take time.
    let new = if is_known { duplicate() } else { netacc_descriptors::change(duplicate) };
    if new >= 0 {
        copied(from, new);
    }
    new
}

fn bad() -> c_int {
    set_errno(libc::EBADF);
    -1
}

/// `CLOSE_RANGE_CLOEXEC`: nothing is closed.
const CLOSE_RANGE_CLOEXEC: c_int = 1 << 2;
/// `CLOSE_RANGE_UNSHARE`.
const CLOSE_RANGE_UNSHARE: c_int = 1 << 1;

/// `close_range`.
pub fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let plain = confinement::is_confined()
        || first > last
        || flags & CLOSE_RANGE_CLOEXEC != 0
        || flags & !CLOSE_RANGE_UNSHARE != 0;
    if plain {
        return kernels_close_range(first, last, flags);
    }
    // Linux has the call since 5.9. A program that is told so closes its descriptors one by one, and may keep some.
    if kernels_close_range(1, 0, 0) != 0 && errno() != libc::EINVAL {
        return -1;
    }
    forget_range(first, last);
    netacc_descriptors::change(|| {
        for part in around(first..=last, &runtime::protected_fds()) {
            let rc = kernels_close_range(*part.start(), *part.end(), flags);
            if rc != 0 {
                return rc;
            }
        }
        0
    })
}

/// By number: an older C library does not have the function, but programs make the call.
fn kernels_close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // SAFETY: no pointers; the kernel reports wrong arguments.
    let rc = unsafe { real::syscall(libc::SYS_close_range, first.into(), last.into(), flags.into(), 0, 0, 0) };
    rc as c_int
}

/// `closefrom`, which cannot fail.
pub fn closefrom(first: c_int) {
    if confinement::is_confined() {
        // SAFETY: no pointers.
        return unsafe { real::closefrom(first) };
    }
    let first = first.max(0) as c_uint;
    let saved = errno();
    if close_range(first, c_uint::MAX, 0) != 0 {
        // A kernel without close_range. The library's own descriptors are spared here as well.
        netacc_descriptors::change(|| {
            let protected = runtime::protected_fds();
            for fd in (first as c_int..limits::open_limit().max(table::end())).filter(|fd| !protected.contains(fd)) {
                // SAFETY: no pointers.
                unsafe { real::close(fd) };
            }
        });
    }
    set_errno(saved);
}

fn forget_range(first: c_uint, last: c_uint) {
    let limit = (last.min(limits::MAX_FDS as c_uint - 1) + 1) as c_int;
    let limit = limit.min(table::end());
    for fd in first.min(limits::MAX_FDS as c_uint) as c_int..limit {
        if table::get(fd).is_some() {
            ending::forget(fd);
        }
    }
}

/// The parts of `range` that hold none of `holes`.
fn around(range: RangeInclusive<c_uint>, holes: &[c_int]) -> Vec<RangeInclusive<c_uint>> {
    let mut holes: Vec<c_uint> =
        holes.iter().filter_map(|h| c_uint::try_from(*h).ok()).filter(|h| range.contains(h)).collect();
    holes.sort_unstable();
    holes.dedup();
    let mut parts = Vec::with_capacity(holes.len() + 1);
    let mut next = Some(*range.start());
    for hole in holes {
        if let Some(start) = next.filter(|start| *start < hole) {
            parts.push(start..=hole - 1);
        }
        next = hole.checked_add(1);
    }
    if let Some(start) = next.filter(|start| start <= range.end()) {
        parts.push(start..=*range.end());
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_split_around_the_librarys_descriptors() {
        assert_eq!(around(3..=u32::MAX, &[]), [3..=u32::MAX]);
        assert_eq!(around(3..=20, &[7, 8, 12]), [3..=6, 9..=11, 13..=20]);
        assert_eq!(around(3..=20, &[12, -1, 7, 7, 2, 21]), [3..=6, 8..=11, 13..=20]);
        assert_eq!(around(3..=20, &[3, 20]), [4..=19]);
        assert!(around(5..=5, &[5]).is_empty());
        assert_eq!(around(5..=u32::MAX, &[i32::MAX]), [5..=i32::MAX as u32 - 1, i32::MAX as u32 + 1..=u32::MAX]);
    }

    #[test]
    fn copies_of_descriptors_that_are_not_ours_are_only_the_kernels() {
        let low = dup(2);
        assert!(low > 2 && table::get(low).is_none());
        // A number that no other test gets while this one runs.
        let fd = dup_from(low, libc::F_DUPFD, 700);
        assert_eq!(close_range(low as c_uint, low as c_uint, 0), 0);
        assert_eq!(dup2(2, fd), fd);
        assert_eq!(dup3(2, fd, libc::O_CLOEXEC), fd);
        assert_eq!(dup3(2, 2, 0), -1);
        assert_eq!(errno(), libc::EINVAL);
        assert_eq!(dup2(fd, fd), fd);
        assert_eq!(close_range(fd as c_uint, fd as c_uint, 0), 0);
        assert_eq!(dup2(fd, fd), -1);
        assert_eq!(errno(), libc::EBADF);
    }
}
