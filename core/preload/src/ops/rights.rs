//! Descriptors that travel to other processes in control messages (SCM_RIGHTS).

use std::ffi::c_int;
use std::sync::Arc;

use libc::msghdr;
use netacc_proto::Reason;

use crate::control::flows;
use crate::epoll::{unknown, Epoll};
use crate::holders::Sender;
use crate::leaving;
use crate::ops::{connection, ending};
use crate::os::errno::{errno, set_errno};
use crate::os::{access, inside, real};
use crate::table::{self, Entry};

/// Before `sendmsg` on a socket that is not ours: connections whose descriptors it carries must be plain sockets,
/// because the receiver may be any process.
///
/// # Safety
/// `msg` is of a call that the kernel judges.
#[cold]
pub unsafe fn release(msg: *const msghdr) {
    let saved = errno();
    // SAFETY: the caller's promise.
    for fd in unsafe { rights_of(msg) } {
        let Some(entry) = table::get_full(fd) else { continue };
        match &*entry {
            // If the peer does not answer, nothing more can be done here.
            Entry::Stream(sock) => drop(leaving::demote_for(sock, Reason::Shared)),
            Entry::Epoll(epoll) => epoll.give_away(),
            Entry::Datagram(_) => flows::give_away(&[(fd, entry.clone())]),
            Entry::Idle(_) | Entry::Ring(_) => {}
        }
    }
    set_errno(saved);
}

/// After `recvmsg` on a socket that is not ours, `channel`: descriptors that it has brought.
///
/// # Safety
/// `msg` is as the kernel has left it.
#[cold]
pub unsafe fn receive(channel: c_int, msg: *const msghdr) {
    if inside::is_inside() {
        return;
    }
    let saved = errno();
    // SAFETY: the caller's promise.
    for fd in unsafe { rights_of(msg) } {
        if !connection::received(fd, sender(channel)) && unknown::is_instance(fd) {
            ending::forget(fd);
            table::insert(fd, Arc::new(Entry::Epoll(Box::new(Epoll::received(fd)))));
        }
    }
    set_errno(saved);
}

/// The process at the other end of a Unix socket: the one that has connected or listened, or that has made the pair. Keeps
/// errno.
fn sender(channel: c_int) -> Sender {
    let saved = errno();
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the struct is writable and `len` its size.
    unsafe { real::getsockopt(channel, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut who).cast(), &raw mut len) };
    set_errno(saved);
    Sender::Process(who.pid as u32)
}

/// # Safety
/// `msg` is of a call that the kernel judges, or has judged.
unsafe fn rights_of(msg: *const msghdr) -> Vec<c_int> {
    // SAFETY: any bytes are a header.
    let Some(msg) = (unsafe { access::read(msg) }) else { return Vec::new() };
    let control = msg.msg_control.cast::<u8>();
    if msg.msg_controllen == 0 || access::readable(control, msg.msg_controllen) < msg.msg_controllen {
        return Vec::new();
    }
    // SAFETY: readable.
    rights(unsafe { std::slice::from_raw_parts(control, msg.msg_controllen) })
}

/// Descriptors in the SCM_RIGHTS messages of a control buffer. Ends where the buffer is malformed, as the kernel does.
fn rights(control: &[u8]) -> Vec<c_int> {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    let align = |n: usize| n.saturating_add(size_of::<usize>() - 1) & !(size_of::<usize>() - 1);
    let mut fds = Vec::new();
    let mut at = 0usize;
    while let Some(rest) = control.get(at..).filter(|rest| rest.len() >= HEADER) {
        // SAFETY: `rest` has at least the header's bytes; any bytes are a valid header.
        let header: libc::cmsghdr = unsafe { rest.as_ptr().cast::<libc::cmsghdr>().read_unaligned() };
        let len = header.cmsg_len;
        let Some(data) = rest.get(align(HEADER)..len) else { break };
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
            fds.extend(data.chunks_exact(size_of::<c_int>()).map(|b| c_int::from_ne_bytes([b[0], b[1], b[2], b[3]])));
        }
        at = at.saturating_add(align(len));
    }
    fds
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cmsg(level: c_int, kind: c_int, data: &[u8], len: Option<usize>) -> Vec<u8> {
        let len = len.unwrap_or(size_of::<libc::cmsghdr>() + data.len());
        let mut bytes = len.to_ne_bytes().to_vec();
        bytes.extend(level.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(size_of::<usize>()), 0);
        bytes
    }

    fn fds(fds: &[c_int]) -> Vec<u8> {
        fds.iter().flat_map(|fd| fd.to_ne_bytes()).collect()
    }

    #[test]
    fn rights_are_found_among_other_control_messages() {
        let mut control = cmsg(libc::SOL_SOCKET, libc::SCM_RIGHTS, &fds(&[4, 5, 6]), None);
        control.extend(cmsg(libc::SOL_SOCKET, libc::SCM_CREDENTIALS, &[1; 12], None));
        control.extend(cmsg(libc::SOL_SOCKET, libc::SCM_RIGHTS, &fds(&[9]), None));
        assert_eq!(rights(&control), [4, 5, 6, 9]);
    }

    #[test]
    fn a_malformed_control_buffer_ends_the_walk() {
        assert!(rights(&[]).is_empty());
        assert!(rights(&[0; 7]).is_empty());
        assert!(rights(&[0; 64]).is_empty());
        let mut control = cmsg(libc::SOL_SOCKET, libc::SCM_RIGHTS, &fds(&[4]), None);
        control.extend(cmsg(libc::SOL_SOCKET, libc::SCM_RIGHTS, &fds(&[5]), Some(usize::MAX)));
        control.extend(cmsg(libc::SOL_SOCKET, libc::SCM_RIGHTS, &fds(&[6]), None));
        assert_eq!(rights(&control), [4]);
        let mut short = cmsg(libc::SOL_SOCKET, libc::SCM_RIGHTS, &fds(&[4]), None);
        short.truncate(18);
        assert!(rights(&short).is_empty());
    }
}
