//! Programs of datagram calls: two processes that carry out the orders of `tests/properties`, each with a device and a library.
//!
//! A program's calls are those of `tests/properties/datagram_host.py`, and have the same answers ([`orders`]). The sockets and the
//! kernel below them are models; both processes are at the loopback's addresses, as on the machine whose kernel is the oracle. Between
//! the calls the scheduler delivers, turns helper threads, lets time pass, and with faults it kills links and loses datagrams of the
//! kernel. UDP permits only that: a datagram that the run lost, or that a simulator's network doubled, is reported by
//! [`DatagramProgram::finish`], and each other one arrives once, from its source, unchanged.

mod orders;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use netacc_device::middleware::SplitMix64;
use netacc_device::{Instant, QueuePairId};
use netacc_modelled::{Cluster, Simulator};
use serde_json::{json, Value};

use self::orders::ProgramSocket;
use super::host::{Host, Received, Wired};
use super::udp::ProgramUdp;
use crate::network::{Net, NetworkPlan};
use crate::plan::Plan;
use crate::{Broken, Check, Options, Preset, What};

/// Processes of a program.
const HOSTS: usize = 2;

/// Turns for which a call waits for a datagram that is under way. Arbitrary, far above the need.
const PATIENCE: u32 = 4000;

/// The same where faults may have lost it. If it comes later, a later call has it.
const PATIENCE_WITH_FAULTS: u32 = 400;

/// Events of a network of modelled NICs in a turn. Arbitrary.
const EVENTS: u32 = 16;

/// A network without faults drops nothing, however much a program sends at once.
const AMPLE_BYTES: u64 = 16 << 20;

/// The port of the first socket.
const FIRST_PORT: u16 = 20_000;

/// A datagram that a program has sent.
struct Sent {
    datagram: Wired,
    received: bool,
}

/// The fate of the datagrams from one address to another one.
#[derive(Default)]
struct Fate {
    sent: Vec<Sent>,
    /// The kernels' network has dropped so many.
    dropped: u64,
}

/// See the module documentation.
pub struct DatagramProgram {
    rng: SplitMix64,
    now: Instant,
    net: Net,
    simulator: Option<Box<dyn Simulator>>,
    udp: Option<ProgramUdp>,
    hosts: Vec<Host>,
    /// By the process, and the name of the socket.
    sockets: BTreeMap<(usize, String), ProgramSocket>,
    fates: BTreeMap<(SocketAddr, SocketAddr), Fate>,
    doubled: Vec<Wired>,
    /// The kernels' network, in order.
    wired: VecDeque<Wired>,
    /// Of 1000 turns, those in which a link dies. 0: no fault at all.
    faults: u32,
    /// Of 1000 datagrams, those that the kernels' network loses.
    losses: u16,
    by_link: u64,
    next_port: u16,
}

/// A program that waits for a simulator to make its network.
pub struct DrivenDatagrams {
    /// The description of the network.
    pub network: NetworkPlan,
    /// The hosts, for the simulator to drive.
    pub cluster: Cluster,
    /// The kernels' datagrams, which the simulator carries.
    pub udp: ProgramUdp,
    plan: Plan,
    seed: u64,
    faults: u32,
}

impl DrivenDatagrams {
    /// Draws all that the seed decides before the run begins.
    pub fn new(seed: u64, fault_per_mille: u32) -> DrivenDatagrams {
        let plan = plan(seed, Some(Preset::Nic));
        let network = network(seed, fault_per_mille);
        let cluster = Cluster::driven(network.hosts.clone());
        DrivenDatagrams { network, cluster, udp: ProgramUdp::default(), plan, seed, faults: fault_per_mille }
    }

    /// Begins the run, between the simulator's events.
    ///
    /// # Errors
    /// The devices have no queues.
    pub fn start(self, simulator: Box<dyn Simulator>) -> Check<DatagramProgram> {
        let DrivenDatagrams { cluster, udp, plan, seed, faults, .. } = self;
        DatagramProgram::on(seed, faults, &plan, Net::Nics(cluster), (Some(simulator), Some(udp)))
    }
}

fn plan(seed: u64, preset: Option<Preset>) -> Plan {
    let drawn = [Preset::Erdma, Preset::Rxe, Preset::Silent][SplitMix64::new(seed ^ 0xda7a_0001).below(3)];
    let mut plan = Plan::draw(seed, &Options { preset: Some(preset.unwrap_or(drawn)), ..Options::default() });
    plan.processes = HOSTS;
    plan
}

/// As for programs of streams. Where there are to be no faults, the network drops, doubles and reorders nothing.
fn network(seed: u64, faults: u32) -> NetworkPlan {
    let mut network = NetworkPlan::draw(seed, HOSTS);
    if faults == 0 {
        (network.link.loss_ppm, network.link.duplicate_ppm, network.link.reorder_ppm) = (0, 0, 0);
        network.switch.buffer_bytes = AMPLE_BYTES;
    }
    network
}

