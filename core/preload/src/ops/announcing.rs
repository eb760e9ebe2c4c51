//! The first steps of a flow of datagrams, by the program's threads. [`control::flows`](crate::control::flows) has the others.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::Arc;

use netacc_driver::Endpoint;

use super::datagram;
use crate::control::flows::{self, announced};
use crate::control::{links, start};
use crate::datagram::{local_address, peer_address, Address, Datagram, KernelOnly, Wanted};
use crate::epoll::unknown;
use crate::family::Others;
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
        return flows::withdraw(socket, fd, KernelOnly::Off);
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

/// Looks up the holders of a socket that other processes may have held. Whether none of them holds it any more, so that flows
/// may be made again. Keeps errno.
fn come_back(socket: &Arc<Datagram>, fd: c_int) -> bool {
    socket.postpone_lookup();
    let saved = errno();
    let sharing = socket.sharing();
    let is_back = sharing.seen().is_some_and(|seen| match sharing.others() {
        Others::Entered => false,
        Others::Unseen => {
            sharing.loans().want_search(start());
            false
        }
        Others::Absent => may_have_rings(socket, fd) && sharing.end(seen),
    });
    set_errno(saved);
    is_back
}

/// Reads from the kernel what another holder may have done with a socket that this process holds alone. Whether rings can serve
/// it still; if not, it stays in the kernel.
fn may_have_rings(socket: &Datagram, fd: c_int) -> bool {
    let unknown_instance = || unknown::watches(fd).then_some(KernelOnly::Watched);
    let why = socket.sharing().kept_for_all().or_else(|| datagram::needs_kernel(fd)).or_else(unknown_instance);
    if let Some(why) = why {
        flows::withdraw(socket, fd, why);
        return false;
    }
    datagram::read_options(socket, fd);
    socket.outgoing().connected = None;
    true
}

/// Lets the helper request a ring for the datagrams to a destination.
#[cold]
pub fn want(socket: &Arc<Datagram>, fd: c_int, to: Address) {
    let rt = start();
    let Some(endpoint) = rt.endpoint().filter(|_| rt.config.datagrams) else { return };
    rt.flows.wanted.lock().push(Wanted { socket: Arc::downgrade(socket), fd, to });
    endpoint.need_helper();
}
