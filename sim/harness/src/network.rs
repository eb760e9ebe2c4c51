//! The devices of a run and their network: in-memory ones whose deliveries the scheduler picks one by one, or modelled NICs
//! on a network with times and losses of its own.
//!
//! On modelled NICs the scheduler decides only *when* the next event of the network happens relative to the processes' steps.
//! The processes' clock never is behind the network's; its lead is the slowness of the network for them. A [`Simulator`] makes
//! the events happen: the plain network of `models/rnic`, or another simulator.

use std::sync::Arc;
use std::time::Duration;

use netacc_device::loopback::{Delivery, DeliveryMode, DeviceId, Fabric, Kill, LoopbackDevice, QueuePairEnd};
use netacc_device::middleware::SplitMix64;
use netacc_device::tables::{QueueDepths, Refusal};
use netacc_device::{CompletionQueueId, ConnectionManager, Device, Directory, Instant, QueuePairId};
use netacc_modelled::{Cluster, HostConfig, HostDevice, HostId, PlainSimulator, Simulator};
use netacc_rnic::network::{LinkConfig, SwitchConfig, Topology};
use netacc_rnic::{CommandTimes, Costs, NicConfig, RateConfig, Recovery};

use crate::plan::Plan;
use crate::Preset;

/// See the module documentation.
pub(crate) enum Net {
    Memory(Fabric),
    Nics(Cluster),
}

/// A process's device.
#[derive(Clone)]
pub(crate) enum Port {
    Memory(Arc<LoopbackDevice>),
    Nic(Arc<HostDevice>),
}

/// Hosts with modelled NICs, and the network that a simulator is to make for them.
#[derive(Clone, Debug)]
pub struct NetworkPlan {
    /// The hosts.
    pub hosts: Vec<HostConfig>,
    /// How their cables are alike.
    pub link: LinkConfig,
    /// The switch that all of them have a cable to.
    pub switch: SwitchConfig,
    /// Decides which packets the network loses, doubles and reorders.
    pub seed: u64,
}

impl NetworkPlan {
    pub(crate) fn draw(seed: u64, processes: usize) -> NetworkPlan {
        // Draws of its own, so that those of the plan stay the same for other presets.
        let rng = &mut SplitMix64::new(seed ^ 0x7c1e_55d0);
        let mut host = host(rng);
        let (link, switch) = topology(rng);
        let seed = rng.next_u64();
        host.nic.commands = commands(rng);
        NetworkPlan { hosts: vec![host; processes], link, switch, seed }
    }

    /// The same on the plain network.
    pub(crate) fn plain(&self, cluster: &Cluster) -> Box<dyn Simulator> {
        let topology = Topology::Star(self.link.clone(), self.switch.clone());
        Box::new(PlainSimulator::new(cluster, &topology, self.seed))
    }
}

impl Net {
    /// The devices of the plan, and the simulator that moves their packets. `None`: the scheduler itself does.
    pub(crate) fn new(seed: u64, plan: &Plan) -> (Net, Option<Box<dyn Simulator>>) {
        if plan.preset != Preset::Nic {
            return (Net::Memory(Fabric::new(DeliveryMode::Explicit)), None);
        }
        let network = NetworkPlan::draw(seed, plan.processes);
        let cluster = Cluster::driven(network.hosts.clone());
        let simulator = network.plain(&cluster);
        (Net::Nics(cluster), Some(simulator))
    }

    /// The device of process `number`.
    pub(crate) fn open(&self, plan: &Plan, number: usize) -> Port {
        match self {
            Net::Memory(fabric) => Port::Memory(fabric.open(plan.device())),
            Net::Nics(cluster) => Port::Nic(cluster.open(HostId(number as u32))),
        }
    }

    /// Kills the link of a queue pair; on NICs the network carries the end to the peer, and drops packets in flight by itself.
    pub(crate) fn kill(&self, port: &Port, qp: QueuePairId, torn_bytes: u32) -> bool {
        match (self, port) {
            (Net::Memory(fabric), Port::Memory(device)) => {
                let end = QueuePairEnd { device: device.id(), qp };
                fabric.kill(end, Kill { torn_bytes, ..Kill::default() })
            }
            (Net::Nics(cluster), Port::Nic(device)) => cluster.kill(device.host(), qp),
            _ => false,
        }
    }

    /// Silences the link of a queue pair: it carries nothing any more, and neither end gets an event.
    pub(crate) fn silence(&self, port: &Port, qp: QueuePairId) -> bool {
        match (self, port) {
            (Net::Memory(fabric), Port::Memory(device)) => fabric.silence(QueuePairEnd { device: device.id(), qp }),
            _ => false,
        }
    }

    pub(crate) fn crash(&self, port: &Port) {
        match (self, port) {
            (Net::Memory(fabric), Port::Memory(device)) => {
                fabric.crash(device.id());
                if device.capabilities().placement_is_delivery {
                    // Whoever sees the anchor's end finds it there: see `Stream::handle_last_end`.
                    deliver_placed(fabric, device.id());
                }
            }
            (Net::Nics(cluster), Port::Nic(device)) => cluster.crash(device.host()),
            _ => {}
        }
    }

    pub(crate) fn limit_queues(&self, port: &Port, depths: QueueDepths) {
        match (self, port) {
            (Net::Memory(fabric), Port::Memory(device)) => fabric.limit_queues(device.id(), depths),
            (Net::Nics(cluster), Port::Nic(device)) => cluster.limit_queues(device.host(), depths),
            _ => {}
        }
    }

