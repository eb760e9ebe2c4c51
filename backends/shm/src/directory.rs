//! The directory: finds the process that holds a connection, within the host and on links to others.

use netacc_device::{Directory, DirectoryError, FourTuple, Obstacle, PeerAddress};

use crate::device::ShmDevice;
use crate::{obstacle, rendezvous, tuple};

impl ShmDevice {
    /// Whether it finds processes of other network namespaces of this host, too.
    pub fn spans_namespaces(&self) -> bool {
        self.config.folder.is_some()
    }

    /// The key of the end that sees the connection as `t`.
    fn key(&self, t: &FourTuple) -> u64 {
        tuple::key(t, if tuple::is_local(t) { self.rendezvous.network } else { 0 })
    }

    /// Whether both ends of a connection must be on this host (in this network namespace).
    pub fn is_within_host(t: &FourTuple) -> bool {
        tuple::same_host(t)
    }

    /// Announces to the processes of this user (or group) that we hold a connection to another host, as our stream
    /// `stream`. `false`: the table is full there.
    pub fn announce(&self, t: &FourTuple, stream: u32) -> bool {
        if self.descriptors.are_gone() {
            return false;
        }
        let r = &self.rendezvous;
        r.table.publish(self.key(t), r.slot, r.generation, stream)
    }

    /// Withdraws an announcement of [`announce`](ShmDevice::announce).
    pub fn retract(&self, t: &FourTuple, stream: u32) {
        let r = &self.rendezvous;
        r.table.withdraw(self.key(t), r.slot, r.generation, stream);
    }

    /// Announces to them the port at which we accept links from other hosts; 0: none.
    pub fn publish_link_port(&self, port: u16) {
        self.rendezvous.table.publish_link_port(self.rendezvous.slot, self.rendezvous.generation, port);
    }

    /// The port at which the process that has announced the connection accepts links from other hosts. `None`: no other
    /// process has announced it, or it accepts none. A hint, like everything in the table.
    pub fn link_port_of_holder(&self, t: &FourTuple) -> Option<u16> {
        let table = &self.rendezvous.table;
        let (process, _) = table.lookup(self.key(t)).filter(|(process, _)| process.slot != self.rendezvous.slot)?;
        table.link_port(process)
    }

    /// Whether another process has [announced](ShmDevice::publish_link_port) that it accepts links from other hosts.
    pub fn has_neighbour_with_links(&self) -> bool {
        self.rendezvous.table.has_link_port_beside(self.rendezvous.slot)
    }
}

impl Directory for ShmDevice {
    fn serves(&self, t: &FourTuple) -> bool {
        tuple::same_host(t) || self.spans_namespaces()
    }

    /// Processes of a shared folder may be in another PID namespace, from which they could not trace this one.
    fn trusts(&self, t: &FourTuple) -> bool {
        tuple::same_host(t) && !self.spans_namespaces()
    }

    fn admits(&self, _: PeerAddress, t: &FourTuple) -> bool {
        self.serves(t)
    }

    fn publish(&self, t: &FourTuple, stream: u32) -> Result<(), DirectoryError> {
        if !self.serves(t) {
            return Err(DirectoryError::NotServed);
        }
        if self.descriptors.are_gone() {
            return Err(DirectoryError::NoDescriptor);
        }
        if self.announce(t, stream) {
            Ok(())
        } else {
            Err(DirectoryError::Full)
        }
    }

    fn withdraw(&self, t: &FourTuple, stream: u32) {
        self.retract(t, stream);
    }

    fn lookup(&self, t: &FourTuple) -> Option<(PeerAddress, u32)> {
        let (process, stream) = self.rendezvous.table.lookup(self.key(&t.reversed()))?;
        self.is_at_address(&process, t).then_some(())?;
        Some((rendezvous::address(&process), stream))
    }

    fn obstacle(&self, t: &FourTuple, _: bool) -> Option<Obstacle> {
        let is_known = |pid| self.rendezvous.table.has_process(pid);
        if tuple::same_host(t) {
            return obstacle::find(&t.reversed(), self.config.group.is_some(), is_known);
        }
        self.spans_namespaces().then_some(Obstacle::Elsewhere)
    }
}
