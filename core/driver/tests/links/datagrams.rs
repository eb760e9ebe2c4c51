//! Flows of datagrams on links: beside streams, and refused ones. `sim/harness` runs them with faults.

use std::sync::{Arc, Mutex};

use netacc_device::loopback::{DeliveryMode, Fabric, LoopbackConfig};
use netacc_device::middleware::Event;
use netacc_device::{FourTuple, Instant};
use netacc_driver::{Endpoint, EndpointConfig, Readiness, ReadySink, ReceivingFlow, SendingFlow, StreamCell};
use netacc_proto::{FlowRefusal, Reason};

use crate::common::{config, connect, run};
use crate::endpoints::{configured, write};

/// The datagrams that an owner has seen, and the flows that it accepts.
#[derive(Default)]
struct Seen {
    accepts: Option<FourTuple>,
    granted: Vec<Arc<ReceivingFlow>>,
}

struct Owner(Arc<Mutex<Seen>>, bool);

impl ReadySink for Owner {
    fn ready(&self, _: &Arc<StreamCell>, _: Readiness, _: bool) {}

    fn holds_alone(&self, _: &Arc<StreamCell>) -> bool {
        true
    }

    fn unseen_io(&self, _: &Arc<StreamCell>) -> bool {
        false
    }

    fn moved(&self, _: &Arc<StreamCell>) {}

    fn takes_flows(&self) -> bool {
        self.1
    }

    fn flow_offered(&self, addresses: &FourTuple) -> Result<(), Reason> {
        let accepts = self.0.lock().unwrap().accepts == Some(*addresses);
        accepts.then_some(()).ok_or(Reason::SourceUnknown)
    }

    fn flow_granted(&self, flow: &Arc<ReceivingFlow>) {
        self.0.lock().unwrap().granted.push(flow.clone());
    }
}

/// The source is `local`, as the sender sees it.
fn addresses() -> FourTuple {
    FourTuple { local: "10.0.0.1:5000".parse().unwrap(), remote: "10.0.0.2:53".parse().unwrap() }
}

fn endpoint(fabric: &Fabric, takes: bool, config: EndpointConfig) -> (Endpoint, Arc<Mutex<Seen>>) {
    let seen = Arc::<Mutex<Seen>>::default();
    let device = fabric.open(LoopbackConfig::erdma());
    (configured(device, None, |_: &Event| {}, Owner(seen.clone(), takes), config), seen)
}

/// Two ends, of which the second one has the socket at the destination.
fn ends(takes: bool, ring_len: u32) -> (Endpoint, Endpoint, Arc<Mutex<Seen>>) {
    let fabric = Fabric::new(DeliveryMode::Immediate);
    let (sender, _) = endpoint(&fabric, true, config(4));
    let (receiver, seen) = endpoint(&fabric, takes, EndpointConfig { ring_len, ..config(4) });
    seen.lock().unwrap().accepts = Some(addresses().reversed());
    (sender, receiver, seen)
}

/// A granted flow whose addresses are proven, and whose receiver is awake.
fn open(sender: &Endpoint, receiver: &Endpoint, seen: &Mutex<Seen>) -> (Arc<SendingFlow>, Arc<ReceivingFlow>) {
    let sending = sender.open_flow(receiver.cm().address(), addresses());
    run([sender, receiver]);
    let receiving = seen.lock().unwrap().granted.pop().expect("granted");
    let proof = sending.poll_proof(Instant::from_nanos(1)).expect("due once it is granted");
    let answer = receiver.handle_source_proof(&receiving, &proof).expect("the sender's proof");
    assert!(sending.handle_proof(&answer));
    receiver.keep_awake(&receiving);
    run([sender, receiver]);
    (sending, receiving)
}

//= spec §10.6.1, §10.7.4
//= type=test
#[test]
fn datagrams_and_streams_share_a_link() {
    let (sender, receiver, seen) = ends(true, 4096);
    let (near, _far) = connect(&sender, &receiver, 40_000);
    sender.promote(&near).expect("the acceptor is published");
    let (sending, receiving) = open(&sender, &receiver, &seen);
    assert_eq!((sender.links().len(), sender.links()[0].streams), (1, 2), "one link for both");
    for n in 0..100u8 {
        assert_eq!(sender.send_datagram(&sending, &[n; 200], 64, 8), Ok(()));
        run([&sender, &receiver]);
        let datagram = receiver.receive_datagram(&receiving).expect("it has come");
        assert_eq!((datagram.bytes, datagram.ttl, datagram.tos), (vec![n; 200], 64, 8));
    }
    write(&sender, &near, b"bytes of the stream");
    // A sleeper gets nothing by the link.
    assert!(receiver.let_sleep(&receiving));
    run([&sender, &receiver]);
    assert_eq!(sender.send_datagram(&sending, b"x", 64, 0), Err(FlowRefusal::Asleep));
    assert_eq!((sending.counts().link, receiving.counts().link), (100, 100));
}

//= spec §10.6.5
//= type=test
//# Either side ends a flow by CLOSE. The slot is free once both have sent it. A receiver keeps what was in the ring.
#[test]
fn a_closed_flow_gives_its_slot_back_and_keeps_what_has_come() {
    let (sender, receiver, seen) = ends(true, 4096);
    let (sending, receiving) = open(&sender, &receiver, &seen);
    assert_eq!(sender.send_datagram(&sending, b"last", 64, 0), Ok(()));
    sender.close_sending(&sending);
    run([&sender, &receiver]);
    assert!(receiving.is_closed() && sending.is_closed());
    assert_eq!((sender.links()[0].streams, receiver.links()[0].streams), (0, 0));
    assert_eq!(receiver.receive_datagram(&receiving).map(|datagram| datagram.bytes), Some(b"last".to_vec()));
    assert_eq!(receiver.receive_datagram(&receiving), None);
}

