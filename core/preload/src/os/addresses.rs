//! The addresses of connections, as the kernel has them.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libc::{sockaddr, socklen_t};

use super::real;

/// The address of the connection's own end.
pub fn local(fd: c_int) -> Option<SocketAddr> {
    name_of(fd, real::getsockname)
}

/// The address of the connection's other end.
pub fn peer(fd: c_int) -> Option<SocketAddr> {
    name_of(fd, real::getpeername)
}

fn name_of(fd: c_int, name: unsafe fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int) -> Option<SocketAddr> {
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut len = size_of::<libc::sockaddr_storage>() as socklen_t;
    // SAFETY: the storage is large enough for any address.
    let rc = unsafe { name(fd, storage.as_mut_ptr().cast(), &mut len) };
    // SAFETY: filled in by the call.
    (rc == 0).then(|| unsafe { read(storage.as_ptr()) }).flatten()
}

/// IPv4-mapped addresses become IPv4, because both ends must use the same name for a connection.
pub fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// # Safety
/// `addr` points to `len` bytes.
pub unsafe fn of_program(addr: *const sockaddr, len: socklen_t) -> Option<SocketAddr> {
    if addr.is_null() || (len as usize) < size_of::<libc::sockaddr_in>() {
        return None;
    }
    let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let n = (len as usize).min(size_of::<libc::sockaddr_storage>());
    // SAFETY: both are valid for `n` bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(addr.cast::<u8>(), storage.as_mut_ptr().cast::<u8>(), n);
        read(storage.as_ptr())
    }
}

/// # Safety
/// `storage` is initialised.
pub unsafe fn read(storage: *const libc::sockaddr_storage) -> Option<SocketAddr> {
    // SAFETY: the storage is large and aligned enough for either kind.
    unsafe {
        match c_int::from((*storage).ss_family) {
            libc::AF_INET => {
                let a = &*storage.cast::<libc::sockaddr_in>();
                let ip = Ipv4Addr::from(u32::from_be(a.sin_addr.s_addr));
                Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(a.sin_port)))
            }
            libc::AF_INET6 => {
                let a = &*storage.cast::<libc::sockaddr_in6>();
                let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
                Some(SocketAddr::new(IpAddr::V6(ip), u16::from_be(a.sin6_port)))
            }
            _ => None,
        }
    }
}
