//! Taking proofs of addresses out of the kernel's socket, so that the program does not see them. SPEC §10.7.

use std::ffi::c_int;

use libc::{iovec, msghdr};
use netacc_proto::RECORD_LEN;

use super::{Address, Datagram, Incoming, Proof, Suspect};
use crate::os::errno::{errno, set_errno};
use crate::os::{poll, real};

/// Datagrams that are taken in a row. Arbitrary: a sender sends fewer proofs.
const MOST: usize = 64;

/// The kernel reports an error of the socket, which is the program's to see. errno has it.
#[derive(Debug)]
pub struct Failed;

impl Datagram {
    /// Takes the proofs that are at the front of the kernel's queue, and answers them. Whether there were some. `incoming` is the socket's, locked: only with that
    /// lock held are datagrams of a socket with flows on links taken, so what is found here is what is taken.
    pub fn take_proofs(&self, fd: c_int, incoming: &Incoming) -> Result<bool, Failed> {
        let mut taken = false;
        for _ in 0..MOST {
            let mut bytes = [0u8; RECORD_LEN];
            let Some((len, source)) = receive(fd, &mut bytes, libc::MSG_PEEK | libc::MSG_TRUNC)? else { break };
            let known = len.min(bytes.len());
            let suspect = Suspect { bytes: &bytes[..known], len };
            let Some(proof) = incoming.recognise(&source, &suspect) else { break };
            receive(fd, &mut [], 0)?;
            answer(fd, &source, &proof);
            taken = true;
        }
        Ok(taken)
    }

    /// As [`take_proofs`](Datagram::take_proofs), for a program that only sends, or one that is about to be told that there is
    /// something. Keeps errno.
    pub fn drop_proofs(&self, fd: c_int) {
        if !self.expects_proofs() {
            return;
        }
        let saved = errno();
        let incoming = self.incoming();
        // A thread that receives takes them itself, and could take another datagram in between; an error is the program's.
        if !self.has_receivers() && poll::ready_events(fd, libc::POLLIN) == libc::POLLIN {
            let _ = self.take_proofs(fd, &incoming);
        }
        set_errno(saved);
    }
}

/// Sends what a proof is answered with. Keeps errno.
pub fn answer(fd: c_int, to: &Address, proof: &Proof) {
    if let Proof::Answered(bytes) = proof {
        send(fd, to, bytes);
    }
}

/// Sends a proof by the kernel, without waiting. Keeps errno.
pub fn send(fd: c_int, to: &Address, bytes: &[u8; RECORD_LEN]) {
    let saved = errno();
    let name = to.bytes();
    // SAFETY: bytes and an address of these lengths.
    unsafe {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        real::sendto(
            fd,
            bytes.as_ptr().cast(),
            bytes.len(),
            flags,
            name.as_ptr().cast(),
            name.len() as libc::socklen_t,
        );
    }
    set_errno(saved);
}

/// The next datagram of the kernel's, if it has one, and its length if that is asked for.
fn receive(fd: c_int, bytes: &mut [u8], flags: c_int) -> Result<Option<(usize, Address)>, Failed> {
    let mut name = [0u8; size_of::<libc::sockaddr_in6>()];
    let mut piece = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all-zero is a valid header.
    let mut header: msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = name.as_mut_ptr().cast();
    header.msg_namelen = name.len() as libc::socklen_t;
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    // SAFETY: buffers of these lengths.
    let n = unsafe { real::recvmsg(fd, &raw mut header, flags | libc::MSG_DONTWAIT) };
    match usize::try_from(n) {
        Ok(n) => Ok(Some((n, Address::new(&name[..(header.msg_namelen as usize).min(name.len())])))),
        Err(_) if errno() == libc::EAGAIN => Ok(None),
        Err(_) => Err(Failed),
    }
}
