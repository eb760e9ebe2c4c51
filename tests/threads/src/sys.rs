//! System calls that the standard library does not make in this form. Through the C library, as in any program.

#![expect(unsafe_code, reason = "system calls")]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libc::{c_int, c_short, c_void};

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn check_size(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Calls that move bytes: each thread has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// `read` and `write`.
    Plain,
    /// `recv` and `send`.
    Socket,
    /// `readv` and `writev`, in two parts.
    Vector,
    /// `recvmsg` and `sendmsg`.
    Message,
    /// `recv` and `send` with MSG_DONTWAIT, and `poll`.
    Polled,
}

pub(crate) const CALLS: [Call; 5] = [Call::Plain, Call::Socket, Call::Vector, Call::Message, Call::Polled];

fn parts(at: *mut u8, len: usize) -> [libc::iovec; 2] {
    let half = len / 2;
    let part = |from: usize, len| libc::iovec { iov_base: at.wrapping_add(from).cast(), iov_len: len };
    [part(0, half), part(half, len - half)]
}

fn message(parts: &mut [libc::iovec; 2]) -> libc::msghdr {
    // SAFETY: zeros are a valid message header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len();
    message
}

/// Sends some of `bytes`, at least one.
pub(crate) fn send(socket: &impl AsRawFd, call: Call, bytes: &[u8]) -> io::Result<usize> {
    let fd = socket.as_raw_fd();
    let (at, len) = (bytes.as_ptr().cast_mut(), bytes.len());
    let mut parts = parts(at, len);
    loop {
        // SAFETY: `len` readable bytes, in one part or two.
        let sent = check_size(unsafe {
            match call {
                Call::Plain => libc::write(fd, at.cast(), len),
                Call::Socket => libc::send(fd, at.cast(), len, libc::MSG_NOSIGNAL),
                Call::Vector => libc::writev(fd, parts.as_ptr(), 2),
                Call::Message => libc::sendmsg(fd, &message(&mut parts), libc::MSG_NOSIGNAL),
                Call::Polled => libc::send(fd, at.cast(), len, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT),
            }
        });
        match sent {
            Err(e) if call == Call::Polled && e.kind() == io::ErrorKind::WouldBlock => {
                poll(socket, libc::POLLOUT, -1)?;
            }
            result => return result,
        }
    }
}

/// Receives some bytes; 0 at the end.
pub(crate) fn receive(socket: &impl AsRawFd, call: Call, buffer: &mut [u8]) -> io::Result<usize> {
    let fd = socket.as_raw_fd();
    let (at, len) = (buffer.as_mut_ptr(), buffer.len());
    let mut parts = parts(at, len);
    loop {
        // SAFETY: `len` writable bytes, in one part or two.
        let received = check_size(unsafe {
            match call {
                Call::Plain => libc::read(fd, at.cast(), len),
                Call::Socket => libc::recv(fd, at.cast(), len, 0),
                Call::Vector => libc::readv(fd, parts.as_ptr(), 2),
                Call::Message => libc::recvmsg(fd, &mut message(&mut parts), 0),
                Call::Polled => libc::recv(fd, at.cast(), len, libc::MSG_DONTWAIT),
            }
        });
        match received {
            Err(e) if call == Call::Polled && e.kind() == io::ErrorKind::WouldBlock => {
                poll(socket, libc::POLLIN, -1)?;
            }
            result => return result,
        }
    }
}

/// The ready ones of `events`, within `ms` milliseconds or with -1 for ever.
pub(crate) fn poll(socket: &impl AsRawFd, events: c_short, ms: c_int) -> io::Result<c_short> {
    let mut entry = libc::pollfd { fd: socket.as_raw_fd(), events, revents: 0 };
    // SAFETY: one valid entry.
    check(unsafe { libc::poll(&mut entry, 1, ms) })?;
    Ok(entry.revents)
}

/// The length of the kernel's, or the library's, queue of incoming bytes.
pub(crate) fn readable_bytes(socket: &impl AsRawFd) -> io::Result<usize> {
    let mut count: c_int = 0;
    // SAFETY: one writable int.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::FIONREAD, &mut count) })?;
    Ok(count as usize)
}

/// An epoll instance.
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new() -> io::Result<Epoll> {
        // SAFETY: no pointers; the descriptor is new.
        Ok(Epoll(unsafe { OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) }))
    }

    /// EPOLL_CTL_ADD, _MOD or _DEL. The data is the descriptor's number.
    pub(crate) fn control(&self, operation: c_int, socket: &impl AsRawFd, events: c_int) -> io::Result<()> {
        let fd = socket.as_raw_fd();
        let mut event = libc::epoll_event { events: events as u32, u64: fd as u64 };
        // SAFETY: a valid event.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), operation, fd, &mut event) })?;
        Ok(())
    }

    /// Waits for one event; its descriptor. `None` when `ms` milliseconds are over.
    pub(crate) fn wait(&self, ms: c_int) -> io::Result<Option<c_int>> {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event.
        let n = check(unsafe { libc::epoll_wait(self.0.as_raw_fd(), &mut event, 1, ms) })?;
        Ok((n > 0).then_some(event.u64 as c_int))
    }
}

/// An eventfd, for telling threads that wait in [`Epoll::wait`].
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no pointers; the descriptor is new.
    Ok(unsafe { OwnedFd::from_raw_fd(check(libc::eventfd(0, libc::EFD_CLOEXEC))?) })
}

/// Makes an eventfd readable for good.
pub(crate) fn ring(eventfd: &OwnedFd) -> io::Result<()> {
    let one = 1u64;
    // SAFETY: eight readable bytes.
    check_size(unsafe { libc::write(eventfd.as_raw_fd(), (&raw const one).cast::<c_void>(), 8) })?;
    Ok(())
}