impl DatagramProgram {
    /// On in-memory devices, or on modelled NICs with [`Preset::Nic`].
    ///
    /// # Errors
    /// The devices have no queues.
    pub fn new(seed: u64, preset: Option<Preset>, fault_per_mille: u32) -> Check<DatagramProgram> {
        let plan = plan(seed, preset);
        if plan.preset != Preset::Nic {
            let (net, simulator) = Net::new(seed, &plan);
            return DatagramProgram::on(seed, fault_per_mille, &plan, net, (simulator, None));
        }
        let network = network(seed, fault_per_mille);
        let cluster = Cluster::driven(network.hosts.clone());
        let simulator = network.plain(&cluster);
        DatagramProgram::on(seed, fault_per_mille, &plan, Net::Nics(cluster), (Some(simulator), None))
    }

    fn on(
        seed: u64,
        faults: u32,
        plan: &Plan,
        net: Net,
        (simulator, udp): (Option<Box<dyn Simulator>>, Option<ProgramUdp>),
    ) -> Check<DatagramProgram> {
        let mut rng = SplitMix64::new(seed ^ 0xda7a_0002);
        let hosts = (0..HOSTS).map(|number| Host::open(&net, plan, rng.next_u64(), number, usize::MAX));
        let hosts = hosts.collect::<Check<_>>()?;
        let losses = if faults == 0 { 0 } else { [0, 20, 200][rng.below(3)] };
        Ok(DatagramProgram {
            rng,
            now: Instant::from_nanos(1_000_000_000),
            net,
            simulator,
            udp,
            hosts,
            sockets: BTreeMap::new(),
            fates: BTreeMap::new(),
            doubled: Vec::new(),
            wired: VecDeque::new(),
            faults,
            losses,
            by_link: 0,
            next_port: FIRST_PORT,
        })
    }

    /// A program sends a datagram.
    fn send(&mut self, process: usize, socket: usize, datagram: Wired) -> Check {
        let (from, to) = (datagram.from, datagram.to);
        let Some(receiver) = self.process_at(to) else { return Ok(()) };
        let fate = self.fates.entry((from, to)).or_default();
        fate.sent.push(Sent { datagram: datagram.clone(), received: false });
        // Flows are between processes.
        let peer = (receiver != process).then(|| self.hosts[receiver].endpoint.cm().address());
        self.hosts[process].send(socket, datagram, peer);
        self.collect();
        self.check()
    }

    /// The process that receives at an address.
    fn process_at(&self, to: SocketAddr) -> Option<usize> {
        let receives = |host: &Host| host.proof_port == to.port() || host.sockets.iter().any(|socket| socket.takes(to));
        self.hosts.iter().position(receives)
    }

    /// Takes what the kernels are to send, and what a simulator has brought.
    fn collect(&mut self) {
        for host in 0..HOSTS {
            for datagram in std::mem::take(&mut self.hosts[host].outgoing) {
                let Some(to) = self.process_at(datagram.to) else { continue };
                match &self.udp {
                    Some(udp) if to != host => udp.send(host, to, datagram),
                    _ if self.rng.chance(self.losses) => self.drop(&datagram),
                    _ => self.wired.push_back(datagram),
                }
            }
        }
        while let Some(datagram) = self.udp.as_ref().and_then(ProgramUdp::take_arrival) {
            self.arrive(datagram);
        }
    }

    fn drop(&mut self, datagram: &Wired) {
        // Proofs have none.
        if let Some(fate) = self.fates.get_mut(&(datagram.from, datagram.to)) {
            fate.dropped += 1;
        }
    }

    fn arrive(&mut self, datagram: Wired) {
        if let Some(process) = self.process_at(datagram.to) {
            self.hosts[process].arrive(datagram);
        }
    }

    /// One turn of the world.
    fn turn(&mut self) -> Check {
        if self.faults > 0 && self.rng.below(1000) < self.faults as usize {
            self.kill();
        }
        match self.rng.below(10) {
            0..=4 => self.net_step(),
            5..=6 => {
                if let Some(datagram) = self.wired.pop_front() {
                    self.arrive(datagram);
                }
            }
            7..=8 => {
                let host = self.rng.below(HOSTS);
                self.hosts[host].help(self.now);
            }
            _ => self.now = self.now + Duration::from_micros(1 + self.rng.below(200) as u64),
        }
        self.collect();
        self.check()
    }

    fn net_step(&mut self) {
        match &self.net {
            Net::Memory(fabric) => {
                let all = fabric.deliverable();
                if !all.is_empty() {
                    let fabric = fabric.clone();
                    fabric.deliver(all[self.rng.below(all.len())]);
                    // A peer that does not know yet that it is connected has posted no receives.
                    self.hosts.iter_mut().for_each(|host| host.help(self.now));
                }
            }
            Net::Nics(cluster) => {
                for _ in 0..EVENTS {
                    let Some(at) = self.simulator.as_mut().and_then(|simulator| simulator.step()) else { break };
                    cluster.set_now(at);
                    self.now = self.now.max(at);
                }
            }
        }
    }

