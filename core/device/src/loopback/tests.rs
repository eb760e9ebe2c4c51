//! The operations of the owner of a fabric, and their effects in the simulated processes.

use std::sync::Arc;

use super::*;
use crate::middleware::SplitMix64;
use crate::tables::{QueueDepths, Refusal};
use crate::{
    CmError, CmEvent, Completion, CompletionEvents, CompletionQueueId, CompletionStatus, ConnectionManager, Device,
    Directory, FourTuple, Operation, Payload, PostError, QueuePairId, Region, RemoteRegion, WorkCompletion,
    WorkRequest, WorkRequestId,
};

const LEN: usize = 4096;

struct Side {
    device: Arc<LoopbackDevice>,
    qp: QueuePairId,
    local: Region,
    remote: RemoteRegion,
}

impl Side {
    fn write<'a>(&self, id: u64, position: u64, payload: Payload<'a>, imm: Option<u32>) -> WorkRequest<'a> {
        let operation = Operation::Write { rkey: self.remote.rkey, offset: self.remote.base + position, imm };
        WorkRequest { id: WorkRequestId(id), operation, payload, signaled: true }
    }

    fn post(&self, number: u32) -> Result<usize, PostError> {
        let bytes = number.to_le_bytes();
        let wr = self.write(number.into(), u64::from(number) * 4, Payload::Inline(&bytes), Some(number));
        self.device.post_send(self.qp, &[wr])
    }

    fn poll(&self) -> Vec<WorkCompletion> {
        let empty = WorkCompletion {
            qp: QueuePairId(0),
            status: CompletionStatus::Success,
            completion: Completion::Disconnected,
        };
        let mut out = [empty; 200];
        let count = self.device.poll_qp(self.qp, &mut out);
        out[..count].to_vec()
    }

    fn received(&self) -> Vec<u32> {
        received(&self.poll())
    }

    fn end(&self) -> QueuePairEnd {
        self.device.end(self.qp)
    }
}

fn received(completions: &[WorkCompletion]) -> Vec<u32> {
    let imm = |wc: &WorkCompletion| match wc.completion {
        Completion::Receive { imm, .. } => Some(imm),
        _ => None,
    };
    completions.iter().filter_map(imm).collect()
}

fn disconnects(completions: &[WorkCompletion]) -> usize {
    completions.iter().filter(|wc| wc.completion == Completion::Disconnected).count()
}

fn device(fabric: &Fabric, config: LoopbackConfig) -> Arc<LoopbackDevice> {
    let device = fabric.open(config);
    device.create_cq().expect("the first queue fits");
    device
}

fn connect(fabric: &Fabric, a: &Arc<LoopbackDevice>, b: &Arc<LoopbackDevice>) -> (Side, Side) {
    let cq = CompletionQueueId(0);
    a.connect(b.address(), cq, LEN, b"").expect("there is room");
    fabric.deliver_all();
    let Some(CmEvent::Request { id, .. }) = b.poll_event() else { panic!("no request") };
    b.accept(id, cq, LEN).expect("there is room");
    fabric.deliver_all();
    let established = |device: &Arc<LoopbackDevice>| match device.poll_event() {
        Some(CmEvent::Established { qp, local, remote, .. }) => Side { device: device.clone(), qp, local, remote },
        other => panic!("not established: {other:?}"),
    };
    (established(a), established(b))
}

fn pair(mode: DeliveryMode, config: LoopbackConfig) -> (Fabric, Side, Side) {
    let fabric = Fabric::new(mode);
    let (a, b) = (device(&fabric, config.clone()), device(&fabric, config));
    let (a, b) = connect(&fabric, &a, &b);
    (fabric, a, b)
}

