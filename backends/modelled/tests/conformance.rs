//! The conformance suite on modelled NICs, with and without loss.

use std::sync::Arc;
use std::time::Duration;

use netacc_device::conformance::{run, Fixture, Side};
use netacc_device::{
    Armed, CmError, CmEvent, CompletionEvents, ConnectionManager, Device, Directory, Operation, Payload, QueuePairId,
    WorkRequest, WorkRequestId,
};
use netacc_modelled::{Cluster, HostConfig, HostDevice, HostId};
use netacc_rnic::network::{LinkConfig, Topology};
use netacc_rnic::{CommandTimes, Costs, NicConfig, Recovery};

const LINE: u64 = 25_000_000_000;

struct Hosts {
    cluster: Cluster,
    devices: [Arc<HostDevice>; 2],
}

impl Hosts {
    fn new(link: LinkConfig, config: &HostConfig, seed: u64) -> Hosts {
        let cluster = Cluster::new(&Topology::Direct(link), vec![config.clone(); 2], seed);
        Hosts { devices: [HostId(0), HostId(1)].map(|host| cluster.open(host)), cluster }
    }
}

impl Fixture for Hosts {
    fn device(&self, side: Side) -> Arc<dyn Device> {
        self.devices[side as usize].clone()
    }

    fn connection_manager(&self, side: Side) -> Option<Arc<dyn ConnectionManager>> {
        Some(self.devices[side as usize].clone())
    }

    fn directory(&self, side: Side) -> Option<Arc<dyn Directory>> {
        Some(self.devices[side as usize].clone())
    }

    fn progress(&mut self) {
        // More than one event, so that the patience is for messages rather than packets.
        for _ in 0..20 {
            self.cluster.step();
        }
    }

    fn patience(&self) -> usize {
        // The longest message is a thousand packets, and going back repeats hundreds for each that is lost.
        50_000
    }
}

fn nic(recovery: Recovery) -> NicConfig {
    let costs = Costs {
        doorbell: Duration::from_nanos(100),
        request_fetch: Duration::from_nanos(300),
        payload_fetch: Duration::from_nanos(300),
        transmit_packet: Duration::from_nanos(50),
        receive_packet: Duration::from_nanos(50),
        placement: Duration::from_nanos(300),
        completion: Duration::from_nanos(200),
        interrupt: Duration::from_micros(2),
        ..Costs::default()
    };
    NicConfig {
        recovery,
        costs,
        mtu_bytes: 1024,
        rnr_retry: None,
        retry_timeout: Duration::from_micros(200),
        ..NicConfig::ideal(LINE)
    }
}

fn passes(link: &LinkConfig, config: &HostConfig, seed: u64) {
    let report = run(&mut Hosts::new(link.clone(), config, seed));
    assert!(report.is_success(), "{} seed {seed}, {link:?}:\n{report}", config.name);
}

// Breaks if a device on a modelled NIC breaks a guarantee of the traits.
#[test]
fn modelled_devices_conform() {
    let link = LinkConfig::clean(LINE, Duration::from_micros(1));
    for config in [HostConfig::roce(nic(Recovery::GoBackN)), HostConfig::erdma_proxy(nic(Recovery::GoBackN))] {
        passes(&link, &config, 0);
    }
}

// Breaks if a device whose commands take their time breaks a guarantee that others keep.
#[test]
fn devices_that_take_their_time_conform() {
    let us = Duration::from_micros;
    let commands = CommandTimes {
        create_queue_pair: us(200),
        connect_queue_pair: us(600),
        destroy_queue_pair: us(100),
        register_memory: us(50),
        register_per_mib: us(200),
        deregister_memory: us(30),
    };
    let nic = NicConfig { commands, ..nic(Recovery::GoBackN) };
    let link = LinkConfig::clean(LINE, us(1));
    for config in [HostConfig::roce(nic.clone()), HostConfig::erdma_proxy(nic)] {
        passes(&link, &config, 0);
    }
}

// Breaks if a lossy, doubling, reordering network has a visible effect through the NIC.
#[test]
fn they_conform_on_a_bad_network() {
    for recovery in [Recovery::GoBackN, Recovery::SelectiveRepeat] {
        for seed in 0..10 {
            let link = LinkConfig {
                loss_ppm: 20_000,
                duplicate_ppm: 20_000,
                reorder_ppm: 20_000,
                reorder_delay: Duration::from_micros(5),
                ..LinkConfig::clean(LINE, Duration::from_micros(1))
            };
            passes(&link, &HostConfig::roce(nic(recovery)), seed);
        }
    }
}

// Breaks if a connector of a host that cannot be reached waits for ever.
#[test]
fn a_cut_cable_is_unreachable() {
    let link = LinkConfig::clean(LINE, Duration::from_micros(1));
    let hosts = Hosts::new(link, &HostConfig::roce(nic(Recovery::GoBackN)), 0);
    let [a, b] = &hosts.devices;
    let cq = a.create_cq().expect("a new device has queues");
    hosts.cluster.set_cut(b.host(), true);
    a.connect(b.address(), cq, 64, &[]).expect("there is room");
    while hosts.cluster.step() {}
    let event = a.poll_event();
    assert!(matches!(event, Some(CmEvent::Failed { error: CmError::Unreachable, .. })), "{event:?}");
    assert_eq!(hosts.cluster.holdings(a.host()), (0, 0));
}

// Breaks if a sleeper is interrupted when a completion is visible, rather than when the interrupt has reached it.
#[test]
fn interrupts_come_later_than_completions() {
    let link = LinkConfig::clean(LINE, Duration::from_micros(1));
    let mut hosts = Hosts::new(link, &HostConfig::roce(nic(Recovery::GoBackN)), 0);
    let cqs = [0, 1].map(|n| hosts.devices[n].create_cq().expect("a new device has queues"));
    let [near, far] = hosts.connect(cqs, 64).expect("they can be connected");
    while hosts.cluster.step() {}
    let [a, b] = hosts.devices.clone();
    b.post_recv(far.qp, 1).expect("there is room");
    assert_eq!(b.arm(cqs[1]), Armed::Sleep);
    let operation = Operation::Write { rkey: near.remote.rkey, offset: near.remote.base, imm: Some(1) };
    let wr = WorkRequest { id: WorkRequestId(1), operation, payload: Payload::Inline(b"12345678"), signaled: true };
    assert_eq!(a.post_send(near.qp, &[wr]), Ok(1));
    let (mut completed, mut interrupted) = (None, None);
    while interrupted.is_none() && hosts.cluster.step() {
        let mut out = [QueuePairId(0)];
        if b.pending(cqs[1], &mut out) == 1 {
            completed = Some(hosts.cluster.now());
        }
        interrupted = b.channel_ready(cqs[1]).then(|| hosts.cluster.now());
    }
    let late = interrupted.zip(completed).map(|(interrupt, completion)| interrupt - completion);
    assert_eq!(late, Some(Duration::from_micros(2)));
}
