//! Flows of datagrams on links, between processes of different hosts: making, following and ending them. SPEC §10.6 to §10.9.
//!
//! A process that has received datagrams from other hosts at a port accepts links for that port, by the same rule as for TCP
//! ports. A sender connects there, or takes the link on which the destination sends to it. Nothing arrives at the
//! destination's socket before a process there has granted the flow.
//!
//! The helper thread does all of this. Messages of links are handled by any thread that polls a link, with the link locked: they
//! only mark flows as changed.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use netacc_device::{FourTuple, Instant, QueuePairId};
use netacc_driver::{Endpoint, ReceivingFlow};
use netacc_proto::Reason;

use super::proofs;
use crate::datagram::{local_address, Address, Datagram, Destination, Linked, OnLink, Origin, ToProve};
use crate::os::clock::now;
use crate::os::{own, real, sockopt};
use crate::probes;
use crate::runtime::Runtime;
use crate::table::{self, Entry};

/// The address from which a socket that is bound to `local` sends to a process of another host. `None`: the destination is
/// of this host, or no process'.
pub fn source_towards(local: SocketAddr, to: SocketAddr) -> Option<SocketAddr> {
    if to.ip().is_loopback() || is_group(to.ip()) || to.ip().is_unspecified() {
        return None;
    }
    let source = match local.ip().is_unspecified() {
        true => route_to(to)?,
        false => local.ip(),
    };
    (source != to.ip() && !source.is_loopback()).then(|| SocketAddr::new(source, local.port()))
}