//= spec §10.6.6
//= type=test
//# A receiver that gets CLOSE keeps what is in the ring, writes its status, and then sends its own CLOSE.
//= spec §10.6.6
//= type=test
//# A sender that has the receiver's CLOSE reads the status, and sends by the kernel what was not taken before a sleep.
// Breaks if a sender that ends does not learn of a receiver that has just fallen asleep, or takes for lost what it keeps.
#[test]
fn what_is_under_way_at_the_end_is_kept_or_comes_back() {
    for sleeps in [true, false] {
        let (sender, receiver, seen) = ends(true, 4096);
        let (sending, receiving) = open(&sender, &receiver, &seen);
        assert_eq!(sender.send_datagram(&sending, b"last", 64, 8), Ok(()));
        sender.close_sending(&sending);
        assert!(!sending.is_drained());
        if sleeps {
            assert!(receiver.let_sleep(&receiving), "it has not seen the datagram");
        }
        run([&sender, &receiver]);
        assert!(sending.is_over());
        assert_eq!(sending.is_drained(), !sleeps);
        let received = receiver.receive_datagram(&receiving);
        let returned = sender.take_returned(&sending);
        assert_eq!((received.is_some(), returned.is_some()), (!sleeps, sleeps));
        assert_eq!(received.or(returned).map(|datagram| datagram.bytes), Some(b"last".to_vec()));
        assert!(sending.is_drained());
        assert_eq!(sending.counts().lost, 0);
    }
}

//= spec §10.7.5
//= type=test
//# A proof that comes late is no datagram of the program's either: both sides recognise those of flows that are over.
#[test]
fn late_proofs_are_recognised() {
    let (sender, receiver, seen) = ends(true, 4096);
    let (sending, receiving) = open(&sender, &receiver, &seen);
    let other = sender.open_flow(receiver.cm().address(), addresses());
    run([&sender, &receiver]);
    let later = seen.lock().unwrap().granted.pop().expect("granted");
    let proof = other.poll_proof(Instant::from_nanos(1)).expect("due");
    let answer = receiver.handle_source_proof(&later, &proof).expect("the sender's proof");
    sender.close_sending(&other);
    run([&sender, &receiver]);
    assert!(other.is_closed() && other.handle_proof(&answer) && !other.handle_proof(b"a datagram of the program's"));
    assert!(receiver.handle_source_proof(&later, &proof).is_some());
    assert_eq!(receiver.handle_source_proof(&receiving, &proof), None, "another flow's");
    assert!(!sending.is_closed());
}

// Breaks if datagrams are lost, or received twice, where a receiver leaves the link: because its process forks, or an option
// was set that a link cannot serve.
#[test]
fn a_receiver_that_leaves_keeps_what_has_come_or_gives_it_back() {
    for keeps in [true, false] {
        let (sender, receiver, seen) = ends(true, 4096);
        let (sending, receiving) = open(&sender, &receiver, &seen);
        assert_eq!(sender.send_datagram(&sending, b"first", 64, 8), Ok(()));
        run([&sender, &receiver]);
        assert_eq!(sender.send_datagram(&sending, b"under way", 64, 8), Ok(()));
        if keeps {
            receiver.keep_received(&receiving);
        } else {
            receiver.give_back(&receiving);
        }
        run([&sender, &receiver]);
        let received: Vec<_> = std::iter::from_fn(|| receiver.receive_datagram(&receiving)).collect();
        let returned: Vec<_> = std::iter::from_fn(|| sender.take_returned(&sending)).collect();
        let all: Vec<_> =
            received.iter().chain(&returned).map(|datagram| (&datagram.bytes[..], datagram.tos)).collect();
        assert_eq!(all, [(&b"first"[..], 8), (b"under way", 8)]);
        assert_eq!(returned.len(), if keeps { 1 } else { 2 });
        assert!(sending.is_closed() && receiving.is_closed());
        assert_eq!((sender.links()[0].streams, receiver.links()[0].streams), (0, 0), "the slot is free");
    }
}

//= spec §10.6.2, §10.6.3
//= type=test
//# The receiver refuses a flow to a socket that it does not have
#[test]
fn flows_are_refused() {
    let refused = [
        (true, false, 4096, Reason::SourceUnknown),
        (true, true, 2048, Reason::MemoryLimit),
        (false, true, 4096, Reason::PeerNotFound),
    ];
    for (takes, has_socket, ring_len, reason) in refused {
        let (sender, receiver, seen) = ends(takes, ring_len);
        if !has_socket {
            seen.lock().unwrap().accepts = None;
        }
        let sending = sender.open_flow(receiver.cm().address(), addresses());
        run([&sender, &receiver]);
        assert!(sending.is_closed() && !sending.is_open(), "{takes} {has_socket} {ring_len}");
        assert_eq!(sending.refused(), Some(reason));
        assert!(seen.lock().unwrap().granted.is_empty());
        assert_eq!(sender.send_datagram(&sending, b"x", 64, 0), Err(FlowRefusal::Closed));
        let streams: Vec<_> = sender.links().iter().map(|link| link.streams).collect();
        assert!(streams.iter().all(|streams| *streams == 0), "no slot is left in use");
    }
}
