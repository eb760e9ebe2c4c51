//! Proving that a peer of a shared folder is at an address: see `routes`. Control path, by the thread that drives the
//! connection manager.
//!
//! The opener sends `Probe` with the address. The acceptor opens a UDP socket at that address and answers with its port,
//! the opener sends a nonce there, and the acceptor returns on the pair's socket what it has received. `Probe` without an
//! address closes the UDP socket.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::Ordering::*;
use std::time::Instant;

use netacc_device::FourTuple;

use crate::device::ShmDevice;
use crate::manager::{Manager, PROBE};
use crate::pair::{PairSlot, LIVE};
use crate::routes::Route;
use crate::sys;
use crate::table::Process;
use crate::wire::Message;

/// Datagrams that an acceptor returns for one question: others than the opener can send some. Arbitrary.
const MOST_DATAGRAMS: usize = 8;

impl ShmDevice {
    /// Whether a process that has announced the other end of `t` is known to be at that address. If not, it is found
    /// out; a later call then returns another answer.
    pub(crate) fn is_at_address(&self, process: &Process, t: &FourTuple) -> bool {
        if !self.spans_namespaces() || process.slot == self.rendezvous.slot {
            return true;
        }
        let peer = crate::rendezvous::address(process);
        let (local, remote) = (t.local.ip().to_canonical(), t.remote.ip().to_canonical());
        match self.routes.check(Route { peer, local, remote }, Instant::now()) {
            None => true,
            Some(news) => {
                if news {
                    sys::ring(self.kick());
                }
                false
            }
        }
    }

    /// Asks the peers of the routes that are to be proven; begins pairs with them where there are none.
    pub(crate) fn prove_wanted(&self, cm: &mut Manager) {
        let now = Instant::now();
        for route in self.routes.wanted(now) {
            let Ok(nonce) = sys::random() else { return };
            let known = cm.pairs.get(&route.peer).and_then(|&pair| self.pairs.get(pair as usize));
            match known.map_or_else(|| self.begin_pair(cm, route.peer), Ok) {
                Ok(slot) if slot.state.load(Acquire) == LIVE => {
                    self.routes.ask(route, nonce, now);
                    self.send(slot, &mut slot.control.lock(), Message::Probe { address: route.remote }, &[]);
                }
                // It is asked once the handshake is over.
                Ok(_) => {}
                // Repeated after a while, if a connection needs it.
                Err(_) => self.routes.refuse(route, now),
            }
        }
    }

    /// Listens at an address for a peer. It may name any; only those of this network namespace can be bound.
    pub(crate) fn probe(&self, slot: &PairSlot, address: IpAddr) {
        self.end_probe(slot);
        if address.is_unspecified() {
            return;
        }
        let opened = self.may_open(1).then(|| bind(address).ok()).flatten();
        let port = opened.map_or(0, |(socket, port)| {
            let tag = PROBE | u64::from(slot.index);
            if sys::epoll_set(self.epoll(), true, socket.as_raw_fd(), tag, false).is_err() {
                return 0;
            }
            slot.probe.store(socket.into_raw_fd(), Release);
            port
        });
        self.send(slot, &mut slot.control.lock(), Message::Probing { address, port }, &[]);
    }

    /// The peer listens at an address: sends it the nonce there.
    pub(crate) fn probing(&self, cm: &mut Manager, slot: &PairSlot, address: IpAddr, port: u16) {
        let Some(peer) = slot.control.lock().peer else { return };
        let Some((route, nonce)) = self.routes.asked(peer, address) else { return };
        if port == 0 {
            self.routes.refuse(route, Instant::now());
            return self.prove_wanted(cm);
        }
        let _number = netacc_descriptors::borrow();
        // If it cannot be sent, the route stays unproven, and connections stay on TCP.
        let Ok(socket) = UdpSocket::bind((route.local, 0)) else { return };
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&nonce[0].to_le_bytes());
        bytes[8..].copy_from_slice(&nonce[1].to_le_bytes());
        if socket.set_nonblocking(true).is_ok() {
            let _ = socket.send_to(&bytes, (route.remote, port));
        }
    }

    /// Datagrams have come to where we listen for a peer.
    pub(crate) fn pump_probe(&self, slot: &PairSlot) {
        for _ in 0..MOST_DATAGRAMS {
            let Ok(packet) = sys::receive(slot.probe.load(Acquire)) else { return };
            if let Ok(words) = <&[u8; 16]>::try_from(&packet.bytes[..]) {
                let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| words[at + i]));
                let received = Message::Probed { nonce: [word(0), word(8)] };
                self.send(slot, &mut slot.control.lock(), received, &[]);
            }
        }
        self.end_probe(slot);
    }

    /// The peer has received a nonce.
    pub(crate) fn probed(&self, cm: &mut Manager, slot: &PairSlot, nonce: [u64; 2]) {
        let peer = slot.control.lock().peer;
        if peer.is_some_and(|peer| self.routes.received(peer, nonce)) {
            let end = Message::Probe { address: Ipv6Addr::UNSPECIFIED.into() };
            self.send(slot, &mut slot.control.lock(), end, &[]);
        }
        self.prove_wanted(cm);
    }

    fn end_probe(&self, slot: &PairSlot) {
        slot.close_probe(self.epoll());
    }
}

/// A socket at an address of this network namespace, and its port.
fn bind(address: IpAddr) -> std::io::Result<(OwnedFd, u16)> {
    let _number = netacc_descriptors::borrow();
    let socket = UdpSocket::bind(SocketAddr::new(address, 0))?;
    socket.set_nonblocking(true)?;
    let port = socket.local_addr()?.port();
    Ok((netacc_descriptors::raise(socket.into()), port))
}
