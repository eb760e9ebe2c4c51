//! Control messages that the library writes itself, for events that the kernel's socket beneath a link does not have.

use std::ffi::c_int;

use libc::{msghdr, socklen_t};

use crate::os::errno::fail;
use crate::os::{access, real};
use crate::socket::Socket;

// Of linux/errqueue.h.
const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;
const SO_EE_CODE_ZEROCOPY_COPIED: u8 = 1;

/// Writes the only control message of a header as the kernel does: if there is too little room, it cuts the message off
/// and sets MSG_CTRUNC.
///
/// # Safety
/// What is there of the `room` bytes at `msg.msg_control` is the caller's to write.
pub unsafe fn put(msg: &mut msghdr, room: usize, (level, kind): (c_int, c_int), data: &[u8]) {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    if msg.msg_control.is_null() || room < HEADER {
        msg.msg_flags |= libc::MSG_CTRUNC;
        return;
    }
    let len = HEADER + data.len();
    let kept = len.min(room);
    // SAFETY: the caller's to write, if it is there.
    if unsafe { access::writable(msg.msg_control, kept) } < kept {
        // The kernel does not report that.
        return;
    }
    if room < len {
        msg.msg_flags |= libc::MSG_CTRUNC;
    }
    // SAFETY: all-zero is a valid header, which may have padding.
    let mut header: libc::cmsghdr = unsafe { std::mem::zeroed() };
    (header.cmsg_len, header.cmsg_level, header.cmsg_type) = (kept as _, level, kind);
    // SAFETY: `HEADER <= kept <= room`.
    unsafe {
        msg.msg_control.cast::<libc::cmsghdr>().write_unaligned(header);
        let to = msg.msg_control.cast::<u8>().add(HEADER);
        std::ptr::copy_nonoverlapping(data.as_ptr(), to, kept - HEADER);
    }
    msg.msg_controllen = len.next_multiple_of(size_of::<usize>()).min(room) as _;
}

/// The library's notification on the error queue, in the kernel's layout.
///
/// # Safety
/// As `recvmsg`.
pub unsafe fn notice(sock: &Socket, fd: c_int, msg: &mut msghdr, flags: c_int) -> isize {
    let Some((first, last)) = sock.take_notices() else { return fail(libc::EAGAIN) };
    let mut domain: c_int = libc::AF_INET;
    let mut len = size_of::<c_int>() as socklen_t;
    // SAFETY: an int and its length, both writable.
    unsafe { real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_DOMAIN, (&raw mut domain).cast(), &mut len) };
    let (kind, offender) = match domain {
        libc::AF_INET6 => ((libc::SOL_IPV6, libc::IPV6_RECVERR), size_of::<libc::sockaddr_in6>()),
        _ => ((libc::SOL_IP, libc::IP_RECVERR), size_of::<libc::sockaddr_in>()),
    };
    if !msg.msg_name.is_null() {
        msg.msg_namelen = 0;
    }
    let room = std::mem::take(&mut msg.msg_controllen);
    msg.msg_flags = flags & libc::MSG_CMSG_CLOEXEC | libc::MSG_ERRQUEUE;
    // `struct sock_extended_err`, and an address that is empty.
    let mut bytes = Vec::with_capacity(16 + offender);
    bytes.extend(0u32.to_ne_bytes());
    bytes.extend([SO_EE_ORIGIN_ZEROCOPY, 0, SO_EE_CODE_ZEROCOPY_COPIED, 0]);
    bytes.extend(first.to_ne_bytes());
    bytes.extend(last.to_ne_bytes());
    bytes.resize(16 + offender, 0);
    // SAFETY: as the C function.
    unsafe { put(msg, room, kind, &bytes) };
    0
}
