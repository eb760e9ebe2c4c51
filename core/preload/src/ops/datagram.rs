//! Calls on datagram sockets: a datagram takes the ring of its flow where there is one whose receiver is awake, or else the
//! kernel. See [`datagram`](crate::datagram).
//!
//! The kernel's answer stands for everything that the rings do not serve: some control messages, unusual flags, bad
//! addresses.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use libc::{iovec, msghdr};

use crate::datagram::Datagram;
use crate::ops::message;
use crate::os::access;

mod options;
mod receive;
mod send;

pub use options::{is_kernels, needs_kernel, read_options, record_option};
pub use receive::{read, readv, recvfrom, recvmmsg, recvmsg};
pub use send::{sendmmsg, sendmsg, sendto, write, writev};

/// A socket, and the descriptor by which the program has reached it.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The socket.
    pub socket: &'a Arc<Datagram>,
    /// The descriptor.
    pub fd: c_int,
}

/// Counts datagrams. The callers hold the socket's lock for that direction, or the kernel's datagrams are not many.
#[inline]
fn count(counter: &AtomicU64, datagrams: u64) {
    counter.fetch_add(datagrams, Ordering::Relaxed);
}

/// The vector of a header; `None` if the kernel must judge it.
fn vector<'a>(header: &msghdr) -> Option<&'a [iovec]> {
    if header.msg_iovlen == 0 {
        return Some(&[]);
    }
    let usable = header.msg_iovlen <= message::MAX_VECTOR && access::is_readable(header.msg_iov, header.msg_iovlen);
    // SAFETY: readable, and any bytes are elements.
    let iov = usable.then(|| unsafe { std::slice::from_raw_parts(header.msg_iov, header.msg_iovlen) })?;
    iov.iter().all(|v| v.iov_len <= isize::MAX as usize).then_some(iov)
}

/// The vector of a call that moves something; `None`: the kernel judges it.
fn elements<'a>(iov: *const iovec, count: c_int) -> Option<&'a [iovec]> {
    let count = usize::try_from(count).ok().filter(|count| (1..=message::MAX_VECTOR).contains(count))?;
    // SAFETY: readable, and any bytes are elements.
    let iov = access::is_readable(iov, count).then(|| unsafe { std::slice::from_raw_parts(iov, count) })?;
    let usable = iov.iter().all(|v| v.iov_len <= isize::MAX as usize) && iov.iter().any(|v| v.iov_len > 0);
    usable.then_some(iov)
}
