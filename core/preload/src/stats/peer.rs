//! The kernel's information on a socket.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;

use libc::{sockaddr, socklen_t};

use crate::anchor::TcpInfo;
use crate::os::real;
use crate::os::sockopt::get_int;

/// Whether the client is the same user, or root.
pub(super) fn is_trusted(client: RawFd) -> bool {
    let mut who = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as socklen_t;
    // SAFETY: the struct is writable and `len` its size.
    let rc = unsafe { real::getsockopt(client, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut who).cast(), &mut len) };
    // SAFETY: no arguments.
    rc == 0 && (who.uid == 0 || who.uid == unsafe { libc::geteuid() })
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
pub(super) fn name(fd: RawFd, call: NameCall) -> String {
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut len = size_of::<libc::sockaddr_storage>() as socklen_t;
    // SAFETY: the storage is large enough for any address.
    if unsafe { call(fd, storage.as_mut_ptr().cast(), &mut len) } != 0 {
        return String::new();
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
            _ => return String::new(),
        }
    };
    address.to_string()
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
        assert_eq!(name(client.as_raw_fd(), real::getpeername), address.to_string());
        assert_eq!(name(listener.as_raw_fd(), real::getpeername), "");
    }

    #[test]
    fn a_process_trusts_itself() {
        let (a, _b) = UnixStream::pair().expect("a pair");
        assert!(is_trusted(a.as_raw_fd()));
        assert!(!is_trusted(-1));
    }
}
