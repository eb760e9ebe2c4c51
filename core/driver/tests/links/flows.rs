//! Flows of datagrams: how they are requested, made and ended.

use std::sync::{Arc, Mutex};

use netacc_device::loopback::{DeliveryMode, Fabric, LoopbackConfig};
use netacc_device::middleware::Event;
use netacc_device::{ConnectionId, PeerAddress, QueuePairId};
use netacc_driver::{Endpoint, EndpointConfig, Flow, Readiness, ReadySink, StreamCell, MAX_FLOW_REQUEST};

use crate::common::{config, run};
use crate::endpoints::configured;

/// What an owner of flows has seen.
#[derive(Default)]
struct Seen {
    requests: Vec<Vec<u8>>,
    flows: Vec<Flow>,
    failed: usize,
    ended: Vec<QueuePairId>,
}

/// An owner that accepts flows with regions of so many bytes, or none.
struct Owner(Arc<Mutex<Seen>>, Option<usize>);

impl ReadySink for Owner {
    fn ready(&self, _: &Arc<StreamCell>, _: Readiness, _: bool) {}

    fn holds_alone(&self, _: &Arc<StreamCell>) -> bool {
        true
    }

    fn unseen_io(&self, _: &Arc<StreamCell>) -> bool {
        false
    }

    fn moved(&self, _: &Arc<StreamCell>) {}

    fn flow_requested(&self, _: ConnectionId, _: PeerAddress, request: &[u8]) -> Option<usize> {
        self.0.lock().unwrap().requests.push(request.to_vec());
        self.1
    }

    fn flow_established(&self, _: ConnectionId, flow: Flow) {
        self.0.lock().unwrap().flows.push(flow);
    }

    fn flow_failed(&self, _: ConnectionId) {
        self.0.lock().unwrap().failed += 1;
    }

    fn flow_ended(&self, qp: QueuePairId) {
        self.0.lock().unwrap().ended.push(qp);
    }
}

fn endpoint(fabric: &Fabric, accepts: Option<usize>, config: EndpointConfig) -> (Endpoint, Arc<Mutex<Seen>>) {
    let seen = Arc::<Mutex<Seen>>::default();
    let owner = Owner(seen.clone(), accepts);
    (configured(fabric.open(LoopbackConfig::shm()), None, |_: &Event| {}, owner, config), seen)
}

//= spec §10.2.3
//= type=test
//# The first regions are the *outbox* of the sender, of 128 bytes, which the receiver writes, and the *inbox* of the receiver,
//# which the sender writes.
#[test]
fn each_end_has_its_own_region_and_the_peers() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (sender, sent) = endpoint(&fabric, None, config(1));
    let (receiver, received) = endpoint(&fabric, Some(4096), config(1));
    let request = [7; MAX_FLOW_REQUEST];
    sender.request_flow(receiver.cm().address(), 128, &request).expect("a device with room");
    run([&sender, &receiver]);
    let (sent, received) = (sent.lock().unwrap(), received.lock().unwrap());
    assert_eq!(received.requests, [request]);
    let ([out], [into]) = (&sent.flows[..], &received.flows[..]) else { panic!("one flow at each end") };
    assert_eq!((out.local.len(), out.remote.len()), (128, 4096));
    assert_eq!((into.local.len(), into.remote.len()), (4096, 128));
    assert!(out.remote.write(64, b"datagram") && into.remote.write(0, b"head"));
    let mut bytes = [0; 8];
    assert!(into.local.read(64, &mut bytes));
    assert_eq!(&bytes, b"datagram");
    assert!(out.local.read(0, &mut bytes[..4]));
    assert_eq!(&bytes[..4], b"head");
    assert!(sender.links().is_empty(), "a flow is no link");
}

#[test]
fn the_end_of_a_flow_is_told_to_the_other_end_once() {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (sender, sent) = endpoint(&fabric, None, config(1));
    let (receiver, received) = endpoint(&fabric, Some(4096), config(1));
    sender.request_flow(receiver.cm().address(), 128, b"").expect("a device with room");
    run([&sender, &receiver]);
    let qp = sent.lock().unwrap().flows[0].qp;
    sender.end_flow(qp);
    sender.end_flow(qp);
    run([&sender, &receiver]);
    let (sent, received) = (sent.lock().unwrap(), received.lock().unwrap());
    assert_eq!(received.ended, [received.flows[0].qp]);
    assert!(sent.ended.is_empty());
}

//= spec §10.2.2
//= type=test
//# Where a side needs a pre-shared key, it refuses all flows.
#[test]
fn flows_are_refused_by_an_owner_and_where_a_key_is_needed() {
    let key = netacc_proto::PreSharedKey::new(b"sixteen bytes of a secret").expect("long enough");
    for (accepts, with_key) in [(None, false), (Some(4096), true)] {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let (sender, sent) = endpoint(&fabric, None, config(1));
        let own = EndpointConfig { key: with_key.then(|| key.clone()), ..config(1) };
        let (receiver, received) = endpoint(&fabric, accepts, own);
        sender.request_flow(receiver.cm().address(), 128, b"").expect("a device with room");
        run([&sender, &receiver]);
        let (sent, received) = (sent.lock().unwrap(), received.lock().unwrap());
        assert!(sent.flows.is_empty() && received.flows.is_empty());
        assert_eq!((sent.failed, received.requests.len()), (1, usize::from(!with_key)));
        assert_eq!(receiver.request_flow(sender.cm().address(), 128, b"").is_err(), with_key);
    }
}
