//! The first steps of a flow of datagrams, by the program's threads. [`control::flows`](crate::control::flows) has the others.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::Arc;

use netacc_driver::Endpoint;

use super::options;
use crate::control::flows::announced;
use crate::control::{links, start};
use crate::datagram::{local_address, peer_address, Address, Datagram, KernelOnly, Wanted};
use crate::family::{self, Others};
use crate::os::errno::{errno, set_errno};

/// Announces a socket that moves datagrams, so that flows to it can be made.
#[cold]
pub fn announce(socket: &Arc<Datagram>, fd: c_int) {
    let returns = socket.is_kernel_only();
    if returns && !come_back(socket, fd) {
        return;
    }
    let Some(local) = local_address(fd).filter(|local| local.port() != 0) else { return };
    let rt = start();
    let Some(endpoint) = rt.endpoint().filter(|_| rt.config.datagrams) else {
        return drop(socket.leave_to_kernel(KernelOnly::Off, fd));
    };
    socket.set_address(local);
    socket.incoming().set_peer(peer_address(fd));
    let known = if returns { socket.number() } else { None };
    let Some(number) = known.or_else(|| rt.flows.register(socket)) else { return };
    // If the directory is full, flows from this socket can be made all the same.
    let _ = endpoint.directory().publish(&announced(local), number);
    let mut incoming = socket.incoming();
    incoming.set_local(local);
    let sources: Vec<_> = incoming.sources().filter_map(Address::socket_addr).collect();
    drop(incoming);
    sources.into_iter().for_each(|source| offer_towards(endpoint, local, source));
}

fn offer_towards(endpoint: &Endpoint, local: SocketAddr, source: SocketAddr) {
    if let Some(local) = links::source_towards(local, source) {
        links::offer(endpoint, local, source);
    }
}

/// A socket that is announced has received a datagram from an address that is new.
#[cold]
pub fn offer(fd: c_int, source: &Address) {
    let rt = start();
    let Some(endpoint) = rt.endpoint().filter(|_| rt.config.datagrams) else { return };
    if let (Some(local), Some(source)) = (local_address(fd), source.socket_addr()) {
        offer_towards(endpoint, local, source);
    }
}

/// Looks up the holders of a socket that other processes have held. Whether none of them holds it any more, so that flows may be
/// made again.
fn come_back(socket: &Datagram, fd: c_int) -> bool {
    socket.postpone_lookup();
    let saved = errno();
    let is_back = socket.shares().is_some_and(|seen| {
        let alone = family::others(socket.family()) == Others::Absent;
        if alone {
            // Another holder may have set any of it.
            options::read_datagram_options(socket, fd);
            socket.outgoing().connected = None;
        }
        alone && socket.unshare(seen)
    });
    set_errno(saved);
    is_back
}

/// Lets the helper request a ring for the datagrams to a destination.
#[cold]
pub fn want(socket: &Arc<Datagram>, fd: c_int, to: Address) {
    let rt = start();
    let Some(endpoint) = rt.endpoint().filter(|_| rt.config.datagrams) else { return };
    rt.flows.wanted.lock().push(Wanted { socket: Arc::downgrade(socket), fd, to });
    endpoint.need_helper();
}