// Breaks if a seed does not replay, or if the scheduler can reorder within a queue pair.
#[test]
fn a_seed_replays_and_order_within_a_queue_pair_is_kept() {
    let run = |seed| {
        let fabric = Fabric::new(DeliveryMode::Explicit);
        let devices: Vec<_> = (0..3).map(|_| device(&fabric, LoopbackConfig::soft_roce())).collect();
        let pairs: Vec<_> =
            [(0, 1), (1, 2), (2, 0), (0, 2)].map(|(a, b)| connect(&fabric, &devices[a], &devices[b])).into();
        let mut rng = SplitMix64::new(seed);
        let mut log = Vec::new();
        for number in 1..=10 {
            for (a, b) in &pairs {
                b.device.post_recv(b.qp, 1).expect("there is room");
                a.post(number).expect("there is room");
            }
            (0..rng.below(12)).for_each(|_| log.extend(fabric.step(rng.next_u64())));
        }
        while let Some(delivery) = fabric.step(rng.next_u64()) {
            log.push(delivery);
        }
        for (_, b) in &pairs {
            assert_eq!(b.received(), (1..=10).collect::<Vec<_>>(), "seed {seed}");
        }
        log
    };
    for seed in 0..50 {
        assert_eq!(run(seed), run(seed));
    }
    assert_ne!(run(1), run(2), "different seeds give different orders");
}

// Breaks if anything is delivered before the owner of the fabric delivers it.
#[test]
fn explicit_delivery_moves_nothing_by_itself() {
    let (fabric, a, b) = pair(DeliveryMode::Explicit, LoopbackConfig::erdma());
    b.device.post_recv(b.qp, 1).expect("there is room");
    a.post(1).expect("there is room");
    assert_eq!((a.poll(), b.poll(), fabric.in_flight(a.end())), (vec![], vec![], 1));
    assert_eq!(fabric.deliverable(), [Delivery::Message { from: a.end() }]);
    assert!(!fabric.deliver(Delivery::Acknowledgement { to: a.end() }), "nothing was placed yet");
    assert!(fabric.deliver(Delivery::Message { from: a.end() }));
    assert_eq!((b.received(), a.poll()), (vec![1], vec![]));
    assert!(fabric.deliver(Delivery::Acknowledgement { to: a.end() }));
    assert_eq!(a.poll().len(), 1);
    assert_eq!(fabric.step(0), None);
}

// Breaks if a region is read when posted: reuse that is too early would not be found.
#[test]
fn regions_are_read_when_delivered() {
    let (fabric, a, b) = pair(DeliveryMode::Explicit, LoopbackConfig::erdma());
    let staging = a.device.alloc_region(a.qp, 64).expect("there is memory");
    assert!(staging.memory.write(0, b"early"));
    let payload = Payload::Region { region: &staging, offset: 0, len: 5 };
    assert_eq!(a.device.post_send(a.qp, &[a.write(1, 0, payload, None)]), Ok(1));
    assert!(staging.memory.write(0, b"late!"));
    fabric.deliver_all();
    let mut bytes = [0; 5];
    assert!(b.local.memory.read(0, &mut bytes));
    assert_eq!(&bytes, b"late!");
    // Given back before it was read: the request fails with the device's own code, and the link dies.
    let payload = Payload::Region { region: &staging, offset: 0, len: 5 };
    assert_eq!(a.device.post_send(a.qp, &[a.write(2, 0, payload, None)]), Ok(1));
    a.device.free_region(a.qp, staging.clone());
    fabric.deliver_all();
    let seen = a.poll();
    assert!(seen.iter().any(|wc| wc.status == CompletionStatus::Other(4)), "{seen:?}");
    assert_eq!(disconnects(&b.poll()), 1);
}

// Breaks if a killed link delivers work in flight, or does not flush it, or informs both ends at once.
#[test]
fn a_killed_link_flushes_and_each_end_learns_in_its_own_time() {
    let (fabric, a, b) = pair(DeliveryMode::Explicit, LoopbackConfig::soft_roce());
    b.device.post_recv(b.qp, 4).expect("there is room");
    (1..=3).for_each(|n| assert_eq!(a.post(n), Ok(1)));
    assert!(fabric.deliver(Delivery::Message { from: a.end() }));
    let torn = Kill { torn_bytes: 2, ..Kill::default() };
    assert!(fabric.kill(a.end(), torn));
    assert!(!fabric.kill(b.end(), torn), "it is dead already");
    let mut bytes = [0xff; 4];
    assert!(b.local.memory.read(8, &mut bytes));
    assert_eq!(bytes, [2, 0, 0, 0], "the first bytes of message 2 are there");
    assert_eq!(a.post(4), Ok(1), "A has not got the event yet");
    assert!(fabric.deliver(Delivery::Disconnect { to: b.end() }));
    let seen = b.poll();
    assert_eq!((received(&seen), disconnects(&seen)), (vec![1], 1));
    assert_eq!(b.device.post_recv(b.qp, 1), Err(PostError::Dead));
    assert!(a.poll().is_empty());
    assert!(fabric.deliver(Delivery::Disconnect { to: a.end() }));
    let seen = a.poll();
    let flushed: Vec<_> =
        seen.iter().filter(|wc| wc.status == CompletionStatus::Flushed).map(|wc| wc.completion).collect();
    let sends = [1, 2, 3, 4].map(|id| Completion::Send { id: WorkRequestId(id) });
    assert_eq!(
        flushed,
        [&sends[..], &[Completion::Disconnected]].concat(),
        "message 1 was placed, but not acknowledged"
    );
    assert_eq!(a.post(5), Err(PostError::Dead));
    assert_eq!(fabric.step(0), None);
}

