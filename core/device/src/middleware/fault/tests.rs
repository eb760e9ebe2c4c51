//! The requested faults come, and nothing else changes.

use super::*;
use crate::loopback::{DeliveryMode, Fabric, LoopbackConfig, LoopbackDevice};
use crate::{CmEvent, ConnectionManager, Operation, Payload, RemoteRegion, WorkRequestId};

struct Pair {
    fault: Fault<LoopbackDevice>,
    qp: QueuePairId,
    remote: RemoteRegion,
    _peer: Arc<LoopbackDevice>,
}

fn pair(config: FaultConfig) -> Pair {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let [a, b] = [0; 2].map(|_| fabric.open(LoopbackConfig::shm()));
    let cqs = [&a, &b].map(|d| d.create_cq().expect("the first queue fits"));
    a.connect(b.address(), cqs[0], 64, b"").expect("there is room");
    let Some(CmEvent::Request { id, .. }) = b.poll_event() else { panic!("no request") };
    b.accept(id, cqs[1], 64).expect("there is room");
    let Some(CmEvent::Established { qp, remote, .. }) = a.poll_event() else { panic!("not established") };
    Pair { fault: Fault::new(a, config), qp, remote, _peer: b }
}

impl Pair {
    fn post(&self, count: usize) -> Result<usize, PostError> {
        let operation = Operation::Write { rkey: self.remote.rkey, offset: self.remote.base, imm: None };
        let wr = WorkRequest { id: WorkRequestId(1), operation, payload: Payload::Inline(b"x"), signaled: true };
        self.fault.post_send(self.qp, &vec![wr; count])
    }

    fn poll(&self) -> usize {
        self.fault.poll_qp(self.qp, &mut [NOTHING; 64])
    }
}

// Breaks if full queues come at another rate, are not replayed by the seed, or lose requests.
#[test]
fn queues_are_full_at_the_configured_rate() {
    let run = |seed| {
        let pair = pair(FaultConfig { seed, queue_full_per_mille: 300, ..FaultConfig::default() });
        let posted: Vec<_> = (0..1000)
            .map(|_| {
                let posted = pair.post(2);
                (posted, pair.poll())
            })
            .collect();
        for (posted, polled) in &posted {
            assert_eq!(posted.unwrap_or(0), *polled, "each accepted request completes");
        }
        posted
    };
    let posted = run(5);
    assert_eq!(posted, run(5));
    let short = posted.iter().filter(|(posted, _)| *posted != Ok(2)).count();
    assert!((200..400).contains(&short), "{short} of 1000 calls");
    assert!(posted.iter().any(|(p, _)| *p == Ok(1)) && posted.iter().any(|(p, _)| *p == Err(PostError::QueueFull)));
    let pair = pair(FaultConfig { recv_queue_full_per_mille: 1000, ..FaultConfig::default() });
    assert_eq!(pair.fault.post_recv(pair.qp, 1), Err(PostError::QueueFull));
}

// Breaks if a queue pair dies early, late, or not at all.
#[test]
fn a_queue_pair_dies_after_so_many_posts() {
    let pair = pair(FaultConfig { kill_after_posts: Some(5), ..FaultConfig::default() });
    assert_eq!((pair.post(3), pair.post(3), pair.post(1)), (Ok(3), Ok(2), Err(PostError::Dead)));
    let mut out = [NOTHING; 16];
    assert_eq!(pair.fault.poll_qp(pair.qp, &mut out), 6, "five successes and the end");
    assert_eq!(out[5].completion, Completion::Disconnected);
    let other = self::pair(FaultConfig::default());
    assert_eq!(other.post(3), Ok(3));
    other.fault.kill_after(other.qp, 2);
    assert_eq!(other.post(1), Err(PostError::Dead));
    assert_eq!(other.fault.inner().post_recv(other.qp, 1), Err(PostError::Dead), "the device has the event");
}

// Breaks if a delay does not have the requested length, or `arm` lets the driver sleep through it.
#[test]
fn completions_are_delayed_by_so_many_polls() {
    let pair = pair(FaultConfig::default());
    let cq = CompletionQueueId(0);
    pair.fault.delay(pair.qp, 3);
    assert_eq!(pair.post(2), Ok(2));
    let mut out = [QueuePairId(0); 4];
    for _ in 0..3 {
        assert_eq!(pair.fault.pending(cq, &mut out), 0);
        assert_eq!(pair.fault.arm(cq), Armed::Pending);
        pair.fault.disarm(cq);
    }
    assert_eq!(pair.fault.delayed(), 2);
    assert_eq!((pair.fault.pending(cq, &mut out), out[0]), (1, pair.qp));
    assert_eq!(pair.fault.pending(cq, &mut out), 0, "reported once");
    assert_eq!(pair.poll(), 2);
    assert_eq!((pair.fault.delayed(), pair.fault.arm(cq)), (0, Armed::Sleep));
}

// Breaks if reports keep the device's order after all, or a queue pair is passed over permanently.
/// Breaks if a link whose messages come late claimed that a poll after its peer's death brings all of them: its reader
/// would take an end for one in good order.
#[test]
fn delayed_completions_are_not_delivered_by_placement() {
    for delay_polls in [0, 3] {
        let pair = pair(FaultConfig { delay_polls, ..FaultConfig::default() });
        let of_pair = pair.fault.capabilities_of(pair.qp).placement_is_delivery;
        assert_eq!((pair.fault.capabilities().placement_is_delivery, of_pair), (delay_polls == 0, delay_polls == 0));
    }
}

#[test]
fn queue_pairs_are_reported_in_another_order() {
    let orders: std::collections::BTreeSet<Vec<QueuePairId>> = (0..20)
        .map(|seed| {
            let fabric = Fabric::new(DeliveryMode::Immediate);
            let [a, b] = [0; 2].map(|_| fabric.open(LoopbackConfig::shm()));
            let cqs = [&a, &b].map(|d| d.create_cq().expect("the first queue fits"));
            let fault = Fault::new(a.clone(), FaultConfig { seed, reorder_per_mille: 200, ..FaultConfig::default() });
            for _ in 0..3 {
                a.connect(b.address(), cqs[0], 64, b"").expect("there is room");
                let Some(CmEvent::Request { id, .. }) = b.poll_event() else { panic!("no request") };
                b.accept(id, cqs[1], 64).expect("there is room");
                let Some(CmEvent::Established { qp, .. }) = a.poll_event() else { panic!("not established") };
                assert!(matches!(b.poll_event(), Some(CmEvent::Established { .. })));
                a.fail_qp(qp);
            }
            let mut order = Vec::new();
            while order.len() < 3 {
                let mut out = [QueuePairId(0); 2];
                let count = fault.pending(cqs[0], &mut out);
                order.extend_from_slice(&out[..count]);
            }
            order
        })
        .collect();
    assert!(orders.len() > 3, "{orders:?}");
}
