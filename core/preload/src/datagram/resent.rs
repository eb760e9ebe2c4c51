//! Datagrams that were in a ring, and that the library sends by the kernel after all.

use std::ffi::c_int;

use libc::{iovec, msghdr};
use netacc_datagram::Marks;

use super::messages::request;
use super::Address;
use crate::os::errno::{errno, set_errno};
use crate::os::real;

/// How often a send is tried: a pending error of the socket ends the first one. Arbitrary.
const TRIES: usize = 2;
/// Room for the control messages: a time to live, a type of service, and a length.
const CONTROL: usize = 72;

/// One of these datagrams.
pub(super) struct Resent<'a> {
    pub bytes: &'a [u8],
    pub to: &'a Address,
    /// If they are not the socket's own.
    pub marks: Option<Marks>,
    /// The socket splits what it sends (`UDP_SEGMENT`), and this datagram is one already.
    pub is_never_split: bool,
}

impl Resent<'_> {
    /// Sends it, without waiting. Keeps errno.
    pub(super) fn send(&self, fd: c_int) {
        let saved = errno();
        let mut control = [0u8; CONTROL];
        let marks = self.marks.map(|marks| (self.to.is_v4(), marks));
        let len = request(marks, self.is_never_split, &mut control);
        let name = self.to.bytes();
        let mut piece = iovec { iov_base: self.bytes.as_ptr().cast_mut().cast(), iov_len: self.bytes.len() };
        // SAFETY: all-zero is a valid header.
        let mut header: msghdr = unsafe { std::mem::zeroed() };
        header.msg_name = name.as_ptr().cast_mut().cast();
        header.msg_namelen = name.len() as libc::socklen_t;
        header.msg_iov = &raw mut piece;
        header.msg_iovlen = 1;
        header.msg_control = if len > 0 { control.as_mut_ptr().cast() } else { std::ptr::null_mut() };
        header.msg_controllen = len;
        for _ in 0..TRIES {
            // SAFETY: all of these are there, with these lengths; the kernel only reads them.
            if unsafe { real::sendmsg(fd, &header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) } >= 0 {
                break;
            }
        }
        set_errno(saved);
    }
}
