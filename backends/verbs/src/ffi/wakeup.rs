//! Descriptors to sleep on: a bell that we ring ourselves, and a set of descriptors of which any may be readable.
//!
//! The calls go to the kernel directly: libc's functions of these names may be interposed, by a library of which this
//! crate is a part, which would take the descriptors for the program's.

use std::ffi::c_long;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use libc::syscall;

/// Readable from the first ring on until it is cleared.
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> io::Result<Bell> {
        // SAFETY: a new descriptor, owned here alone.
        Ok(Bell(unsafe { owned(syscall(libc::SYS_eventfd2, 0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))? }))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub(crate) fn ring(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight readable bytes. A bell that is full has been rung.
        unsafe { syscall(libc::SYS_write, self.fd(), one.as_ptr(), one.len()) };
    }

    pub(crate) fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: eight writable bytes. A bell that was not rung says so.
        unsafe { syscall(libc::SYS_read, self.fd(), count.as_mut_ptr(), count.len()) };
    }
}

/// Readable while any of its members is. Each has a number.
pub(crate) struct EventSet(OwnedFd);

/// Members asked for at a time.
const BATCH: usize = 32;

impl EventSet {
    pub(crate) fn new() -> io::Result<EventSet> {
        // SAFETY: a new descriptor, owned here alone.
        Ok(EventSet(unsafe { owned(syscall(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC))? }))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub(crate) fn add(&self, fd: RawFd, number: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: number };
        // SAFETY: `event` lives through the call.
        match unsafe { syscall(libc::SYS_epoll_ctl, self.fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(crate) fn remove(&self, fd: RawFd) {
        // SAFETY: no event is needed to remove.
        unsafe { syscall(libc::SYS_epoll_ctl, self.fd(), libc::EPOLL_CTL_DEL, fd, ptr::null_mut::<u8>()) };
    }

    /// Calls `f` with the number of each member that is readable now. It should make it unreadable, or it comes again.
    pub(crate) fn readable(&self, mut f: impl FnMut(u64)) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
        // Bounded: members may become readable as fast as they are told of.
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

/// How sleeping on descriptors ended.
pub(crate) enum Sleep {
    Readable,
    TimedOut,
    Interrupted,
}

/// Sleeps until one of the descriptors is readable.
pub(crate) fn sleep_on(fds: [RawFd; 2], timeout: Option<Duration>) -> Sleep {
    let mut watched = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let mut timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().min(i64::MAX as u64) as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    });
    // The kernel writes what is left of it.
    let timeout = timeout.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    // SAFETY: two entries and a valid time or none, which live through the call.
    match unsafe { syscall(libc::SYS_ppoll, watched.as_mut_ptr(), 2, timeout, ptr::null::<u8>(), 8) } {
        0 => Sleep::TimedOut,
        count if count > 0 => Sleep::Readable,
        _ => Sleep::Interrupted,
    }
}

/// # Safety
/// `fd` is new, or an error.
unsafe fn owned(fd: c_long) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: new, as the caller promises.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}
