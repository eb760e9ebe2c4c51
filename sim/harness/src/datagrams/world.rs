//! The world of one run: hosts, devices, the kernels' network, and what became of each datagram.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use netacc_device::loopback::{Delivery, DeviceId, Fabric, QueuePairEnd};
use netacc_device::middleware::SplitMix64;
use netacc_device::{Instant, QueuePairId};
use netacc_modelled::Simulator;

use super::host::{address, Bound, Host, Received, Wired};
use super::DatagramSummary;
use crate::network::Net;
use crate::plan::Plan;
use crate::{Broken, Check, Preset, What};

/// Rounds of the drain before it is given up. Arbitrary, far above the need.
const ROUNDS: u32 = 20_000;

/// Datagrams that a socket of the kernel holds. Arbitrary: few, so that some are dropped.
const KERNEL_ROOM: usize = 24;

/// Events of a network of modelled NICs at a time. Arbitrary.
const EVENTS: u32 = 16;

/// Faults of a run, of 1000.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    /// Datagrams that the kernels' network loses.
    lose: u16,
    /// It delivers in any order, and late. Otherwise it delivers at once.
    reorders: bool,
    /// Steps in which a link dies.
    kill: u16,
    /// Flows that end right after a send.
    end: u16,
    /// Bytes of the longest datagram.
    longest: usize,
    pub(super) hosts: usize,
}

impl Rates {
    pub(super) fn draw(rng: &mut SplitMix64, preset: Preset) -> Rates {
        let lose = [0, 0, 20, 300][rng.below(4)];
        // The times of modelled NICs are their own: a record may have to wait for longer than its patience there.
        let reorders = rng.below(2) == 0 || preset == Preset::Nic;
        let kill = [0, 0, 5][rng.below(3)];
        let end = [0, 0, 100][rng.below(3)];
        Rates { lose, reorders, kill, end, longest: [40, 600, 3000][rng.below(3)], hosts: 2 + rng.below(2) }
    }

    fn is_in_order(self) -> bool {
        // A flow that ends hands the datagrams in its ring over at once, before those that the kernel still carries.
        self.lose == 0 && !self.reorders && self.kill == 0 && self.end == 0
    }
}

/// A datagram that was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    from: SocketAddr,
    to: SocketAddr,
    len: usize,
    received: bool,
    dropped: bool,
    by_link: bool,
}

/// See the module documentation.
pub(super) struct World {
    rates: Rates,
    in_order: bool,
    /// No link dies.
    spares_links: bool,
    rng: SplitMix64,
    now: Instant,
    net: Net,
    simulator: Option<Box<dyn Simulator>>,
    hosts: Vec<Host>,
    wired: Vec<Wired>,
    sent: Vec<Sent>,
    summary: DatagramSummary,
    connected: BTreeSet<QueuePairEnd>,
    steps: u64,
}