    pub(crate) fn refuse_connects(&self, port: &Port, refusal: Option<Refusal>) {
        match (self, port) {
            (Net::Memory(fabric), Port::Memory(device)) => fabric.refuse_connects(device.id(), refusal),
            (Net::Nics(cluster), Port::Nic(device)) => cluster.refuse_connects(device.host(), refusal),
            _ => {}
        }
    }

    /// The first thing that is still to be delivered, for people. `None` where a simulator has the events.
    pub(crate) fn under_way(&self) -> Option<String> {
        match self {
            Net::Memory(fabric) => fabric.deliverable().first().map(|d: &Delivery| format!("{d:?}")),
            Net::Nics(_) => None,
        }
    }

    /// The network's time, where it has one.
    pub(crate) fn now(&self) -> Instant {
        match self {
            Net::Memory(_) => Instant::ZERO,
            Net::Nics(cluster) => cluster.now(),
        }
    }

    /// A hash over the deliveries of the network, where it has times.
    pub(crate) fn trace(&self) -> Option<u64> {
        match self {
            Net::Memory(_) => None,
            Net::Nics(cluster) => Some(cluster.trace().value()),
        }
    }
}

impl Port {
    pub(crate) fn device(&self) -> Arc<dyn Device> {
        match self {
            Port::Memory(device) => device.clone(),
            Port::Nic(device) => device.clone(),
        }
    }

    pub(crate) fn connection_manager(&self) -> Arc<dyn ConnectionManager> {
        match self {
            Port::Memory(device) => device.clone(),
            Port::Nic(device) => device.clone(),
        }
    }

    pub(crate) fn directory(&self) -> Arc<dyn Directory> {
        match self {
            Port::Memory(device) => device.clone(),
            Port::Nic(device) => device.clone(),
        }
    }

    pub(crate) fn channel_ready(&self, cq: CompletionQueueId) -> bool {
        match self {
            Port::Memory(device) => device.channel_ready(cq),
            Port::Nic(device) => device.channel_ready(cq),
        }
    }

    /// Whether the connection manager has an event that no other descriptor announces.
    pub(crate) fn has_events(&self) -> bool {
        match self {
            Port::Memory(_) => false,
            Port::Nic(device) => device.has_events(),
        }
    }
}

/// A NIC with times in the order of real ones. Retries are many and RNR is patient: only the run's own faults end links,
/// or its cut cables.
fn host(rng: &mut SplitMix64) -> HostConfig {
    let ns = Duration::from_nanos;
    let costs = Costs {
        doorbell: ns(rng.below(300) as u64),
        request_fetch: ns(rng.below(600) as u64),
        payload_fetch: ns(rng.below(600) as u64),
        transmit_packet: ns(rng.below(100) as u64),
        receive_packet: ns(rng.below(100) as u64),
        context_miss: ns(rng.below(1000) as u64),
        region_miss: ns(rng.below(1000) as u64),
        placement: ns(rng.below(600) as u64),
        completion: ns(rng.below(300) as u64),
        interrupt: ns([0, 5_000][rng.below(2)]),
    };
    HostConfig::roce(NicConfig {
        mtu_bytes: [256, 1024, 4096][rng.below(3)],
        recovery: [Recovery::GoBackN, Recovery::SelectiveRepeat][rng.below(2)],
        ack_interval: [1, 4, 16][rng.below(3)],
        retry_timeout: Duration::from_micros(500),
        rnr_pause: Duration::from_micros(20),
        rnr_retry: None,
        max_in_flight: [4, 64, 512][rng.below(3)],
        rate_control: [RateConfig::Unlimited, RateConfig::FixedWindow { bytes: 8192 }][rng.below(2)].clone(),
        context_cache: [0, 2][rng.below(2)],
        region_cache: [0, 2][rng.below(2)],
        costs,
        ..NicConfig::ideal(LINE_RATE_BPS)
    })
}

/// Delivers what a device that has crashed had placed.
fn deliver_placed(fabric: &Fabric, crashed: DeviceId) {
    let placed = |delivery: &Delivery| matches!(delivery, Delivery::Message { from } if from.device == crashed);
    while let Some(next) = fabric.deliverable().into_iter().find(placed) {
        fabric.deliver(next);
    }
}

/// Half of the devices make queue pairs and register memory at once.
fn commands(rng: &mut SplitMix64) -> CommandTimes {
    if rng.below(2) == 0 {
        return CommandTimes::default();
    }
    let mut up_to_us = |most: usize| Duration::from_nanos(rng.below(most * 1000) as u64);
    CommandTimes {
        create_queue_pair: up_to_us(500),
        connect_queue_pair: up_to_us(1_000),
        destroy_queue_pair: up_to_us(500),
        register_memory: up_to_us(100),
        register_per_mib: up_to_us(500),
        deregister_memory: up_to_us(100),
    }
}

fn topology(rng: &mut SplitMix64) -> (LinkConfig, SwitchConfig) {
    let mut link = LinkConfig::clean(LINE_RATE_BPS, Duration::from_nanos(rng.below(5000) as u64));
    // Half of the networks are good ones.
    if rng.below(2) == 0 {
        link.loss_ppm = [0, 1000, 50_000][rng.below(3)];
        link.duplicate_ppm = [0, 1000, 50_000][rng.below(3)];
        link.reorder_ppm = [0, 1000, 50_000][rng.below(3)];
        link.reorder_delay = Duration::from_micros(20);
    }
    (link, SwitchConfig { buffer_bytes: [20_000, 1_000_000][rng.below(2)], marking: None })
}

/// Rate of every port. Arbitrary.
const LINE_RATE_BPS: u64 = 25_000_000_000;
