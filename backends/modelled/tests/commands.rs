//! Making queue pairs and registering memory take their time on the device's command queue, and one waits for the
//! other.

use std::sync::Arc;
use std::time::Duration;

use netacc_device::{
    CmError, CmEvent, Completion, CompletionStatus, ConnectionManager, Device, Instant, Operation, Payload,
    QueuePairId, WorkCompletion, WorkRequest, WorkRequestId,
};
use netacc_modelled::{Cluster, HostConfig, HostDevice, HostId};
use netacc_rnic::network::{LinkConfig, Topology};
use netacc_rnic::{CommandTimes, NicConfig};

/// Bits per second: a byte takes a nanosecond.
const LINE: u64 = 8_000_000_000;
const DELAY_NS: u64 = 1_000;
/// A datagram of the connection manager, on the wire.
const DATAGRAM_NS: u64 = 82 + 8 + 256;
const REGION: usize = 1 << 16;

/// Times that can be recognised in any sum of a few of them.
fn times() -> CommandTimes {
    let us = Duration::from_micros;
    CommandTimes {
        create_queue_pair: us(100),
        connect_queue_pair: us(1_000),
        destroy_queue_pair: us(10_000),
        register_memory: us(7),
        register_per_mib: us(16),
        deregister_memory: us(100_000),
    }
}

/// Registering the first region: 7 us, and a 16th of 16 us.
const REGISTER_NS: u64 = 8_000;
const CREATE_NS: u64 = 100_000;
const CONNECT_NS: u64 = 1_000_000;

/// The processes of two hosts with such command queues.
struct Pair {
    cluster: Cluster,
    devices: [Arc<HostDevice>; 2],
}

impl Pair {
    fn new(commands: [CommandTimes; 2]) -> Pair {
        let host = |commands| HostConfig::roce(NicConfig { commands, ..NicConfig::ideal(LINE) });
        let topology = Topology::Direct(LinkConfig::clean(LINE, Duration::from_nanos(DELAY_NS)));
        let cluster = Cluster::new(&topology, commands.map(host).into(), 0);
        let devices = [HostId(0), HostId(1)].map(|host| cluster.open(host));
        devices.iter().for_each(|device| {
            device.create_cq().expect("a new device has queues");
        });
        Pair { cluster, devices }
    }

    /// The first connects so many links at once, the second accepts each request. Returns the events of each, and their
    /// times.
    fn connect(&self, count: usize) -> [Vec<(Instant, CmEvent)>; 2] {
        let cq = netacc_device::CompletionQueueId(0);
        for _ in 0..count {
            self.devices[0].connect(self.devices[1].address(), cq, REGION, &[]).expect("there is room");
        }
        let mut events = [Vec::new(), Vec::new()];
        loop {
            for (events, device) in events.iter_mut().zip(&self.devices) {
                while let Some(event) = device.poll_event() {
                    if let CmEvent::Request { id, .. } = &event {
                        device.accept(*id, cq, REGION).expect("there is room");
                        assert!(matches!(device.accept(*id, cq, REGION), Err(CmError::Unreachable)), "accepted twice");
                    }
                    events.push((self.cluster.now(), event));
                }
            }
            if !self.cluster.step() {
                return events;
            }
        }
    }
}

/// The times at which links were established, in nanoseconds.
fn established(events: &[(Instant, CmEvent)]) -> Vec<u64> {
    let made = events.iter().filter(|(_, event)| matches!(event, CmEvent::Established { .. }));
    made.map(|(at, _)| at.as_nanos()).collect()
}

fn queue_pair(events: &[(Instant, CmEvent)]) -> QueuePairId {
    let made = events.iter().find_map(|(_, event)| match event {
        CmEvent::Established { qp, .. } => Some(*qp),
        _ => None,
    });
    made.expect("it was established")
}

// Breaks if a part of making a link takes no time, is paid twice, or the wrong side waits for it.
#[test]
fn a_link_takes_the_sum_of_its_commands() {
    let way = DATAGRAM_NS + DELAY_NS;
    let requested_at = CREATE_NS + REGISTER_NS + way;
    let accepted_at = requested_at + CREATE_NS + REGISTER_NS + CONNECT_NS;
    let events = Pair::new([times(), times()]).connect(1);
    assert_eq!(established(&events[1]), [accepted_at]);
    assert_eq!(established(&events[0]), [accepted_at + way + CONNECT_NS]);
    // If commands take no time, only the way there and back is left, where the reply follows an acknowledgement.
    let events = Pair::new([CommandTimes::default(), CommandTimes::default()]).connect(1);
    assert_eq!(established(&events[0]), [2 * way + DATAGRAM_NS]);
}

