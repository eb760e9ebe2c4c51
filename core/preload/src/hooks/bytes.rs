//! Moving bytes.

use std::ffi::{c_int, c_uint, c_void};

use libc::{iovec, mmsghdr, msghdr, off64_t, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};

use super::{hooks, stream_or};
use crate::ops::{datagram, files, message, rights};
use crate::os::{access, actions, real};
use crate::table;

hooks! {
    fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
        stream_or!(fd, real::read(fd, buf, len), |t| message::read(t, buf, len), |d| datagram::read(d, buf, len))
    }

    fn __read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
        read(fd, buf, len)
    }

    fn __read_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t {
        fits(len, room);
        read(fd, buf, len)
    }

    fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
        stream_or!(fd, real::readv(fd, iov, count), |t| message::readv(t, iov, count, 0), |d| datagram::readv(d, iov, count))
    }

    fn preadv2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        stream_or!(fd, real::preadv2(fd, iov, count, offset, flags), |t| match message::rw_flags(flags) {
            Some(flags) if offset == -1 => message::readv(t, iov, count, flags),
            _ => real::preadv2(fd, iov, count, offset, flags),
        })
    }

    fn preadv64v2(fd: c_int, iov: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t {
        preadv2(fd, iov, count, offset, flags)
    }

    fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
        stream_or!(fd, real::write(fd, buf, len), |t| message::write(t, buf, len), |d| datagram::write(d, buf, len))
    }

    fn __write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
        write(fd, buf, len)
    }

    fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
        stream_or!(fd, real::writev(fd, iov, count), |t| message::writev(t, iov, count, 0), |d| datagram::writev(d, iov, count))
    }

    fn pwritev2(fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        stream_or!(fd, real::pwritev2(fd, iov, count, offset, flags), |t| match message::rw_flags(flags) {
            Some(flags) if offset == -1 => message::writev(t, iov, count, flags),
            _ => real::pwritev2(fd, iov, count, offset, flags),
        })
    }

    fn pwritev64v2(fd: c_int, iov: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t {
        pwritev2(fd, iov, count, offset, flags)
    }

    fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
        let none = std::ptr::null_mut();
        stream_or!(
            fd,
            real::recv(fd, buf, len, flags),
            |t| message::recvfrom(t, buf, len, flags, none, std::ptr::null_mut()),
            |d| datagram::recvfrom(d, &[message::single(buf, len)], flags, none, std::ptr::null_mut())
        )
    }

    fn __recv_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t {
        fits(len, room);
        recv(fd, buf, len, flags)
    }

    fn recvfrom(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t) -> ssize_t {
        stream_or!(
            fd,
            real::recvfrom(fd, buf, len, flags, addr, addr_len),
            |t| message::recvfrom(t, buf, len, flags, addr, addr_len),
            |d| datagram::recvfrom(d, &[message::single(buf, len)], flags, addr, addr_len)
        )
    }

    fn __recvfrom_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t) -> ssize_t {
        fits(len, room);
        recvfrom(fd, buf, len, flags, addr, addr_len)
    }

    fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
        stream_or!(
            fd,
            {
                let n = real::recvmsg(fd, msg, flags);
                if n >= 0 && brought_control(msg) {
                    rights::receive(fd, msg);
                }
                n
            },
            |t| message::recvmsg(t, msg, flags),
            |d| datagram::recvmsg(d, msg, flags).unwrap_or_else(|| real::recvmsg(fd, msg, flags))
        )
    }

    fn recvmmsg(fd: c_int, msgs: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
        stream_or!(
            fd,
            {
                let n = real::recvmmsg(fd, msgs, count, flags, timeout);
                for i in 0..usize::try_from(n).unwrap_or(0) {
                    let msg = &raw const (*msgs.wrapping_add(i)).msg_hdr;
                    if brought_control(msg) {
                        rights::receive(fd, msg);
                    }
                }
                n
            },
            |t| message::recvmmsg(t, msgs, count, flags, timeout),
            |d| datagram::recvmmsg(d, msgs, count, flags, timeout)
                .unwrap_or_else(|| real::recvmmsg(fd, msgs, count, flags, timeout))
        )
    }

    fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
        stream_or!(
            fd,
            real::send(fd, buf, len, flags),
            |t| message::sendto(t, buf, len, flags, std::ptr::null(), 0),
            |d| datagram::sendto(d, buf, len, flags, (std::ptr::null(), 0))
        )
    }

    fn __send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
        send(fd, buf, len, flags)
    }

    fn sendto(fd: c_int, buf: *const c_void, len: size_t, flags: c_int, addr: *const sockaddr, addr_len: socklen_t) -> ssize_t {
        stream_or!(
            fd,
            real::sendto(fd, buf, len, flags, addr, addr_len),
            |t| message::sendto(t, buf, len, flags, addr, addr_len),
            |d| datagram::sendto(d, buf, len, flags, (addr, addr_len))
        )
    }

    fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
        stream_or!(
            fd,
            {
                if carries_control(msg) {
                    rights::release(msg);
                }
                real::sendmsg(fd, msg, flags)
            },
            |t| message::sendmsg(t, msg, flags),
            |d| datagram::sendmsg(d, msg, flags)
        )
    }

    fn sendmmsg(fd: c_int, msgs: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        stream_or!(
            fd,
            {
                for i in 0..(count as usize).min(message::MAX_VECTOR) {
                    let msg = &raw const (*msgs.wrapping_add(i)).msg_hdr;
                    if carries_control(msg) {
                        rights::release(msg);
                    }
                }
                real::sendmmsg(fd, msgs, count, flags)
            },
            |t| message::sendmmsg(t, msgs, count, flags),
            |d| datagram::sendmmsg(d, msgs, count, flags)
        )
    }

    fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        stream_or!(out, real::sendfile(out, from, offset, count), |t| files::sendfile(t, from, offset, count))
    }

    fn sendfile64(out: c_int, from: c_int, offset: *mut off64_t, count: size_t) -> ssize_t {
        stream_or!(out, real::sendfile64(out, from, offset, count), |t| files::sendfile(t, from, offset, count))
    }

    fn splice(from: c_int, from_offset: *mut off64_t, to: c_int, to_offset: *mut off64_t, len: size_t, flags: c_uint) -> ssize_t {
        if table::get(from).is_none() && table::get(to).is_none() {
            real::splice(from, from_offset, to, to_offset, len, flags)
        } else {
            files::splice((from, from_offset), (to, to_offset), len, flags)
        }
    }
}

/// Messages to sockets that are not ours may carry descriptors that are. As long as no descriptor is ours,
/// messages are not inspected.
///
/// # Safety
/// `msg` is of a call that the kernel judges.
#[inline]
unsafe fn carries_control(msg: *const msghdr) -> bool {
    // SAFETY: any bytes are a header.
    actions::is_installed() && unsafe { access::read(msg) }.is_some_and(|msg| msg.msg_controllen > 0)
}

/// Whether a message that was received came with control data. The kernel has read and written the header, so no access
/// needs recovery. A process may receive its first socket this way, before anything is installed.
///
/// # Safety
/// `msg` is of a call that has succeeded.
#[inline]
unsafe fn brought_control(msg: *const msghdr) -> bool {
    // SAFETY: any bytes are a header.
    unsafe { access::read(msg) }.is_some_and(|msg| msg.msg_controllen > 0)
}

/// The check of the `_chk` names: the C library ends the program if it fails.
#[inline]
pub(super) fn fits(len: usize, room: usize) {
    if len > room {
        // SAFETY: does not return.
        unsafe { real::__chk_fail() };
    }
}
