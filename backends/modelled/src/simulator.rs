//! The network of a driven cluster, one event at a time: for processes that run between the events.

use netacc_device::Instant;
use netacc_rnic::network::{Network, Station, Topology};
use netacc_rnic::Packet;

use crate::{Cluster, HostId};

/// The simulator that moves packets and time of a [driven](Cluster::driven) cluster.
pub trait Simulator {
    /// Serves the hosts that need it, then makes the next event happen; returns its time. `None` if there will never be
    /// one.
    fn step(&mut self) -> Option<Instant>;

    /// Cuts the cable of a host, or repairs it. Packets in flight still arrive.
    fn set_cut(&mut self, host: HostId, cut: bool);
}

/// The network of `netacc_rnic`, as a simulator like any other.
pub struct PlainSimulator {
    cluster: Cluster,
    network: Network<Port>,
}

/// A host's place in the network.
struct Port {
    cluster: Cluster,
    host: HostId,
}

impl PlainSimulator {
    /// Joins the hosts of a driven cluster. The seed decides which packets are lost.
    pub fn new(cluster: &Cluster, topology: &Topology, seed: u64) -> PlainSimulator {
        let port = |host| Port { cluster: cluster.clone(), host: HostId(host) };
        let ports = (0..cluster.len() as u32).map(port).collect();
        PlainSimulator { cluster: cluster.clone(), network: Network::new(topology, ports, seed) }
    }

    fn serve(&mut self) {
        while let Some(host) = self.cluster.take_dirty() {
            self.network.kick(host.0 as usize);
        }
    }
}

impl Simulator for PlainSimulator {
    fn step(&mut self) -> Option<Instant> {
        self.serve();
        if !self.network.step() {
            return None;
        }
        while self.network.take_touched().is_some() {}
        self.serve();
        Some(self.network.now())
    }

    fn set_cut(&mut self, host: HostId, cut: bool) {
        self.network.set_cut(host.0 as usize, cut);
    }
}

impl Station for Port {
    fn handle_packet(&mut self, now: Instant, packet: Packet) {
        self.cluster.handle_packet(self.host, now, packet);
    }

    fn handle_timer(&mut self, now: Instant) {
        self.cluster.handle_timer(self.host, now);
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Packet> {
        self.cluster.poll_transmit(self.host, now)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.cluster.next_deadline(self.host)
    }
}