/// Whether datagrams to there have several receivers.
pub(super) fn is_group(ip: IpAddr) -> bool {
    ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// The address of this host from which the kernel sends to there.
fn route_to(to: SocketAddr) -> Option<IpAddr> {
    let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: no pointers.
    let fd = own::make_high(|| unsafe { real::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    let address = Address::from(to);
    let name = address.bytes();
    // SAFETY: an address of that length. Nothing is sent.
    let connected = unsafe { real::connect(fd, name.as_ptr().cast(), name.len() as libc::socklen_t) } == 0;
    let source = connected.then(|| local_address(fd)).flatten();
    // SAFETY: just made.
    unsafe { real::close(fd) };
    source.map(|source| source.ip())
}

/// The socket at `local` has received datagrams from another host: lets peers there find this process.
pub fn offer(endpoint: &Endpoint, local: SocketAddr, source: SocketAddr) {
    endpoint.directory().offer_flows(&FourTuple { local, remote: source });
}

/// Why there is no flow, and the queue pair of another one to the same socket, which is to be ended.
pub(super) type Refused = (Reason, Option<QueuePairId>);

/// Requests a flow. `Err`: there is no peer for it, or the socket already sends to the destination in another way.
pub(super) fn request(
    rt: &'static Runtime,
    endpoint: &'static Endpoint,
    (socket, fd): (&Arc<Datagram>, c_int),
    (to, addresses): (&Address, FourTuple),
) -> Result<(), Refused> {
    if !socket.fits_links() {
        return Err((Reason::HostOption, None));
    }
    // The destination may be at a port for which nobody accepts links.
    let known = socket.incoming().peer_of(&addresses);
    let Some(peer) = known.or_else(|| endpoint.directory().lookup(&addresses).map(|(peer, _)| peer)) else {
        return Err((Reason::PeerNotFound, None));
    };
    let destination = Destination { peer, number: addresses.remote.port().into(), source: addresses.local };
    socket.outgoing().reserve(to, destination).map_err(|other| (Reason::SameReceiver, other))?;
    let proof_port = proofs::port(rt).ok_or((Reason::Exhausted, None))?;
    let mut outgoing = socket.outgoing();
    // With the lock held: a thread that sets an option reads them anew.
    outgoing.marks = sockopt::marks(fd);
    let placed = outgoing.place_on_link(to, endpoint, |sent| endpoint.open_flow(peer, addresses, proof_port, sent));
    drop(outgoing);
    let flow = placed.ok_or((Reason::Closing, None))?;
    rt.flows.on_links.lock().push(OnLink { flow, socket: Arc::downgrade(socket), to: *to, counted: false });
    Ok(())
}

/// The socket to which a peer may send on a link, and where the flow comes from. `Err`: why there is none.
pub(super) fn offered(rt: &Runtime, addresses: &FourTuple) -> Result<(Arc<Datagram>, Origin), Reason> {
    let mut refused = Reason::UnknownStream;
    for socket in rt.flows.at(addresses.local) {
        match origin_at(&socket, addresses) {
            Ok(origin) => return Ok((socket, origin)),
            Err(reason) => refused = reason,
        }
    }
    Err(refused)
}

fn origin_at(socket: &Datagram, addresses: &FourTuple) -> Result<Origin, Reason> {
    if socket.is_kernel_only() {
        return Err(Reason::KernelOnly);
    }
    if !socket.fits_links() {
        return Err(Reason::HostOption);
    }
    let incoming = socket.incoming();
    let origin = incoming.origin(addresses.remote, addresses.local.ip());
    let origin = origin.filter(|origin| !socket.gives_messages() || origin.messages.is_some());
    origin.ok_or(Reason::SourceUnknown).and_then(|origin| match incoming.has_room() {
        true => Ok(origin),
        false => Err(Reason::Exhausted),
    })
}

/// A flow was granted to a peer.
pub(super) fn granted(rt: &Runtime, endpoint: &'static Endpoint, flow: &Arc<ReceivingFlow>) {
    let attached = offered(rt, &flow.addresses).is_ok_and(|(socket, mut origin)| {
        origin.messages = origin.messages.filter(|_| socket.gives_messages());
        let attached = socket.attach_link(Linked::new(flow.clone(), endpoint, origin));
        if attached {
            let socket = Arc::downgrade(&socket);
            proofs::expect(rt, ToProve { flow: flow.clone(), socket, source: origin.source, counted: false });
        }
        attached
    });
    if !attached {
        // Once the peer knows that it was granted.
        rt.flows.unwanted.lock().push(flow.clone());
        changed(rt);
    }
}

/// A flow that this process sends has changed.
pub(super) fn changed(rt: &Runtime) {
    rt.flows.changed.store(true, Ordering::SeqCst);
    if let Some(endpoint) = rt.endpoint() {
        endpoint.need_helper();
    }
}

/// Whether [`tend`] has something to do.
pub(super) fn has_work(rt: &Runtime) -> bool {
    rt.flows.changed.load(Ordering::SeqCst)
}

/// Proves addresses, and follows what has changed. By the helper. Returns when to call it again.
pub(super) fn tend(rt: &Runtime, endpoint: &Endpoint) -> Option<Instant> {
    let changed = rt.flows.changed.swap(false, Ordering::SeqCst);
    if changed {
        let unwanted = std::mem::take(&mut *rt.flows.unwanted.lock());
        unwanted.iter().for_each(|flow| endpoint.give_back(flow));
    }
    let mut on_links = std::mem::take(&mut *rt.flows.on_links.lock());
    on_links.retain_mut(|on_link| {
        let Some(socket) = on_link.socket.upgrade() else {
            endpoint.close_sending(&on_link.flow);
            return false;
        };
        // First: then nothing more comes back.
        let is_over = on_link.flow.is_over();
        if changed || is_over || on_link.flow.next_proof().is_some() {
            follow(rt, &socket, on_link);
        }
        if on_link.flow.is_closed() && !is_over {
            // The proofs were in vain, and the slot is still in use.
            endpoint.close_sending(&on_link.flow);
        }
        !is_over
    });
    let next = on_links.iter().filter_map(|on_link| on_link.flow.next_proof()).min();
    rt.flows.on_links.lock().append(&mut on_links);
    next
}

/// The process is about to end, or to be replaced: ends the flows that it sends. Whether everything has gone: call it again after
/// [`tend`].
pub(super) fn leave(rt: &Runtime, endpoint: &Endpoint) -> bool {
    let on_links = rt.flows.on_links.lock();
    on_links.iter().for_each(|on_link| endpoint.close_sending(&on_link.flow));
    on_links.iter().all(|on_link| on_link.flow.is_drained())
}

fn follow(rt: &Runtime, socket: &Arc<Datagram>, on_link: &mut OnLink) {
    let OnLink { flow, to, counted, .. } = on_link;
    let mut outgoing = socket.outgoing();
    // With the lock held, which a thread takes that closes a descriptor: it stays this socket's.
    let is_it = |entry: &Entry| matches!(entry, Entry::Datagram(known) if Arc::ptr_eq(known, socket));
    let Some((fd, _)) = table::entries().find(|(_, entry)| is_it(entry)) else { return };
    outgoing.follow_link(fd, to, flow, socket.counts());
    if let Some(proof) = flow.poll_proof(now()) {
        proofs::send(fd, to, &proof);
    }
    drop(outgoing);
    if flow.is_open() && !std::mem::replace(counted, true) {
        rt.flows.count_link();
        probes::flow(to.socket_addr().map_or(0, |to| to.port()), true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Breaks if datagrams within a host load the libraries of RDMA devices, or groups of receivers are connected to.
    #[test]
    fn links_are_for_single_destinations_on_other_hosts() {
        let source = |local: &str, to: &str| source_towards(local.parse().unwrap(), to.parse().unwrap());
        for to in ["127.0.0.1:53", "[::1]:53", "224.0.0.1:53", "255.255.255.255:53", "0.0.0.0:53", "10.99.0.1:53"] {
            let local = if to.starts_with('[') { "[fd99::1]:7" } else { "10.99.0.1:7" };
            assert_eq!(source(local, to), None, "{to}");
        }
        assert_eq!(source("10.99.0.1:7", "10.99.0.2:53"), "10.99.0.1:7".parse().ok());
        assert_eq!(source("127.0.0.1:7", "10.99.0.2:53"), None, "it never leaves the host");
        // The kernel chooses the destination itself.
        assert_eq!(source("0.0.0.0:7", "127.0.0.5:53"), None);
    }
}
