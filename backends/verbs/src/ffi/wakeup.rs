//! Descriptors to sleep on: an eventfd that the backend signals, and a set of descriptors that is readable while any of
//! them is.
//!
//! The calls go to the kernel directly: libc's functions of these names may be interposed by a library that contains
//! this crate, and it would treat the descriptors as the program's.

use std::ffi::c_long;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use libc::syscall;

/// Readable from the first signal on until it is cleared.
pub struct EventFd(OwnedFd);

impl EventFd {
    /// Not signalled.
    ///
    /// # Errors
    /// Fails if there is no descriptor left.
    pub fn new() -> io::Result<EventFd> {
        // SAFETY: a new descriptor, owned here alone.
        Ok(EventFd(unsafe { owned(|| syscall(libc::SYS_eventfd2, 0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))? }))
    }

    /// To sleep on.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Makes it readable.
    pub fn signal(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight readable bytes. A full eventfd is signalled already.
        unsafe { syscall(libc::SYS_write, self.fd(), one.as_ptr(), one.len()) };
    }

    /// Makes it unreadable.
    pub fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: eight writable bytes. One that was not signalled fails with EAGAIN.
        unsafe { syscall(libc::SYS_read, self.fd(), count.as_mut_ptr(), count.len()) };
    }
}

/// Readable from the set time on, until it is set again.
pub struct TimerFd(OwnedFd);

impl TimerFd {
    /// Not set.
    ///
    /// # Errors
    /// Fails if there is no descriptor left.
    pub fn new() -> io::Result<TimerFd> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: a new descriptor, owned here alone.
        Ok(TimerFd(unsafe { owned(|| syscall(libc::SYS_timerfd_create, libc::CLOCK_MONOTONIC, flags))? }))
    }

    /// To sleep on.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// From `after` now on; `None`: never.
    pub fn set(&self, after: Option<Duration>) {
        let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let at = after.map_or(none, |after| libc::timespec {
            tv_sec: after.as_secs().min(i64::MAX as u64) as libc::time_t,
            // All zeros would be never.
            tv_nsec: libc::c_long::from(after.subsec_nanos()).max(1),
        });
        let setting = libc::itimerspec { it_interval: none, it_value: at };
        // SAFETY: the setting is readable; the old one is not requested.
        unsafe {
            let old = ptr::null_mut::<libc::itimerspec>();
            syscall(libc::SYS_timerfd_settime, self.fd(), 0, &raw const setting, old);
        }
    }
}

/// Readable when the file behind a descriptor may have been unlinked.
pub(crate) struct UnlinkWatch {
    watch: OwnedFd,
    of: RawFd,
}

impl UnlinkWatch {
    /// Watches the file of `fd`, which stays open as long as the watch is used. `None`: the file cannot be watched.
    pub(crate) fn new(fd: RawFd) -> Option<UnlinkWatch> {
        // By this name the kernel also finds a file that has another name here than where it was made.
        let path = std::ffi::CString::new(format!("/proc/self/fd/{fd}")).ok()?;
        // SAFETY: a new descriptor, owned here alone; the path is a C string.
        unsafe {
            let watch = owned(|| syscall(libc::SYS_inotify_init1, libc::IN_CLOEXEC | libc::IN_NONBLOCK)).ok()?;
            let added = syscall(libc::SYS_inotify_add_watch, watch.as_raw_fd(), path.as_ptr(), libc::IN_ATTRIB);
            (added >= 0).then_some(UnlinkWatch { watch, of: fd })
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.watch.as_raw_fd()
    }

    /// Whether it was unlinked. Makes the watch unreadable until something changes.
    pub(crate) fn is_unlinked(&self) -> bool {
        let mut events = [0u8; 256];
        // SAFETY: the buffer is writable.
        let read = unsafe { syscall(libc::SYS_read, self.fd(), events.as_mut_ptr(), events.len()) };
        if read <= 0 {
            return false;
        }
        // SAFETY: plain numbers; the structure is writable.
        unsafe {
            let mut found: libc::stat = std::mem::zeroed();
            syscall(libc::SYS_fstat, self.of, &raw mut found) == 0 && found.st_nlink == 0
        }
    }
}

/// Readable while any of its members is. Each has a number.
pub struct EventSet(OwnedFd);

/// Members read at a time.
const BATCH: usize = 32;

impl EventSet {
    /// Without members.
    ///
    /// # Errors
    /// Fails if there is no descriptor left.
    pub fn new() -> io::Result<EventSet> {
        // SAFETY: a new descriptor, owned here alone.
        Ok(EventSet(unsafe { owned(|| syscall(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC))? }))
    }