impl World {
    pub(super) fn new(
        plan: &Plan,
        rates: Rates,
        net: Net,
        simulator: Option<Box<dyn Simulator>>,
        seed: u64,
    ) -> Check<World> {
        let mut rng = SplitMix64::new(seed);
        let mut hosts = Vec::new();
        for number in 0..rates.hosts {
            let accelerated = [true, rng.below(4) != 0];
            let mut host = Host::open(&net, plan, rng.next_u64(), number, KERNEL_ROOM)?;
            for (socket, accelerated) in accelerated.into_iter().enumerate() {
                host.add_socket(address(number, socket), Bound::One, accelerated);
            }
            hosts.push(host);
        }
        Ok(World {
            rates,
            in_order: rates.is_in_order(),
            spares_links: rates.kill == 0,
            rng,
            now: Instant::from_nanos(1_000_000_000),
            net,
            simulator,
            hosts,
            wired: Vec::new(),
            sent: Vec::new(),
            summary: DatagramSummary::default(),
            connected: BTreeSet::new(),
            steps: 0,
        })
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    pub(super) fn summary(&self) -> DatagramSummary {
        self.summary
    }

    fn socket(&mut self) -> (usize, usize) {
        let host = self.rng.below(self.hosts.len());
        (host, self.rng.below(self.hosts[host].sockets.len()))
    }

    /// One random action.
    pub(super) fn step(&mut self) -> Check {
        self.steps += 1;
        if self.rng.chance(self.rates.kill) {
            self.kill();
        }
        match self.rng.below(20) {
            0..=1 => self.send(),
            2..=6 => {
                let (host, socket) = self.socket();
                for _ in 0..1 + self.rng.below(8) {
                    self.receive(host, socket)?;
                }
            }
            7 if self.rng.below(4) == 0 => {
                let (host, socket) = self.socket();
                self.hosts[host].sleep(socket);
            }
            8..=10 => {
                let host = self.rng.below(self.hosts.len());
                self.hosts[host].help(self.now);
            }
            11 => {
                let most = if self.in_order { 1 } else { 3_000 };
                self.now = self.now + Duration::from_micros(1 + self.rng.below(most) as u64);
            }
            12..=14 => drop(self.wire_step()),
            _ => {
                for _ in 0..1 + self.rng.below(8) {
                    self.net_step();
                }
            }
        }
        self.collect();
        self.check()
    }

    fn send(&mut self) {
        let (host, socket) = self.socket();
        // Most datagrams go to one partner, so that there are flows.
        let (other, at) = match self.rng.below(4) {
            0 => self.socket(),
            _ => ((host + 1) % self.hosts.len(), socket),
        };
        if other == host {
            return;
        }
        let from = self.hosts[host].sockets[socket].address;
        let target = &self.hosts[other].sockets[at];
        let to = target.address;
        let peer = target.accelerated.then(|| self.hosts[other].endpoint.cm().address());
        for _ in 0..1 + self.rng.below(4) {
            let (id, len) = (self.sent.len() as u64, 8 + self.rng.below(self.rates.longest));
            let by_link = self.hosts[host].send(socket, Wired::plain(from, to, pattern(id, len)), peer);
            self.sent.push(Sent { from, to, len, received: false, dropped: false, by_link });
            self.summary.sent += 1;
            self.collect();
        }
        if self.rng.chance(self.rates.end) {
            self.hosts[host].end_flow(socket, to);
        }
    }

    /// Takes what the kernels are to send, and marks what their sockets have dropped.
    fn collect(&mut self) {
        for host in 0..self.hosts.len() {
            let outgoing = std::mem::take(&mut self.hosts[host].outgoing);
            for datagram in outgoing {
                if self.rng.chance(self.rates.lose) {
                    self.mark_dropped(&datagram);
                } else if self.rates.reorders {
                    self.wired.push(datagram);
                } else {
                    self.arrive(datagram);
                }
            }
            for datagram in std::mem::take(&mut self.hosts[host].dropped) {
                self.mark_dropped(&datagram);
            }
        }
    }

    fn mark_dropped(&mut self, datagram: &Wired) {
        // Proofs have no number.
        let number = datagram.bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes) as usize);
        if let Some(sent) = number.and_then(|number| self.sent.get_mut(number)) {
            sent.dropped = true;
            self.summary.dropped += 1;
        }
    }

    fn arrive(&mut self, datagram: Wired) {
        let to = datagram.to.ip();
        if let Some(host) = self.hosts.iter_mut().find(|host| host.sockets.iter().any(|s| s.address.ip() == to)) {
            host.arrive(datagram);
        }
    }

    /// One delivery on the kernels' network. Whether there was one.
    fn wire_step(&mut self) -> bool {
        if self.wired.is_empty() {
            return false;
        }
        let datagram = self.wired.swap_remove(self.rng.below(self.wired.len()));
        self.arrive(datagram);
        true
    }

    /// One delivery between devices. Whether there was one.
    fn net_step(&mut self) -> bool {
        match &self.net {
            Net::Memory(fabric) => {
                let fabric = fabric.clone();
                self.fabric_step(&fabric)
            }
            Net::Nics(cluster) => {
                // A message is many events where a delivery is one.
                for _ in 0..EVENTS {
                    let Some(at) = self.simulator.as_mut().and_then(|simulator| simulator.step()) else { break };
                    cluster.set_now(at);
                    self.now = self.now.max(at);
                }
                // There is always one more event: timers of NICs.
                false
            }
        }
    }

    fn fabric_step(&mut self, fabric: &Fabric) -> bool {
        let all = fabric.deliverable();
        if all.is_empty() {
            return false;
        }
        let delivery = all[self.rng.below(all.len())];
        // A peer that has not had the event that it is connected has posted no receives: it has its turn first.
        if let Some(to) = self.unconnected(fabric, delivery) {
            let notice = |d: &&Delivery| matches!(d, Delivery::Connection { to: device, .. } if *device == to);
            if let Some(notice) = all.iter().find(notice) {
                fabric.deliver(*notice);
            }
            self.hosts[to.0 as usize].help(self.now);
            return true;
        }
        fabric.deliver(delivery);
        true
    }

    fn unconnected(&mut self, fabric: &Fabric, delivery: Delivery) -> Option<DeviceId> {
        let Delivery::Message { from } = delivery else { return None };
        let to = fabric.peer(from)?;
        if self.connected.contains(&to) {
            return None;
        }
        let links = self.hosts[to.device.0 as usize].endpoint.links();
        if links.iter().any(|link| link.qp == to.qp.0) {
            self.connected.insert(to);
            return None;
        }
        Some(to.device)
    }

    fn kill(&mut self) {
        let host = self.rng.below(self.hosts.len());
        let links = self.hosts[host].endpoint.links();
        if let Some(link) = links.get(self.rng.below(links.len().max(1))) {
            let torn_bytes = [0, 0, 8, 100][self.rng.below(4)];
            self.net.kill(&self.hosts[host].port, QueuePairId(link.qp), torn_bytes);
        }
    }

    /// A program receives. Whether there was a datagram.
    fn receive(&mut self, host: usize, socket: usize) -> Check<bool> {
        let Some(received) = self.hosts[host].receive(socket, self.now) else { return Ok(false) };
        let to = self.hosts[host].sockets[socket].address;
        let Received { datagram: Wired { from, bytes, .. }, by_link } = &received;
        let wrong = |what: &str| Broken::new(What::WrongByte, format!("{what}: {received:?} at {to}"));
        let id =
            bytes.first_chunk().map(|id| u64::from_le_bytes(*id)).ok_or_else(|| wrong("a datagram nobody sent"))?;
        let sent = self.sent.get(id as usize).copied().ok_or_else(|| wrong("a datagram nobody sent"))?;
        if (sent.from, sent.to, sent.len) != (*from, to, bytes.len()) || pattern(id, sent.len) != *bytes {
            return Err(wrong("another datagram was sent"));
        }
        if sent.received || sent.dropped {
            return Err(wrong("it was received, or dropped, before"));
        }
        if *by_link && self.in_order {
            self.check_order(id as usize, sent)?;
        }
        self.sent[id as usize].received = true;
        match by_link {
            true => self.summary.by_link += 1,
            false => self.summary.by_kernel += 1,
        }
        Ok(true)
    }

    /// A datagram that came by a link comes after those of its flow that were sent before it.
    fn check_order(&self, id: usize, sent: Sent) -> Check {
        let earlier =
            |other: &&Sent| (other.from, other.to) == (sent.from, sent.to) && !other.received && !other.dropped;
        match self.sent[..id].iter().find(earlier) {
            // One that came back may be overtaken.
            Some(overtaken) if !overtaken.by_link => {
                Err(Broken::new(What::WrongByte, format!("datagram {id} overtakes {overtaken:?}")))
            }
            _ => Ok(()),
        }
    }

    fn check(&self) -> Check {
        for (number, host) in self.hosts.iter().enumerate() {
            for socket in 0..host.sockets.len() {
                if host.sockets[socket].asleep && host.waiting(socket).1 {
                    return Err(Broken::new(
                        What::Stuck,
                        format!("socket {socket} of host {number} sleeps on a datagram"),
                    ));
                }
            }
            let violations = host.endpoint.counters().snapshot()["violations"];
            if violations > 0 {
                return Err(Broken::new(What::Violation, format!("host {number} accuses a peer")));
            }
            if host.endpoint.counters().snapshot()["links_out_of_turn"] > 0 {
                return Err(Broken::new(
                    What::OutOfTurn,
                    format!("host {number} has lost a message, or got one twice"),
                ));
            }
        }
        Ok(())
    }

    /// Without faults, until nothing happens any more.
    pub(super) fn drain(&mut self) -> Check {
        self.rates = Rates { lose: 0, kill: 0, ..self.rates };
        let mut quiet = 0;
        for _ in 0..ROUNDS {
            self.steps += 1;
            let mut busy = self.net_step() | self.wire_step();
            for host in 0..self.hosts.len() {
                self.hosts[host].help(self.now);
                for socket in 0..self.hosts[host].sockets.len() {
                    busy |= self.receive(host, socket)?;
                    self.hosts[host].sleep(socket);
                    busy |= self.hosts[host].waiting(socket) != (false, false);
                }
            }
            self.collect();
            self.check()?;
            if !self.in_order {
                self.now = self.now + Duration::from_micros(500);
            }
            quiet = if busy { 0 } else { quiet + 1 };
            // Retries of messages that found a queue full, and proofs, take some rounds.
            if quiet > 200 {
                return self.finish();
            }
        }
        Err(Broken::new(What::Restless, "it does not become quiet"))
    }

    fn finish(&mut self) -> Check {
        let mut lost = BTreeMap::<_, u64>::new();
        for flow in self.hosts.iter().flat_map(|host| &host.opened) {
            let counts = flow.counts();
            self.summary.returned += counts.returned;
            self.summary.lost += counts.lost;
            self.summary.flows += u64::from(counts.link > 0);
            *lost.entry((flow.addresses.local, flow.addresses.remote)).or_default() += counts.lost;
        }
        if self.spares_links && self.summary.lost > 0 {
            return Err(Broken::new(What::Stuck, format!("{} datagrams are lost with no link", self.summary.lost)));
        }
        let mut missing = BTreeMap::<_, u64>::new();
        for (id, sent) in self.sent.iter().enumerate().filter(|(_, sent)| !sent.received && !sent.dropped) {
            let count = missing.entry((sent.from, sent.to)).or_default();
            *count += 1;
            if *count > lost.get(&(sent.from, sent.to)).copied().unwrap_or(0) {
                return Err(Broken::new(What::Stuck, format!("datagram {id} never came: {sent:?}")));
            }
        }
        self.close()
    }

    /// All sockets are closed: no slot is in use any more.
    fn close(&mut self) -> Check {
        self.hosts.iter_mut().for_each(Host::close);
        for _ in 0..500 {
            self.net_step();
            self.hosts.iter_mut().for_each(|host| host.help(self.now));
            self.now = self.now + Duration::from_micros(500);
        }
        let left = self.hosts.iter().flat_map(|host| host.endpoint.links()).find(|link| link.streams > 0);
        left.map_or(Ok(()), |link| Err(Broken::new(What::Leak, format!("{link:?}"))))
    }
}

/// The bytes of a datagram: its number, and bytes that follow from it.
fn pattern(id: u64, len: usize) -> Vec<u8> {
    let rest = (8..len).map(|at| (id as usize).wrapping_mul(31).wrapping_add(at) as u8);
    id.to_le_bytes().into_iter().chain(rest).collect()
}
