//! Socket options that are integers, as the kernel has them.

use std::ffi::{c_int, c_ulong};
use std::time::Duration;

use libc::socklen_t;
use netacc_datagram::Marks;

use super::real;

/// An option of the kernel's socket that is an integer.
pub fn get_int(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as socklen_t;
    // SAFETY: an int and its length, both writable.
    let rc = unsafe { real::getsockopt(fd, level, name, (&raw mut value).cast(), &mut len) };
    (rc == 0).then_some(value)
}

/// The length of an option whose value is no integer; 0 if it is not set. `None`: the kernel does not show it.
pub fn len(fd: c_int, level: c_int, name: c_int) -> Option<usize> {
    // As long as the IP options of a packet can be.
    let mut value = [0u8; 40];
    // The kernel writes as many instructions of a filter as it is given bytes, or tells their number.
    let mut len = if name == libc::SO_ATTACH_FILTER { 0 } else { value.len() as socklen_t };
    // SAFETY: a buffer and its length, both writable.
    let rc = unsafe { real::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &mut len) };
    (rc == 0).then_some(len as usize)
}

/// What the IP headers of a socket's datagrams say, by IPv4 and by IPv6.
pub fn marks(fd: c_int) -> [Marks; 2] {
    let byte = |level, name| get_int(fd, level, name).map_or(0, |value| value as u8);
    let of = |level, ttl, tos| Marks { ttl: byte(level, ttl), tos: byte(level, tos) };
    [
        of(libc::IPPROTO_IP, libc::IP_TTL, libc::IP_TOS),
        of(libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, libc::IPV6_TCLASS),
    ]
}

/// Sets an option of the kernel's socket that is an integer, if the kernel takes it.
pub fn set_int(fd: c_int, level: c_int, name: c_int, value: c_int) {
    let len = size_of::<c_int>() as socklen_t;
    // SAFETY: an int, and its length.
    unsafe { real::setsockopt(fd, level, name, (&raw const value).cast(), len) };
}

/// `SO_RCVTIMEO`, with which SA_RESTART restarts no receive; `None`: there is none.
#[cold]
pub fn receive_timeout(fd: c_int) -> Option<Duration> {
    let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let mut len = size_of_val(&time) as socklen_t;
    // SAFETY: a time and its length, both writable.
    let rc = unsafe { real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw mut time).cast(), &mut len) };
    let micros = u64::try_from(time.tv_sec).ok()?.checked_mul(1_000_000)?.checked_add(time.tv_usec as u64)?;
    Some(Duration::from_micros(micros)).filter(|time| rc == 0 && !time.is_zero())
}

/// Unread bytes that the kernel has.
#[cold]
pub fn unread(fd: c_int) -> u64 {
    let mut n: c_int = 0;
    // SAFETY: FIONREAD writes an int.
    unsafe { real::ioctl(fd, libc::FIONREAD, (&raw mut n).cast()) };
    n.max(0) as u64
}

/// Bytes that the kernel has not sent yet. linux/sockios.h.
pub const SIOCOUTQNSD: c_ulong = 0x894B;

// Values that the `libc` crate lacks, or has for some targets only; the same on all that the library supports.
/// `SO_TIMESTAMP` with 64-bit times, which 64-bit systems have in any case.
pub const SO_TIMESTAMP_NEW: c_int = 63;
/// `SO_TIMESTAMPNS`, likewise.
pub const SO_TIMESTAMPNS_NEW: c_int = 64;
/// `SO_TIMESTAMPING`, likewise.
pub const SO_TIMESTAMPING_NEW: c_int = 65;

// Missing in the `libc` crate. linux/sock_diag.h, asm-generic/socket.h.
const SO_MEMINFO: c_int = 55;
/// Bytes that may be sent and not acknowledged.
pub const SK_MEMINFO_SNDBUF: usize = 3;
/// Bytes that were sent and are not acknowledged.
pub const SK_MEMINFO_WMEM_QUEUED: usize = 5;
/// Datagrams that were dropped because the receive buffer was full.
pub const SK_MEMINFO_DROPS: usize = 8;
const SK_MEMINFO_VARS: usize = 9;

/// The kernel's account of a socket's memory.
pub fn memory(fd: c_int) -> Option<[u32; SK_MEMINFO_VARS]> {
    let mut used = [0; SK_MEMINFO_VARS];
    let mut len = size_of_val(&used) as libc::socklen_t;
    // SAFETY: an array of that many bytes, and its length.
    let rc = unsafe { real::getsockopt(fd, libc::SOL_SOCKET, SO_MEMINFO, used.as_mut_ptr().cast(), &mut len) };
    (rc == 0).then_some(used)
}