    /// To sleep on.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Adds a descriptor.
    ///
    /// # Errors
    /// Fails if the kernel cannot watch it, or does so already.
    pub fn add(&self, fd: RawFd, number: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: number };
        // SAFETY: `event` lives through the call.
        match unsafe { syscall(libc::SYS_epoll_ctl, self.fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Removes a descriptor.
    pub fn remove(&self, fd: RawFd) {
        // SAFETY: no event is needed to remove.
        unsafe { syscall(libc::SYS_epoll_ctl, self.fd(), libc::EPOLL_CTL_DEL, fd, ptr::null_mut::<u8>()) };
    }

    /// Calls `f` with the number of each member that is readable now. `f` should make it unreadable, or it is reported
    /// again.
    pub fn readable(&self, mut f: impl FnMut(u64)) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
        // Bounded: members may become readable as fast as they are reported.
        for _ in 0..BATCH {
            // SAFETY: room for `BATCH` events; no waiting, no mask.
            let count = unsafe {
                syscall(libc::SYS_epoll_pwait, self.fd(), events.as_mut_ptr(), BATCH, 0, ptr::null::<u8>(), 8)
            };
            let count = usize::try_from(count).unwrap_or(0);
            events[..count].iter().for_each(|event| f(event.u64));
            if count < BATCH {
                return;
            }
        }
    }
}

/// The outcome of sleeping on descriptors.
pub(crate) enum Sleep {
    Readable,
    TimedOut,
    Interrupted,
}

/// Whether one of at most four descriptors is readable now.
pub(crate) fn is_any_readable(fds: &[RawFd]) -> bool {
    let none = libc::pollfd { fd: -1, events: 0, revents: 0 };
    let mut watched = [none; 4];
    for (entry, fd) in watched.iter_mut().zip(fds) {
        *entry = libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 };
    }
    let mut at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: four entries, of which those without a descriptor are left out, and a time; both live through the call.
    unsafe { syscall(libc::SYS_ppoll, watched.as_mut_ptr(), 4, &raw mut at_once, ptr::null::<u8>(), 8) != 0 }
}

/// Sleeps until one of the descriptors is readable.
pub(crate) fn sleep_on(fds: [RawFd; 2], timeout: Option<Duration>) -> Sleep {
    let mut watched = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let mut timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().min(i64::MAX as u64) as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    });
    // The kernel writes the remaining time into it.
    let timeout = timeout.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    // SAFETY: two entries and a valid time or none, which live through the call.
    match unsafe { syscall(libc::SYS_ppoll, watched.as_mut_ptr(), 2, timeout, ptr::null::<u8>(), 8) } {
        0 => Sleep::TimedOut,
        count if count > 0 => Sleep::Readable,
        _ => Sleep::Interrupted,
    }
}

/// A new descriptor at a high number: programs expect the lowest free ones for theirs. If there is no room at high
/// numbers, it keeps its number.
///
/// # Safety
/// `make` returns a new descriptor, or an error.
unsafe fn owned(make: impl FnOnce() -> c_long) -> io::Result<OwnedFd> {
    let _number = netacc_descriptors::borrow();
    let fd = make();
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: new, as the caller promises.
    Ok(netacc_descriptors::raise(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }))
}

/// Moves a descriptor that a library has made, within [`netacc_descriptors::borrow`], to a high number.
///
/// # Safety
/// `fd` is open, and the caller puts the result in its place.
pub(super) unsafe fn raised(fd: RawFd) -> RawFd {
    // SAFETY: as the caller promises.
    netacc_descriptors::raise(unsafe { OwnedFd::from_raw_fd(fd) }).into_raw_fd()
}