// Breaks if immediate delivery cannot inform one end of a dead link later than the other.
#[test]
fn immediate_delivery_can_withhold_a_disconnect() {
    let (fabric, a, b) = pair(DeliveryMode::Immediate, LoopbackConfig::shm());
    assert!(fabric.kill(a.end(), Kill { notice: Notice::Near, ..Kill::default() }));
    assert_eq!((disconnects(&a.poll()), disconnects(&b.poll())), (1, 0));
    b.device.post_recv(b.qp, 1).expect("B has not got the event yet");
    assert_eq!(fabric.deliverable(), [Delivery::Disconnect { to: b.end() }]);
    fabric.deliver_all();
    assert_eq!(disconnects(&b.poll()), 1);
}

// Breaks if bytes that a crashed process had placed are lost where placement is delivery, or kept where it is not.
#[test]
fn a_crash_leaves_placed_bytes() {
    for (config, kept) in [(LoopbackConfig::shm(), vec![1, 2, 3]), (LoopbackConfig::erdma(), vec![])] {
        let (fabric, a, b) = pair(DeliveryMode::Explicit, config);
        b.device.post_recv(b.qp, 4).expect("there is room");
        (1..=3).for_each(|n| assert_eq!(a.post(n), Ok(1)));
        fabric.crash(a.device.id());
        assert!(
            kept.is_empty() || !fabric.deliver(Delivery::Disconnect { to: b.end() }),
            "not before the placed messages"
        );
        fabric.deliver_all();
        let seen = b.poll();
        assert_eq!((received(&seen), disconnects(&seen)), (kept, 1));
        assert_eq!(a.post(4), Err(PostError::Dead));
        assert!(a.device.create_cq().is_err() && a.poll().is_empty());
        b.device.destroy_qp(b.qp);
        assert_eq!(fabric.step(0), None);
    }
}

// Breaks if a crash leaves a connector waiting, an entry in the directory, or a link without a peer.
#[test]
fn a_crash_is_noticed_by_connectors() {
    let fabric = Fabric::new(DeliveryMode::Explicit);
    let [a, b] = [0; 2].map(|_| device(&fabric, LoopbackConfig::shm()));
    let cq = CompletionQueueId(0);
    let tuple = FourTuple {
        local: "127.0.0.1:80".parse().expect("an address"),
        remote: "127.0.0.1:4000".parse().expect("an address"),
    };
    b.publish(&tuple, 3).expect("there is room");
    let attempt = a.connect(b.address(), cq, LEN, b"").expect("there is room");
    fabric.crash(b.id());
    fabric.deliver_all();
    let event = a.poll_event();
    assert!(matches!(event, Some(CmEvent::Failed { id, error: CmError::Unreachable }) if id == attempt), "{event:?}");
    assert_eq!(a.lookup(&tuple.reversed()), None);
    // The other way round: the connector dies before it is accepted.
    let c = device(&fabric, LoopbackConfig::shm());
    c.connect(a.address(), cq, LEN, b"").expect("there is room");
    fabric.deliver_all();
    let Some(CmEvent::Request { id, .. }) = a.poll_event() else { panic!("no request") };
    fabric.crash(c.id());
    a.accept(id, cq, LEN).expect("the request is open");
    fabric.deliver_all();
    assert!(matches!(a.poll_event(), Some(CmEvent::Failed { id: failed, .. }) if failed == id));
}

