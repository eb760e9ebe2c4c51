//! The first steps of a flow of datagrams, by the program's threads. [`control::flows`](crate::control::flows) has the others.

use std::ffi::c_int;
use std::sync::Arc;

use crate::control::flows::{announced, local_address, peer_address};
use crate::control::start;
use crate::datagram::{Address, Datagram, KernelOnly, Wanted};

/// Announces a socket that moves datagrams, so that flows to it can be made.
#[cold]
pub fn announce(socket: &Arc<Datagram>, fd: c_int) {
    let Some(local) = local_address(fd).filter(|local| local.port() != 0) else { return };
    let rt = start();
    let Some(endpoint) = rt.endpoint().filter(|_| rt.config.datagrams) else {
        return drop(socket.leave_to_kernel(KernelOnly::Off, fd));
    };
    socket.set_address(local);
    socket.incoming().set_peer(peer_address(fd));
    let Some(number) = rt.flows.register(socket) else { return };
    // If the directory is full, flows from this socket can be made all the same.
    let _ = endpoint.directory().publish(&announced(local), number);
}

/// Lets the helper request a ring for the datagrams to a destination.
#[cold]
pub fn want(socket: &Arc<Datagram>, fd: c_int, to: Address) {
    let rt = start();
    let Some(endpoint) = rt.endpoint().filter(|_| rt.config.datagrams) else { return };
    rt.flows.wanted.lock().push(Wanted { socket: Arc::downgrade(socket), fd, to });
    endpoint.need_helper();
}
