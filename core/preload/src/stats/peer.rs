//! The kernel's information on a socket.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use libc::{pid_t, sockaddr, socklen_t};
use netacc_config::stats::Text;

use crate::anchor::TcpInfo;
use crate::os::sockopt::get_int;
use crate::os::{own, real};

/// The client's process, if it is the same user's, or root's. 0 if this process cannot see it, as in another container.
pub(super) fn trusted(client: RawFd) -> Option<pid_t> {
    let mut who = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as socklen_t;
    // SAFETY: the struct is writable and `len` its size.
    let rc = unsafe { real::getsockopt(client, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut who).cast(), &mut len) };
    // SAFETY: no arguments.
    (rc == 0 && (who.uid == 0 || who.uid == unsafe { libc::geteuid() })).then_some(who.pid)
}

/// Receives bytes, and the descriptor that may come with them. Returns the result of the call.
pub(super) fn receive(client: RawFd, into: &mut [u8]) -> (isize, Option<OwnedFd>) {
    let mut control = [0u64; 8];
    let mut n = -1;
    // The descriptor that comes gets a number of the library's.
    let passed = own::make_high(|| {
        let mut iov = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        // SAFETY: all-zero is a valid header.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        (header.msg_iov, header.msg_iovlen) = (&raw mut iov, 1);
        (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
        // SAFETY: the header is valid, and its memory writable.
        n = unsafe { real::recvmsg(client, &mut header, libc::MSG_CMSG_CLOEXEC) };
        if n < 0 {
            return -1;
        }
        // SAFETY: as the kernel has written it.
        unsafe { first_descriptor(&header) }
    });
    // SAFETY: a new descriptor with no other owner.
    (n, passed.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// The first descriptor that has come, or -1; the others are closed.
///
/// # Safety
/// The kernel has written the header's control messages.
unsafe fn first_descriptor(header: &libc::msghdr) -> RawFd {
    let mut first = -1;
    // SAFETY: the caller's promise.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while !message.is_null() {
            let bytes = (*message).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
            let is_rights = (*message).cmsg_level == libc::SOL_SOCKET && (*message).cmsg_type == libc::SCM_RIGHTS;
            for at in 0..if is_rights { bytes / size_of::<RawFd>() } else { 0 } {
                let fd = libc::CMSG_DATA(message).cast::<RawFd>().add(at).read_unaligned();
                if first < 0 {
                    first = fd;
                } else {
                    real::close(fd);
                }
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
    }
    first
}

/// Whether the descriptor is a TCP socket.
pub(super) fn is_tcp(fd: RawFd) -> bool {
    get_int(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
}

/// Whether connections can be accepted from the socket.
pub(super) fn listens(fd: RawFd) -> bool {
    get_int(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Some(1)
}

/// `getsockname` or `getpeername`.
pub(super) type NameCall = unsafe fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;

/// An address of the socket as text; empty if there is none.
pub(super) fn name(fd: RawFd, call: NameCall) -> Text {
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut len = size_of::<libc::sockaddr_storage>() as socklen_t;
    // SAFETY: the storage is large enough for any address.
    if unsafe { call(fd, storage.as_mut_ptr().cast(), &mut len) } != 0 {
        return Text::default();
    }
    // SAFETY: initialised, and large and aligned enough for either kind.
    let address = unsafe {
        match c_int::from((*storage.as_ptr()).ss_family) {
            libc::AF_INET => {
                let a = &*storage.as_ptr().cast::<libc::sockaddr_in>();
                let ip = Ipv4Addr::from(u32::from_be(a.sin_addr.s_addr));
                SocketAddr::new(IpAddr::V4(ip), u16::from_be(a.sin_port))
            }
            libc::AF_INET6 => {
                let a = &*storage.as_ptr().cast::<libc::sockaddr_in6>();
                let ip = Ipv6Addr::from(a.sin6_addr.s6_addr).to_canonical();
                SocketAddr::new(ip, u16::from_be(a.sin6_port))
            }
            _ => return Text::default(),
        }
    };
    address.into()
}

/// Payload bytes received and sent so far, as the kernel counts them. Bytes that the program has written count, whether
/// or not they have been acknowledged.
pub(super) fn kernel_bytes(fd: RawFd) -> (u64, u64) {
    TcpInfo::of(fd).map_or((0, 0), |info| (info.bytes_received, info.written().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_kernel_counts_bytes_and_names_sockets() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let mut client = TcpStream::connect(address).expect("listening");
        let (mut server, _) = listener.accept().expect("connected");
        client.write_all(b"hello").expect("connected");
        server.read_exact(&mut [0; 5]).expect("five bytes");
        assert_eq!(kernel_bytes(server.as_raw_fd()).0, 5);
        assert!((5..=6).contains(&kernel_bytes(client.as_raw_fd()).1));
        assert_eq!(name(client.as_raw_fd(), real::getpeername), Text::from(address));
        assert_eq!(name(listener.as_raw_fd(), real::getpeername), "");
    }

    #[test]
    fn a_process_trusts_itself() {
        let (a, _b) = UnixStream::pair().expect("a pair");
        assert_eq!(trusted(a.as_raw_fd()), Some(std::process::id() as pid_t));
        assert_eq!(trusted(-1), None);
    }
}