    fn kill(&mut self) {
        let host = self.rng.below(HOSTS);
        let links = self.hosts[host].endpoint.links();
        if let Some(link) = links.get(self.rng.below(links.len().max(1))) {
            let torn_bytes = [0, 0, 8, 100][self.rng.below(4)];
            self.net.kill(&self.hosts[host].port, QueuePairId(link.qp), torn_bytes);
        }
    }

    fn check(&self) -> Check {
        for (number, host) in self.hosts.iter().enumerate() {
            if host.endpoint.counters().snapshot()["violations"] > 0 {
                return Err(Broken::new(What::Violation, format!("process {number} accuses a peer")));
            }
            let sleeps_on = |at: &usize| host.sockets[*at].asleep && host.waiting(*at).1;
            if let Some(at) = (0..host.sockets.len()).find(sleeps_on) {
                return Err(Broken::new(What::Stuck, format!("socket {at} of process {number} sleeps on a datagram")));
            }
        }
        Ok(())
    }

    /// A datagram that a program receives is one that was sent to it, and not received before.
    fn account(&mut self, received: &Received) -> Check {
        let Received { datagram, by_link } = received;
        self.by_link += u64::from(*by_link);
        let wrong = |what: &str| Err(Broken::new(What::WrongByte, format!("{what}: {received:?}")));
        let Some(fate) = self.fates.get_mut(&(datagram.from, datagram.to)) else { return wrong("nobody sent it") };
        let mut alike = fate.sent.iter_mut().filter(|sent| sent.datagram == *datagram).peekable();
        if alike.peek().is_none() {
            return wrong("another datagram was sent");
        }
        match alike.find(|sent| !sent.received) {
            Some(sent) => sent.received = true,
            None if self.udp.as_ref().is_some_and(ProgramUdp::has_doubled) => self.doubled.push(datagram.clone()),
            None => return wrong("it was received before"),
        }
        Ok(())
    }

    /// Whether a datagram to this socket may still come.
    fn is_due(&self, process: usize, socket: usize) -> bool {
        let socket = &self.hosts[process].sockets[socket];
        let to_it = self.fates.iter().filter(|((_, to), _)| socket.takes(*to));
        to_it.map(|(_, fate)| fate).any(|fate| {
            let missing = fate.sent.iter().filter(|sent| !sent.received).count() as u64;
            missing > fate.dropped
        })
    }

    /// Closes all sockets, which the program has drained. The answer has the datagrams that the run has `lost` and `doubled`, each as the ports of its source and of its
    /// destination and its bytes, and the number of those that came `by_link`.
    ///
    /// # Errors
    /// A datagram is missing for no reason, or a slot of a link is still in use.
    fn finish(&mut self) -> Check<Value> {
        let faults = std::mem::take(&mut self.faults);
        let mut by_links = BTreeMap::<_, u64>::new();
        for flow in self.hosts.iter().flat_map(|host| &host.opened) {
            *by_links.entry((flow.addresses.local, flow.addresses.remote)).or_default() += flow.counts().lost;
        }
        let shown = |datagram: &Wired| json!([datagram.from.port(), datagram.to.port(), hex(&datagram.bytes)]);
        let mut lost = Vec::new();
        for (addresses, fate) in &self.fates {
            let missing: Vec<_> = fate.sent.iter().filter(|sent| !sent.received).collect();
            let on_links = by_links.get(addresses).copied().unwrap_or(0);
            if on_links > 0 && faults == 0 {
                return Err(Broken::new(What::Stuck, format!("{on_links} datagrams are lost with no link")));
            }
            let on_network = self.udp.as_ref().map_or(0, |udp| udp.lost(addresses.0, addresses.1));
            if missing.len() as u64 > fate.dropped + on_links + on_network {
                return Err(Broken::new(What::Stuck, format!("{} of {addresses:?} never came", missing.len())));
            }
            lost.extend(missing.iter().map(|sent| shown(&sent.datagram)));
        }
        let doubled: Vec<_> = self.doubled.iter().map(shown).collect();
        self.hosts.iter_mut().for_each(Host::close);
        for _ in 0..PATIENCE {
            if self.used_link().is_none() {
                break;
            }
            self.turn()?;
        }
        match self.used_link() {
            Some(link) => Err(Broken::new(What::Leak, link)),
            None => Ok(json!({ "lost": lost, "doubled": doubled, "by_link": self.by_link })),
        }
    }

    /// A link whose slots are in use, in words.
    fn used_link(&self) -> Option<String> {
        let mut links = self.hosts.iter().flat_map(|host| host.endpoint.links());
        links.find(|link| link.streams > 0).map(|link| format!("{link:?}"))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
