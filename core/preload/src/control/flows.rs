//! Making and ending flows of datagrams between processes of this host.
//!
//! A socket that moves datagrams is announced in the directory, under its own address. A sender looks the address of its
//! destination up there, and requests a flow. The request names its own address, and the receiver accepts it only if the
//! kernel has brought it datagrams from that address. The processes that can make requests are those that the backend admits
//! (of the same user, or group).
//!
//! The helper thread does all of this, but for announcing a socket, in `ops::announcing`.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use netacc_datagram::{inbox_len, Receiver, Sender, OUTBOX_LEN};
use netacc_device::{ConnectionId, FourTuple, QueuePairId};
use netacc_driver::{Endpoint, Flow};
use netacc_proto::Reason;

use super::links::{self, Refused};
use crate::datagram::{local_address, wants, Address, Datagram, Destination, KernelOnly, Pending, Ring, Wanted};
use crate::os::errno::{errno, set_errno};
use crate::os::sockopt;
use crate::probes;
use crate::runtime::{get, Runtime};
use crate::table::{self, Entry};

/// Bytes of a ring: four of the longest datagrams fit.
const CAPACITY: usize = 256 << 10;
/// The version of requests.
const VERSION: u8 = 4;

/// The number of a socket at its peer, and the addresses of the flow: two of this host, which are the same or both of the
/// loopback.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    number: u32,
    source: SocketAddr,
    destination: IpAddr,
}

impl Request {
    fn encode(&self) -> Vec<u8> {
        let ip = match self.source.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        //= spec §10.2.1
        //# Then follow the version, 4; the receiver's number of the socket, in 4 bytes; and the port, in 2 bytes, and the
        //# address, in 16, from which the flow comes.
        let mut bytes = vec![VERSION];
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(self.source.port().to_le_bytes());
        bytes.extend(ip.octets());
        //= spec §10.2.1
        //# The last 4 bytes are the address to which it goes, if that is another one, or else 0.
        bytes.extend(match self.destination {
            IpAddr::V4(destination) if self.destination != self.source.ip() => destination.octets(),
            _ => [0; 4],
        });
        bytes
    }

    /// `None` for anything that no peer of this version sends.
    fn decode(bytes: &[u8]) -> Option<Request> {
        let (version, rest) = bytes.split_first()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (port, rest) = rest.split_first_chunk()?;
        let (ip, rest) = rest.split_first_chunk::<16>()?;
        let (destination, padding) = rest.split_first_chunk::<4>()?;
        // Some devices carry private data of one length only.
        if *version != VERSION || padding.iter().any(|byte| *byte != 0) {
            return None;
        }
        let source = SocketAddr::new(Ipv6Addr::from(*ip).to_canonical(), u16::from_le_bytes(*port));
        let destination = match Ipv4Addr::from(*destination) {
            Ipv4Addr::UNSPECIFIED => source.ip(),
            other => other.into(),
        };
        let number = u32::from_le_bytes(*number);
        are_of_one_host(source.ip(), destination).then_some(Request { number, source, destination })
    }
}

/// Only the kernel's socket counts from now on, for good: withdraws it, if it was announced, and ends its flows.
pub fn withdraw(socket: &Datagram, fd: c_int, why: KernelOnly) {
    socket.sharing().keep(why);
    leave(socket, fd);
}

/// As [`withdraw`], in every process that holds the socket, as far as they know each other.
pub fn withdraw_for_all(socket: &Datagram, fd: c_int, why: KernelOnly) {
    socket.sharing().keep_for_all(why);
    leave(socket, fd);
}

/// Withdraws a socket that is the kernel's now, if it was announced, and ends its flows.
fn leave(socket: &Datagram, fd: c_int) {
    let flows = socket.leave_to_kernel(fd);
    let Some(rt) = get() else { return };
    let Some(endpoint) = rt.endpoint() else { return };
    if let (Some(number), Some(local)) = (socket.number(), local_address(fd)) {
        endpoint.directory().withdraw(&announced(local), number);
    }
    end(rt, flows);
}

/// A program is about to be started with the sockets of datagrams among these.
pub fn lend(entries: &[(c_int, Arc<Entry>)]) {
    sockets(entries).for_each(|(_, socket)| socket.sharing().lend());
    leave_rings(entries);
}

/// A message is about to carry these sockets of datagrams to another process.
pub fn give_away(entries: &[(c_int, Arc<Entry>)]) {
    sockets(entries).for_each(|(_, socket)| socket.sharing().keep_for_all(KernelOnly::Given));
    leave_rings(entries);
}

