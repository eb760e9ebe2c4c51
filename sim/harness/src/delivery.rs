//! Deliveries of the world: on the fabric, on the connections' wires, and by making a simulator's next event happen.

use std::time::Duration;

use netacc_device::loopback::anchor::{AnchorDelivery, AnchorEnd};
use netacc_device::loopback::{Delivery, DeviceId, Fabric};
use netacc_device::Instant;
use netacc_modelled::HostId;

use crate::connection::Connection;
use crate::descriptor::{ERR, HUP, IN, OUT, RDHUP};
use crate::network::Net;
use crate::tcp::ProgramTcp;
use crate::trace::Event;
use crate::world::World;

/// Far above the time of a queue pair's retries, and far below that of TCP's.
const MAX_CUT: Duration = Duration::from_millis(50);

/// A simulator's clock that moves by more has leapt over a timer of its TCP. Far above any time within a host, and
/// below the times after which streams give up.
const LEAP: Duration = Duration::from_millis(100);

impl World {
    /// One event of the network. Whether there was one.
    pub(crate) fn net_step(&mut self) -> bool {
        match &self.net {
            Net::Memory(fabric) => {
                let fabric = fabric.clone();
                self.fabric_step(&fabric)
            }
            Net::Nics(cluster) => {
                let cluster = cluster.clone();
                let mut moved = false;
                // A message is many events where a delivery is one.
                for _ in 0..1 + self.rng.below(64) {
                    let Some(now) = self.simulator.as_mut().and_then(|s| s.step()) else { break };
                    cluster.set_now(now);
                    self.repair_in_time(now);
                    moved = true;
                }
                self.wake_readers();
                if cluster.now().saturating_since(self.now) > LEAP {
                    self.deliver_within_hosts();
                }
                if moved {
                    self.now = self.now.max(cluster.now());
                    self.trace.record(Event::Network { now_ns: self.now.as_nanos() });
                }
                moved
            }
        }
    }

    /// The cable of a host is cut, or repaired. Only where there are cables.
    pub(crate) fn cut_or_repair(&mut self) {
        let p = self.rng.below(self.processes.len());
        let Some(simulator) = &mut self.simulator else { return };
        let cut = self.cut.remove(&p).is_none();
        if cut {
            self.cut.insert(p, self.net.now());
        }
        simulator.set_cut(HostId(p as u32), cut);
        self.trace.record(Event::Cut { p, cut });
    }

    /// Where TCP crosses the network as well no cable is cut for longer than [`MAX_CUT`]: TCP must not give up, as the
    /// oracle's has not.
    fn repair_in_time(&mut self, now: Instant) {
        let Some(simulator) = self.simulator.as_mut().filter(|_| self.tcp.is_some()) else { return };
        for p in 0..self.processes.len() {
            if self.cut.get(&p).is_some_and(|since| *since + MAX_CUT < now) {
                self.cut.remove(&p);
                simulator.set_cut(HostId(p as u32), false);
                self.trace.record(Event::Cut { p, cut: false });
            }
        }
    }

    /// Bytes that TCP has brought wake their reader.
    fn wake_readers(&mut self) {
        while let Some((number, delivery)) = self.tcp.as_ref().and_then(ProgramTcp::take_arrival) {
            if let Some(c) = self.connections.iter().position(|k| k.carried == Some(number)) {
                self.announce(c, delivery);
            }
        }
    }

    /// Whether a connection is made: at once, where its TCP is no simulator's.
    pub(crate) fn is_connected(&self, c: usize) -> bool {
        let carried = self.tcp.as_ref().zip(self.connections[c].carried);
        carried.is_none_or(|(tcp, number)| tcp.is_connected(number))
    }

    /// Whether some cable is cut.
    pub(crate) fn is_cut(&self) -> bool {
        !self.cut.is_empty()
    }

    /// Describes the network's next event, and makes it happen.
    pub(crate) fn under_way(&mut self) -> Option<String> {
        let event = self.simulator.as_mut().and_then(|s| s.step());
        event.map(|at| format!("an event at {} ns", at.as_nanos())).or_else(|| self.net.under_way())
    }

    /// One delivery on the fabric. Whether there was one.
    fn fabric_step(&mut self, fabric: &Fabric) -> bool {
        let all = fabric.deliverable();
        if all.is_empty() {
            return false;
        }
        let delivery = all[self.rng.below(all.len())];
        if self.too_early(fabric, delivery) {
            return true;
        }
        fabric.deliver(delivery);
        if let Delivery::Connection { to: DeviceId(to), .. } = delivery {
            if let Some(Some(process)) = self.processes.get_mut(to as usize) {
                process.connection_event();
            }
        }
        self.trace.record(Event::Fabric(delivery));
        true
    }

    /// The peer has not had the event that it is connected, and so has posted no receives: on a device where that is fatal
    /// nearly every link would die at once, because the connection manager's interface leaves no way to post them before.
    /// Mostly the peer is given its turn instead.
    fn too_early(&mut self, fabric: &Fabric, delivery: Delivery) -> bool {
        let Delivery::Message { from } = delivery else { return false };
        let Some(to) = fabric.peer(from) else { return false };
        let p = to.device.0 as usize;
        if self.connected.contains(&to) {
            return false;
        }
        let Some(process) = self.processes.get(p).and_then(Option::as_ref) else { return false };
        if process.endpoint.links().iter().any(|l| l.qp == to.qp.0) {
            self.connected.insert(to);
            return false;
        }
        if self.rng.below(16) == 0 {
            return false;
        }
        let notice = |d: &&Delivery| matches!(d, Delivery::Connection { to: device, .. } if *device == to.device);
        if let Some(notice) = fabric.deliverable().iter().find(notice) {
            fabric.deliver(*notice);
        }
        self.helper_step(p);
        true
    }

    /// One delivery on a connection's wire. Whether there was one.
    pub(crate) fn wire_step(&mut self, c: usize) -> bool {
        let choice = self.rng.next_u64();
        let Connection { wire, carried, .. } = &self.connections[c];
        let delivery = match carried {
            // Mostly large pieces: single bytes are drawn as well, by the wire itself.
            None => wire.step(choice),
            Some(_) => {
                let resets = wire.deliverable().into_iter().find(|d| matches!(d, AnchorDelivery::Reset { .. }));
                resets.filter(|reset| wire.deliver(*reset))
            }
        };
        let Some(delivery) = delivery else { return false };
        self.announce(c, delivery);
        true
    }

    /// Deliveries that cross no network happen long before a simulator's TCP retransmits.
    fn deliver_within_hosts(&mut self) {
        for c in 0..self.connections.len() {
            while self.connections[c].carried.is_none() && self.wire_step(c) {}
        }
    }

    /// Something has come to an end of a connection.
    fn announce(&mut self, c: usize, delivery: AnchorDelivery) {
        let connection = &self.connections[c];
        let at = |end: AnchorEnd| &connection.sides[end as usize].descriptor;
        match delivery {
            AnchorDelivery::Bytes { to, .. } => {
                at(to).edge(IN);
                at(to.peer()).room();
            }
            AnchorDelivery::Fin { to } => at(to).edge(IN | RDHUP),
            AnchorDelivery::Reset { to } => at(to).edge(IN | OUT | RDHUP | HUP | ERR),
        }
        self.trace.record(Event::Wire { c, delivery });
    }
}