// Breaks if connects cannot be made to fail, or fail permanently.
#[test]
fn connects_can_be_refused() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let [a, b] = [0; 2].map(|_| device(&fabric, LoopbackConfig::shm()));
    for refusal in [Refusal::Unreachable, Refusal::NotAdmitted, Refusal::Exhausted] {
        fabric.refuse_connects(b.id(), Some(refusal));
        a.connect(b.address(), CompletionQueueId(0), LEN, b"").expect("asked for");
        let Some(CmEvent::Failed { error, .. }) = a.poll_event() else { panic!("not refused") };
        assert_eq!(error.to_string(), CmError::from(refusal).to_string());
        assert!(b.poll_event().is_none());
    }
    fabric.refuse_connects(b.id(), None);
    connect(&fabric, &a, &b);
}

// Breaks if limits on queue pairs, memory and directory are not kept, or leak.
#[test]
fn tables_are_bounded() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let config = LoopbackConfig { max_qp: 2, memory_limit_bytes: 3 * LEN, ..LoopbackConfig::shm() };
    let (a, b) = (device(&fabric, config), device(&fabric, LoopbackConfig::shm()));
    for _ in 0..3 {
        let (first, _) = connect(&fabric, &a, &b);
        let (second, _) = connect(&fabric, &b, &a);
        let _ = second;
        assert!(matches!(a.connect(b.address(), CompletionQueueId(0), 8, b""), Err(CmError::Exhausted(_))));
        assert!(a.alloc_region(first.qp, LEN + 1).is_err());
        let region = a.alloc_region(first.qp, LEN).expect("exactly fits");
        assert!(a.alloc_region(first.qp, 1).is_err());
        a.free_region(first.qp, region.clone());
        a.free_region(first.qp, region);
        a.alloc_region(first.qp, LEN).expect("fits again, once");
        fabric
            .with(|s| s.devices[0].qps.keys().copied().collect::<Vec<_>>())
            .into_iter()
            .for_each(|qp| a.destroy_qp(qp));
    }
    fabric.limit_directory(1);
    let tuple = |port| FourTuple { local: ([127, 0, 0, 1], port).into(), remote: ([127, 0, 0, 1], 9).into() };
    assert_eq!(a.publish(&tuple(1), 1), Ok(()));
    assert_eq!(a.publish(&tuple(2), 1), Err(crate::DirectoryError::Full));
    assert_eq!(a.publish(&tuple(1), 2), Ok(()), "the same connection again needs no room");
}

// Breaks if shrunk queues do not push back, or do not recover.
#[test]
fn queues_can_be_shrunk() {
    let (fabric, a, b) = pair(DeliveryMode::Immediate, LoopbackConfig::shm());
    fabric.limit_queues(a.device.id(), QueueDepths { send: 2, recv: 64 });
    b.device.post_recv(b.qp, 10).expect("there is room");
    assert_eq!([a.post(1), a.post(2), a.post(3)], [Ok(1), Ok(1), Err(PostError::QueueFull)]);
    assert_eq!(a.poll().len(), 2);
    assert_eq!(a.post(3), Ok(1));
    fabric.limit_queues(b.device.id(), QueueDepths { send: 64, recv: 0 });
    assert_eq!(b.device.post_recv(b.qp, 1), Err(PostError::QueueFull));
    fabric.limit_queues(b.device.id(), QueueDepths { send: u32::MAX, recv: u32::MAX });
    assert_eq!(b.device.post_recv(b.qp, 55), Err(PostError::QueueFull), "never beyond the capabilities");
}

// Breaks if a message without a receive has another effect than the configured one.
#[test]
fn a_message_without_a_receive() {
    let (_, a, b) = pair(DeliveryMode::Immediate, LoopbackConfig::soft_roce());
    assert_eq!((a.post(1), b.poll()), (Ok(1), vec![]));
    b.device.post_recv(b.qp, 1).expect("there is room");
    assert_eq!(b.received(), [1], "it waited");
    let (_, a, b) = pair(DeliveryMode::Immediate, LoopbackConfig::shm());
    assert_eq!(a.post(1), Err(PostError::QueueFull));
    b.device.post_recv(b.qp, 1).expect("there is room");
    assert_eq!((a.post(1), a.post(2)), (Ok(1), Err(PostError::QueueFull)));
    let (_, a, b) = pair(DeliveryMode::Immediate, LoopbackConfig::erdma());
    assert_eq!(a.post(1), Ok(1));
    assert_eq!((disconnects(&a.poll()), disconnects(&b.poll())), (1, 1), "it was fatal");
}

