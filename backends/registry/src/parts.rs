//! The two devices that [`Fabric`](crate::fabric::Fabric) is made of, as traits.
//!
//! Another device can replace either as soon as this module implements the trait for it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

use netacc_device::{ConnectionManager, Device, Directory, FourTuple, PeerAddress};
use netacc_shm::{GiveBack, ShmDevice};
use netacc_verbs::VerbsDevice;

use crate::BackendFds;

/// A device that connects the processes of one host. Its directory also shows which of these neighbours holds a
/// connection to another host.
pub(crate) trait WithinHost: Device + ConnectionManager + Directory {
    /// Whether both ends of a connection must be on this host.
    fn is_within_host(tuple: &FourTuple) -> bool;

    /// Whether it finds processes of other network namespaces of this host, too.
    fn spans_namespaces(&self) -> bool;

    /// Publishes to neighbours that this process holds a connection to another host, as its stream `stream`. `false`: the table
    /// is full.
    fn announce(&self, tuple: &FourTuple, stream: u32) -> bool;

    /// Withdraws an announcement of [`announce`](WithinHost::announce).
    fn retract(&self, tuple: &FourTuple, stream: u32);

    /// Publishes to neighbours the port at which this process accepts links from other hosts; 0: none.
    fn publish_link_port(&self, port: u16);

    /// The port at which the neighbour that has announced the connection accepts links from other hosts.
    fn link_port_of_holder(&self, tuple: &FourTuple) -> Option<u16>;

    /// Whether a neighbour accepts links from other hosts.
    fn has_neighbour_with_links(&self) -> bool;

    /// Every descriptor that it keeps open.
    fn fds(&self) -> Vec<RawFd>;

    /// See [`Opened::end_with_this_thread`](crate::Opened::end_with_this_thread).
    fn end_with_this_thread(&self);

    /// See [`Opened::leave`](crate::Opened::leave).
    fn leave(&self);

    /// Closes descriptors for a program that has none left; returns their number.
    fn give_back(&self, which: GiveBack) -> usize;
}

/// A device that reaches other hosts, and may be taken away.
pub(crate) trait BetweenHosts: Device + ConnectionManager {
    /// The address to connect to if a process accepts links at `address`.
    fn peer_address(address: SocketAddr) -> PeerAddress;

    /// The inverse of [`peer_address`](BetweenHosts::peer_address). `None`: no process can listen at such an address.
    fn socket_address(peer: PeerAddress) -> Option<SocketAddr>;

    /// The port at which this process always accepts links.
    fn port(&self) -> u16;

    /// Accepts links at one more port, from now on.
    ///
    /// # Errors
    /// Fails if the port is taken.
    fn listen_on(&self, port: u16) -> io::Result<()>;

    /// The local address that links of a family come from and are accepted at.
    fn address_of_family(&self, like: IpAddr) -> Option<IpAddr>;

    /// Whether the device was taken away. All its queue pairs then end; drop the object once they are destroyed.
    fn is_gone(&self) -> bool;

    /// Whether it has queue pairs.
    fn is_in_use(&self) -> bool;

    /// Every descriptor that it keeps open.
    fn fds(&self) -> BackendFds;
}

impl WithinHost for ShmDevice {
    fn is_within_host(tuple: &FourTuple) -> bool {
        ShmDevice::is_within_host(tuple)
    }

    fn spans_namespaces(&self) -> bool {
        self.spans_namespaces()
    }

    fn announce(&self, tuple: &FourTuple, stream: u32) -> bool {
        self.announce(tuple, stream)
    }

    fn retract(&self, tuple: &FourTuple, stream: u32) {
        self.retract(tuple, stream);
    }

    fn publish_link_port(&self, port: u16) {
        self.publish_link_port(port);
    }

    fn link_port_of_holder(&self, tuple: &FourTuple) -> Option<u16> {
        self.link_port_of_holder(tuple)
    }

    fn has_neighbour_with_links(&self) -> bool {
        self.has_neighbour_with_links()
    }

    fn fds(&self) -> Vec<RawFd> {
        self.fds()
    }

    fn end_with_this_thread(&self) {
        self.end_with_this_thread();
    }

    fn leave(&self) {
        self.leave();
    }

    fn give_back(&self, which: GiveBack) -> usize {
        self.give_back(which)
    }
}

impl BetweenHosts for VerbsDevice {
    fn peer_address(address: SocketAddr) -> PeerAddress {
        VerbsDevice::peer_address(address)
    }

    fn socket_address(peer: PeerAddress) -> Option<SocketAddr> {
        VerbsDevice::socket_address(peer)
    }

    fn port(&self) -> u16 {
        VerbsDevice::address(self).port()
    }

    fn listen_on(&self, port: u16) -> io::Result<()> {
        self.listen_on(port)
    }

    fn address_of_family(&self, like: IpAddr) -> Option<IpAddr> {
        self.address_of_family(like)
    }

    fn is_gone(&self) -> bool {
        self.is_gone()
    }

    fn is_in_use(&self) -> bool {
        self.is_in_use()
    }

    fn fds(&self) -> BackendFds {
        BackendFds { own: self.own_fds(), libraries: self.library_fds() }
    }
}
