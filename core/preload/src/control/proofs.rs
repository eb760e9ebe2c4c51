//! Proofs of addresses, for flows of datagrams on links. SPEC §10.7.
//!
//! They go from the sockets of flows to a UDP socket of the peer's library. So no socket of a program gets one: neither that of a
//! program without the library, nor one that gets another holder while a flow is made.
//!
//! The helper thread receives and answers them. It believes a datagram only if the kernel names a flow's peer as the source,
//! and if it has that flow's nonce, which only the other end of the flow's link knows.

use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use libc::{sockaddr, socklen_t};
use netacc_driver::Endpoint;
use netacc_proto::{FlowProof, RECORD_LEN};

use crate::datagram::{local_address, Address, Datagram, Proven, ToProve};
use crate::os::errno::{errno, set_errno};
use crate::os::{own, real};
use crate::runtime::Runtime;
use crate::table::{self, Entry};

/// Datagrams that are received in one turn of the helper. Arbitrary.
const MOST: usize = 64;

/// The port of the library's socket, which is made for the first flow. Keeps errno.
pub(super) fn port(rt: &Runtime) -> Option<u16> {
    let saved = errno();
    let port = rt.helper.proofs(make).and_then(local_address).map(|local| local.port());
    set_errno(saved);
    port
}

/// A socket at all addresses of the host: of IPv6 for both, or of IPv4 where there is no IPv6.
fn make() -> Option<c_int> {
    [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()]
        .into_iter()
        .find_map(|ip| bound(SocketAddr::new(ip, 0)))
}

fn bound(address: SocketAddr) -> Option<c_int> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let fd = own::keep(|| unsafe { real::socket(family, kind, 0) })?;
    let (name, only_six) = (Address::from(address), 0);
    let length = size_of_val(&only_six) as socklen_t;
    // SAFETY: a value and an address of these lengths. An IPv4 socket refuses the option.
    let is_bound = unsafe {
        real::setsockopt(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, (&raw const only_six).cast(), length);
        real::bind(fd, name.bytes().as_ptr().cast::<sockaddr>(), name.bytes().len() as socklen_t) == 0
    };
    if !is_bound {
        own::discard(fd);
    }
    is_bound.then_some(fd)
}

/// The proof of this flow's source may come from now on.
pub(super) fn expect(rt: &Runtime, flow: ToProve) {
    let mut expected = rt.flows.to_prove.lock();
    expected.retain(|other| !other.flow.is_closed() && other.socket.strong_count() > 0);
    expected.push(flow);
}

/// Sends a proof from a flow's socket, of which `fd` is a descriptor, to the library of the peer, whose socket is at `peer`. Does not
/// wait. Keeps errno.
pub(super) fn send(fd: c_int, peer: &Address, proof: &FlowProof) {
    let saved = errno();
    let (to, bytes) = (peer.at_port(proof.port), &proof.record);
    // SAFETY: bytes and an address of these lengths.
    unsafe {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let (name, len) = (to.bytes().as_ptr().cast(), to.bytes().len() as socklen_t);
        real::sendto(fd, bytes.as_ptr().cast(), bytes.len(), flags, name, len);
    }
    set_errno(saved);
}

/// Receives proofs, and answers those of sources. By the helper. Whether a destination was proven.
pub(super) fn serve(rt: &Runtime, endpoint: &Endpoint) -> bool {
    let mut is_proven = false;
    let Some(fd) = rt.helper.proofs(|| None) else { return false };
    for _ in 0..MOST {
        let mut bytes = [0u8; RECORD_LEN + 1];
        let Some((len, source)) = receive(fd, &mut bytes) else { break };
        if let Some(source) = source {
            match rt.flows.handle_proof(endpoint, source, &bytes[..len]) {
                Some(Proven::Source { answer, socket, address }) => answer_from(&socket, &address, &answer),
                Some(Proven::Destination) => is_proven = true,
                None => {}
            }
        }
    }
    is_proven
}

fn answer_from(socket: &Arc<Datagram>, source: &Address, answer: &FlowProof) {
    // With the lock held, which a thread takes that closes a descriptor: it stays this socket's.
    let _outgoing = socket.outgoing();
    let is_it = |entry: &Entry| matches!(entry, Entry::Datagram(known) if Arc::ptr_eq(known, socket));
    if let Some((fd, _)) = table::entries().find(|(_, entry)| is_it(entry)) {
        send(fd, source, answer);
    }
}

/// The next datagram: its length, or that of the memory, and its source.
fn receive(fd: c_int, bytes: &mut [u8]) -> Option<(usize, Option<SocketAddr>)> {
    let mut name = [0u8; size_of::<libc::sockaddr_in6>()];
    let mut len = name.len() as socklen_t;
    // SAFETY: buffers of these lengths.
    let n = unsafe {
        real::recvfrom(
            fd,
            bytes.as_mut_ptr().cast(),
            bytes.len(),
            libc::MSG_DONTWAIT,
            name.as_mut_ptr().cast(),
            &mut len,
        )
    };
    let n = usize::try_from(n).ok()?;
    Some((n, Address::new(&name[..(len as usize).min(name.len())]).socket_addr()))
}