/// A child is about to inherit these. `known`: it is entered in the family.
pub(super) fn before_fork(entries: &[(c_int, Arc<Entry>)], known: bool) {
    for (at, (_, entry)) in entries.iter().enumerate() {
        let Entry::Datagram(socket) = &**entry else { continue };
        // Several descriptors may name one socket.
        let same = |(_, other): &&(c_int, Arc<Entry>)| Arc::ptr_eq(other, entry);
        if !entries[..at].iter().any(|other| same(&other)) {
            let is_watched = entries.iter().filter(same).any(|(fd, _)| is_watched(entries, *fd));
            socket.sharing().share(known, is_watched);
        }
    }
    leave_rings(entries);
}

/// Whether an epoll instance among these watches `fd`.
fn is_watched(entries: &[(c_int, Arc<Entry>)], fd: c_int) -> bool {
    entries.iter().any(|(_, entry)| matches!(&**entry, Entry::Epoll(epoll) if epoll.has_interest(fd)))
}

fn sockets(entries: &[(c_int, Arc<Entry>)]) -> impl Iterator<Item = (c_int, &Arc<Datagram>)> {
    entries.iter().filter_map(|(fd, entry)| match &**entry {
        Entry::Datagram(socket) => Some((*fd, socket)),
        _ => None,
    })
}

/// Other processes will hold the sockets of datagrams, too: ends their flows.
fn leave_rings(entries: &[(c_int, Arc<Entry>)]) {
    // Before any of them ends the flows that it sends: then it also sends what another one of them gives back.
    let given_back: Vec<_> = sockets(entries).flat_map(|(_, socket)| socket.give_back()).collect();
    for (fd, socket) in sockets(entries) {
        leave(socket, fd);
    }
    if let Some(rt) = get() {
        end(rt, given_back);
    }
}

/// The program is about to be replaced: ends all flows that its sockets send, and sends by the kernel what the receivers have given
/// back. A socket that is not inherited may send to one that is. Others may be made if the program is not replaced after all.
pub fn end_all() {
    let endpoint = get().and_then(Runtime::endpoint);
    for (fd, entry) in table::entries() {
        if let Entry::Datagram(socket) = &*entry {
            socket.end_sending(fd, endpoint);
        }
    }
}

/// The key under which a socket is announced: no connection has a remote port of 0.
pub fn announced(local: SocketAddr) -> FourTuple {
    FourTuple { local, remote: SocketAddr::new(local.ip(), 0) }
}

/// The address from which the kernel sends a datagram of this socket to one of this host's addresses: the one that the
/// socket is bound to, or the destination itself; within 127.0.0.0/8 it is 127.0.0.1.
fn source_for(local: SocketAddr, to: SocketAddr) -> SocketAddr {
    let ip = match (local.ip(), to.ip()) {
        (local, _) if !local.is_unspecified() => local,
        (_, IpAddr::V4(to)) if to.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        (_, to) => to,
    };
    SocketAddr::new(ip, local.port())
}

/// Whether datagrams from the one of this host's addresses to the other stay within it.
fn are_of_one_host(source: IpAddr, destination: IpAddr) -> bool {
    source == destination || source.is_ipv4() && source.is_loopback() && destination.is_loopback()
}

/// Requests the rings that the program's threads want. By the helper.
pub(super) fn request_wanted(rt: &'static Runtime, endpoint: &'static Endpoint) {
    for Wanted { socket, fd, to } in std::mem::take(&mut *rt.flows.wanted.lock()) {
        let Some(socket) = socket.upgrade() else { continue };
        match request(rt, endpoint, &socket, fd, &to) {
            Ok(Requested::Ring(id)) => {
                drop(rt.flows.pending.lock().insert(id, Pending::Outgoing(Arc::downgrade(&socket), to)));
            }
            Ok(Requested::OnLink) => {}
            Err((reason, other)) => {
                endpoint.counters().reason(reason);
                end(rt, other.into_iter().collect());
                socket.outgoing().refuse(&to, reason);
            }
        }
    }
}

/// A flow was requested.
enum Requested {
    /// A ring within this host.
    Ring(ConnectionId),
    /// A place on a link.
    OnLink,
}

