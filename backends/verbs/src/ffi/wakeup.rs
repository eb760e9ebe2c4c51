//! One descriptor for two causes: the completion channel, and a bell that we ring ourselves.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Readable while the channel is, or the bell has been rung and not cleared.
pub(crate) struct Wakeup {
    bell: OwnedFd,
    both: OwnedFd,
}

impl Wakeup {
    pub(crate) fn new(channel: RawFd) -> io::Result<Wakeup> {
        // SAFETY: new descriptors, owned here alone.
        let (bell, both) = unsafe {
            let bell = owned(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?;
            (bell, owned(libc::epoll_create1(libc::EPOLL_CLOEXEC))?)
        };
        for fd in [channel, bell.as_raw_fd()] {
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
            // SAFETY: both descriptors are open; `event` lives through the call.
            if unsafe { libc::epoll_ctl(both.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Wakeup { bell, both })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.both.as_raw_fd()
    }

    pub(crate) fn ring(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight readable bytes. A bell that is full has been rung.
        unsafe { libc::write(self.bell.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    pub(crate) fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: eight writable bytes. A bell that was not rung says so.
        unsafe { libc::read(self.bell.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

/// # Safety
/// `fd` is new, or an error.
unsafe fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: new, as the caller promises.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