// Breaks if a device executes two commands at a time, or one waits for anything but those before it: n links that are
// requested from a device at once take it n times as long as one.
#[test]
fn links_wait_for_each_other_on_one_device() {
    let one = CREATE_NS + REGISTER_NS + CONNECT_NS;
    let events = Pair::new([CommandTimes::default(), times()]).connect(20);
    let first = DATAGRAM_NS + DELAY_NS;
    assert_eq!(established(&events[1]), (1..=20).map(|n| first + n * one).collect::<Vec<u64>>());
    // The connector makes all its queue pairs before it connects the first; the last reply is in flight then.
    let events = Pair::new([CommandTimes { connect_queue_pair: Duration::ZERO, ..times() }, CommandTimes::default()])
        .connect(20);
    let made = 20 * (CREATE_NS + REGISTER_NS);
    assert_eq!(established(&events[0])[..19], [made; 19]);
    assert_eq!(established(&events[0])[19], made + 2 * first + DATAGRAM_NS);
}

// Breaks if a message that names a region leaves before the device has registered it, or others wait for it, too.
#[test]
fn a_post_waits_for_a_registration() {
    let pair = Pair::new([times(), CommandTimes::default()]);
    let events = pair.connect(2);
    let qp = queue_pair(&events[0]);
    let other = events[0].iter().rev().find_map(|(_, event)| match event {
        CmEvent::Established { qp, .. } => Some(*qp),
        _ => None,
    });
    let begun = pair.cluster.now();
    let region = pair.devices[0].alloc_region(qp, 1 << 20).expect("there is room");
    let sent = |qp: QueuePairId| {
        let payload = Payload::Inline(&[1]);
        let request =
            WorkRequest { id: WorkRequestId(1), operation: Operation::Send { imm: Some(0) }, payload, signaled: false };
        let before = pair.cluster.counters(HostId(0)).data_sent;
        assert_eq!(pair.devices[0].post_send(qp, &[request]).expect("it is connected"), 1);
        while pair.cluster.counters(HostId(0)).data_sent == before {
            assert!(pair.cluster.step(), "nothing was sent");
        }
        pair.cluster.now().saturating_since(begun)
    };
    assert!(sent(other.expect("there are two")) < Duration::from_micros(5));
    assert_eq!(sent(qp), Duration::from_micros(7 + 16));
    pair.devices[0].free_region(qp, region);
}

// Breaks if a process that dies while its device makes a queue pair leaves its peer waiting, or with a link that does not end.
#[test]
fn a_process_that_dies_meanwhile_leaves_no_peer_waiting() {
    // Before the request leaves, while the acceptor's queue pair is made, and after the reply has come.
    for (dies, at_us) in [0, 1].into_iter().flat_map(|host| [50, 500, 1_500].map(|at| (host, at))) {
        let pair = Pair::new([times(), times()]);
        let cq = netacc_device::CompletionQueueId(0);
        pair.devices[0].connect(pair.devices[1].address(), cq, REGION, &[]).expect("there is room");
        let (mut dead, mut made, mut failed) = (false, None, false);
        loop {
            for (host, device) in pair.devices.iter().enumerate() {
                while let Some(event) = device.poll_event() {
                    match event {
                        CmEvent::Request { id, .. } => device.accept(id, cq, REGION).expect("there is room"),
                        CmEvent::Established { qp, .. } if host != dies => made = Some(qp),
                        CmEvent::Failed { .. } => failed = true,
                        _ => {}
                    }
                }
            }
            if !dead && pair.cluster.next_event().is_none_or(|at| at >= Instant::from_nanos(at_us * 1_000)) {
                pair.cluster.crash(HostId(dies as u32));
                dead = true;
            } else if !pair.cluster.step() {
                break;
            }
        }
        let survivor = &pair.devices[1 - dies];
        let what = format!("host {dies} dies at {at_us} us: established {made:?}, failed {failed}");
        match made {
            Some(qp) => {
                let mut ended = [WorkCompletion {
                    qp,
                    status: CompletionStatus::Success,
                    completion: Completion::Send { id: WorkRequestId(0) },
                }];
                // A process that has posted nothing gets it from its peer's connection manager.
                assert_eq!(survivor.poll_qp(qp, &mut ended), 1, "{what}");
                assert_eq!(ended[0].completion, Completion::Disconnected, "{what}");
            }
            None => {
                assert_eq!(pair.cluster.holdings(HostId(1 - dies as u32)), (0, 0), "{what}");
                assert!(failed || dies == 0, "{what}");
            }
        }
    }
}