// Breaks if the accepting side may send first on a device that forbids it.
#[test]
fn the_connecting_side_speaks_first() {
    let (_, a, b) = pair(DeliveryMode::Immediate, LoopbackConfig::erdma());
    a.device.post_recv(a.qp, 1).expect("there is room");
    assert_eq!(b.post(1), Ok(1));
    assert_eq!((disconnects(&a.poll()), disconnects(&b.poll())), (1, 1));
}

// Breaks if a driver that never signals could continue for ever, which it cannot on verbs.
#[test]
fn unsignaled_requests_occupy_their_slots_until_a_signaled_one_is_polled() {
    let (_, a, _b) = pair(DeliveryMode::Immediate, LoopbackConfig::erdma());
    let wr = |signaled| WorkRequest { signaled, ..a.write(1, 0, Payload::Inline(b"x"), None) };
    assert_eq!(a.device.post_send(a.qp, &[wr(false); 63]), Ok(63));
    assert_eq!(a.device.post_send(a.qp, &[wr(true); 2]), Ok(1));
    assert_eq!(a.device.post_send(a.qp, &[wr(true)]), Err(PostError::QueueFull));
    assert_eq!(a.poll().len(), 1);
    assert_eq!(a.device.post_send(a.qp, &[wr(false); 65]), Ok(64));
}

// Breaks if an armed queue does not make its channel readable, or one does that is not armed.
#[test]
fn an_armed_queue_makes_its_channel_readable() {
    let (_, a, b) = pair(DeliveryMode::Immediate, LoopbackConfig::shm());
    let cq = CompletionQueueId(0);
    b.device.post_recv(b.qp, 5).expect("there is room");
    assert_eq!(a.post(1), Ok(1));
    assert!(!b.device.channel_ready(cq), "not armed");
    assert_eq!(b.device.arm(cq), crate::Armed::Pending);
    b.device.disarm(cq);
    assert_eq!(b.received(), [1]);
    assert_eq!(b.device.arm(cq), crate::Armed::Sleep);
    assert_eq!((a.post(2), b.device.channel_ready(cq)), (Ok(1), true));
    b.device.disarm(cq);
    assert!(!b.device.channel_ready(cq));
}

// Breaks if hostile use of handles and values panics. The test asserts only that it ends.
#[test]
fn random_calls_never_panic() {
    for seed in 0..200 {
        let mut rng = SplitMix64::new(seed);
        let mode = if seed % 2 == 0 { DeliveryMode::Explicit } else { DeliveryMode::Immediate };
        let presets =
            [LoopbackConfig::shm(), LoopbackConfig::erdma(), LoopbackConfig::soft_roce(), LoopbackConfig::send_only()];
        let fabric = Fabric::new(mode);
        let devices: Vec<_> = (0..3).map(|_| device(&fabric, presets[rng.below(4)].clone())).collect();
        let mut sides = Vec::new();
        for _ in 0..4 {
            let (a, b) = connect(&fabric, &devices[rng.below(3)], &devices[rng.below(3)]);
            sides.extend([a, b]);
        }
        for _ in 0..300 {
            let side = &sides[rng.below(sides.len())];
            let (d, qp) = (&side.device, side.qp);
            match rng.below(14) {
                0..=3 => drop(d.post_recv(qp, rng.below(5) as u32)),
                4..=6 => drop(side.post(rng.below(2000) as u32)),
                7 => drop(d.window(qp, RemoteRegion { len: rng.next_u64() as u32, ..side.remote })),
                8 => d.free_region(qp, side.local.clone()),
                9 => drop(d.alloc_region(qp, rng.below(10_000))),
                10 if rng.chance(50) => d.fail_qp(qp),
                11 if rng.chance(50) => d.destroy_qp(qp),
                12 if rng.chance(20) => fabric.crash(d.id()),
                13 if rng.chance(50) => drop(fabric.kill(side.end(), Kill { torn_bytes: 3, ..Kill::default() })),
                _ => drop(side.poll()),
            }
            (0..rng.below(4)).for_each(|_| {
                fabric.step(rng.next_u64());
            });
        }
        fabric.deliver_all();
    }
}