fn request(
    rt: &'static Runtime,
    endpoint: &'static Endpoint,
    socket: &Arc<Datagram>,
    fd: c_int,
    address: &Address,
) -> Result<Requested, Refused> {
    let is_it = matches!(table::get_full(fd).as_deref(), Some(Entry::Datagram(known)) if Arc::ptr_eq(known, socket));
    if !is_it || socket.is_kernel_only() {
        return Err((Reason::Closing, None));
    }
    let (Some(to), Some(local)) = (address.socket_addr(), local_address(fd)) else {
        return Err((Reason::UnknownStream, None));
    };
    if links::is_group(to.ip()) {
        return Err((Reason::GroupAddress, None));
    }
    if let Some(source) = links::source_towards(local, to) {
        let addresses = FourTuple { local: source, remote: to };
        return links::request(rt, endpoint, (socket, fd), (address, addresses)).map(|()| Requested::OnLink);
    }
    let source = source_for(local, to);
    if !are_of_one_host(source.ip(), to.ip()) || !may_flow(endpoint, source) {
        return Err((Reason::NotAdmitted, None));
    }
    let hosts = [to.ip(), Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    let found = hosts.into_iter().find_map(|ip| {
        let theirs = FourTuple { local: SocketAddr::new(ip, 0), remote: SocketAddr::new(ip, to.port()) };
        endpoint.directory().lookup(&theirs)
    });
    let (peer, number) = found.ok_or((Reason::PeerNotFound, None))?;
    let reserved = socket.outgoing().reserve(address, Destination { peer, number, source });
    reserved.map_err(|other| (Reason::SameReceiver, other))?;
    let mut outgoing = socket.outgoing();
    // With the lock held: a thread that sets an option reads them anew.
    outgoing.marks = sockopt::marks(fd);
    drop(outgoing);
    let request = Request { number, source, destination: to.ip() };
    let requested = endpoint.request_flow(peer, OUTBOX_LEN, &request.encode());
    requested.map(Requested::Ring).map_err(|_| (Reason::PeerNotFound, None))
}

/// Whether the processes that can request a flow from `source`, or be requested to accept one, are trusted: nothing but
/// their word says that they have the sockets that they name.
fn may_flow(endpoint: &Endpoint, source: SocketAddr) -> bool {
    endpoint.directory().trusts(&FourTuple { local: source, remote: source })
}

/// A peer requests a flow to a socket of this process. The length of the region for it; `None`: it is refused.
pub(super) fn requested(rt: &Runtime, endpoint: &Endpoint, id: ConnectionId, request: &[u8]) -> Option<usize> {
    let request = Request::decode(request).filter(|request| may_flow(endpoint, request.source))?;
    let socket = rt.flows.socket(request.number).filter(|socket| !socket.is_kernel_only())?;
    //= spec §10.2.2
    //# The receiver accepts a flow only if the kernel has brought the socket a datagram from that address.
    let origin = {
        let incoming = socket.incoming();
        let origin = incoming.origin(request.source, request.destination).filter(|_| incoming.has_room())?;
        // Its control messages are learned from the kernel as well.
        (!socket.gives_messages() || origin.messages.is_some()).then_some(origin)?
    };
    rt.flows.pending.lock().insert(id, Pending::Incoming(Arc::downgrade(&socket), Box::new(origin)));
    Some(inbox_len(CAPACITY))
}

/// A flow exists.
pub(super) fn established(rt: &Runtime, endpoint: &Endpoint, id: ConnectionId, flow: Flow) {
    let qp = flow.qp;
    let socket = rt.flows.pending.lock().remove(&id).and_then(|pending| attach(pending, flow));
    match socket {
        Some(socket) => {
            rt.flows.count_link();
            rt.flows.established.lock().insert(qp, Arc::downgrade(&socket));
        }
        None => endpoint.end_flow(qp),
    }
}

/// Gives a flow to its socket. `None`: it is not wanted any more, or its regions are no flow's.
fn attach(pending: Pending, flow: Flow) -> Option<Arc<Datagram>> {
    match pending {
        Pending::Outgoing(socket, to) => {
            let socket = socket.upgrade()?;
            let sender = Sender::new(flow.remote, flow.local)?;
            let wanted = !socket.is_kernel_only() && socket.outgoing().link(&to, sender, flow.qp);
            if wanted {
                probes::flow(to.socket_addr().map_or(0, |to| to.port()), true);
            }
            wanted.then_some(socket)
        }
        Pending::Incoming(socket, origin) => {
            let socket = socket.upgrade().filter(|socket| !socket.is_kernel_only())?;
            let wants_time = socket.wants(wants::TIME | wants::TIMES);
            let port = origin.source.socket_addr().map_or(0, |source| source.port());
            let ring = Ring::new(Receiver::new(flow.local, flow.remote, wants_time)?, *origin, flow.qp);
            if !socket.attach(ring) {
                return None;
            }
            probes::flow(port, false);
            Some(socket)
        }
    }
}

/// A flow could not be made.
pub(super) fn failed(rt: &Runtime, id: ConnectionId) {
    if let Some(Pending::Outgoing(socket, to)) = rt.flows.pending.lock().remove(&id) {
        if let Some(socket) = socket.upgrade() {
            socket.outgoing().refuse(&to, Reason::PeerBusy);
        }
    }
}

/// The peer has ended a flow, or is gone.
pub(super) fn ended(rt: &Runtime, endpoint: &Endpoint, qp: QueuePairId) {
    let Some(socket) = rt.flows.established.lock().remove(&qp).and_then(|socket| socket.upgrade()) else {
        return endpoint.end_flow(qp);
    };
    if end_outgoing(&socket, qp) {
        return endpoint.end_flow(qp);
    }
    let read = {
        let mut incoming = socket.incoming();
        incoming.end(qp);
        incoming.take_read()
    };
    end(rt, read);
}

/// Ends a flow that the socket sends, and sends by the kernel what the receiver has given back. `false`: it is none of these.
fn end_outgoing(socket: &Arc<Datagram>, qp: QueuePairId) -> bool {
    let mut outgoing = socket.outgoing();
    let ended = outgoing.end(qp);
    if let Some((to, reclaimed)) = ended.as_ref().filter(|(_, reclaimed)| !reclaimed.is_empty()) {
        // With the lock held, which a thread takes that closes a descriptor: it stays this socket's.
        let is_it = |entry: &Entry| matches!(entry, Entry::Datagram(known) if Arc::ptr_eq(known, socket));
        if let Some((fd, _)) = table::entries().find(|(_, entry)| is_it(entry)) {
            outgoing.resend(fd, to, reclaimed, socket.counts());
        }
    }
    ended.is_some()
}

/// Ends flows. Keeps errno.
#[cold]
pub fn end(rt: &Runtime, flows: Vec<QueuePairId>) {
    let saved = errno();
    for qp in flows {
        rt.flows.established.lock().remove(&qp);
        if let Some(endpoint) = rt.endpoint() {
            endpoint.end_flow(qp);
        }
    }
    set_errno(saved);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_were_written() {
        //= spec §10.2.1
        //= type=test
        //# Then follow the version, 4; the receiver's number of the socket, in 4 bytes; and the port, in 2 bytes, and the
        //# address, in 16, from which the flow comes.
        //= spec §10.2.1
        //= type=test
        //# The last 4 bytes are the address to which it goes, if that is another one, or else 0.
        let same = |source: &'static str| (source, source.parse::<SocketAddr>().unwrap().ip());
        let other = ("127.0.0.1:53", "127.0.0.2".parse().unwrap());
        for (source, destination) in [same("127.0.0.1:53"), other, same("[::1]:4433"), same("10.1.2.3:65535")] {
            let request = Request { number: 0x01_02_03_04, source: source.parse().unwrap(), destination };
            let mut bytes = request.encode();
            assert!(bytes.len() <= netacc_driver::MAX_FLOW_REQUEST);
            assert_eq!(Request::decode(&bytes), Some(Request { ..request }));
            assert_eq!(Request::decode(&bytes[..bytes.len() - 1]), None);
            bytes[0] += 1;
            assert_eq!(Request::decode(&bytes), None);
        }
        let source = "10.1.2.3:9".parse().unwrap();
        let elsewhere = Request { number: 1, source, destination: "127.0.0.1".parse().unwrap() };
        assert_eq!(Request::decode(&elsewhere.encode()), None, "no datagram comes from there");
    }

    #[test]
    fn the_source_is_the_kernels() {
        let source = |local: &str, to: &str| source_for(local.parse().unwrap(), to.parse().unwrap()).to_string();
        assert_eq!(source("0.0.0.0:7", "127.0.0.5:9"), "127.0.0.1:7");
        assert_eq!(source("0.0.0.0:7", "10.0.0.5:9"), "10.0.0.5:7");
        assert_eq!(source("127.0.0.3:7", "127.0.0.5:9"), "127.0.0.3:7");
        assert_eq!(source("[::]:7", "[::1]:9"), "[::1]:7");
        assert_eq!(source("[::]:7", "127.0.0.1:9"), "127.0.0.1:7");
    }
}
