//! Flows of datagrams on links: beside streams, and refused ones. `sim/harness` runs them with faults.

use std::sync::{Arc, Mutex};

use netacc_device::loopback::{DeliveryMode, Fabric, LoopbackConfig};
use netacc_device::middleware::Event;
use netacc_device::{FourTuple, Instant};
use netacc_driver::{
    Endpoint, EndpointConfig, Readiness, ReadySink, ReceivingFlow, SendingFlow, Sharing, Spread, StreamCell,
};
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

    fn flow_offered(&self, addresses: &FourTuple) -> Result<u16, Reason> {
        let accepts = self.0.lock().unwrap().accepts == Some(*addresses);
        accepts.then_some(PROOF_PORTS[1]).ok_or(Reason::SourceUnknown)
    }

    fn flow_granted(&self, flow: &Arc<ReceivingFlow>) {
        self.0.lock().unwrap().granted.push(flow.clone());
    }
}

/// Where the libraries receive proofs: the sender's, and the receiver's.
const PROOF_PORTS: [u16; 2] = [901, 902];

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
    let sending = sender.open_flow(receiver.cm().address(), addresses(), PROOF_PORTS[0], 0);
    run([sender, receiver]);
    let receiving = seen.lock().unwrap().granted.pop().expect("granted");
    let proof = sending.poll_proof(Instant::from_nanos(1)).expect("due once it is granted");
    let answer = receiver.handle_source_proof(&receiving, &proof.record).expect("the sender's proof");
    assert_eq!([answer.port, proof.port], PROOF_PORTS, "each goes to the other side's library");
    assert!(sending.handle_proof(&answer.record));
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

/// Breaks if a flow joined the only link of a stream that has it for itself, or had one made where streams share.
#[test]
fn a_flow_shares_a_link_where_a_stream_would() {
    for (dedicated, links) in [(1, vec![2]), (2, vec![1, 1])] {
        let fabric = Fabric::new(DeliveryMode::Immediate);
        let spread = Spread { dedicated, most: 4 };
        let sharing = Sharing::Automatic { mapped: spread, posted: spread };
        let [(sender, _), (receiver, seen)] =
            [(); 2].map(|()| endpoint(&fabric, true, EndpointConfig { sharing, ..config(1) }));
        seen.lock().unwrap().accepts = Some(addresses().reversed());
        let (near, _far) = connect(&sender, &receiver, 40_001);
        sender.promote(&near).expect("the acceptor is published");
        run([&sender, &receiver]);
        open(&sender, &receiver, &seen);
        assert_eq!(sender.links().iter().map(|link| link.streams).collect::<Vec<_>>(), links);
    }
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

//= spec §10.9.2
//= type=test
//# Both sides count from before the flow: the receiver the datagrams that the kernel has brought the socket from the source, and
//# the sender those that it has sent to the destination.
// Breaks if a record overtakes datagrams that were sent before the flow was requested, or while it was.
#[test]
fn datagrams_by_the_kernel_are_counted_from_before_the_flow() {
    let (sender, receiver, seen) = ends(true, 4096);
    let sending = sender.open_flow(receiver.cm().address(), addresses(), PROOF_PORTS[0], 3);
    sending.count_by_kernel();
    run([&sender, &receiver]);
    let receiving = seen.lock().unwrap().granted.pop().expect("granted");
    receiving.start(2);
    let proof = sending.poll_proof(Instant::from_nanos(1)).expect("due once it is granted");
    let answer = receiver.handle_source_proof(&receiving, &proof.record).expect("the sender's proof");
    assert!(sending.handle_proof(&answer.record) && !sending.handle_proof(&proof.record));
    receiver.keep_awake(&receiving);
    run([&sender, &receiver]);
    assert_eq!(sender.send_datagram(&sending, b"behind four", 64, 0), Ok(()));
    run([&sender, &receiver]);
    for _ in 0..2 {
        assert_eq!(receiver.receive_datagram(&receiving), None);
        receiving.count_by_kernel();
    }
    assert!(receiver.receive_datagram(&receiving).is_some());
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
        let sending = sender.open_flow(receiver.cm().address(), addresses(), PROOF_PORTS[0], 0);
        run([&sender, &receiver]);
        assert!(sending.is_closed() && !sending.is_open(), "{takes} {has_socket} {ring_len}");
        assert_eq!(sending.refused(), Some(reason));
        assert!(seen.lock().unwrap().granted.is_empty());
        assert_eq!(sender.send_datagram(&sending, b"x", 64, 0), Err(FlowRefusal::Closed));
        let streams: Vec<_> = sender.links().iter().map(|link| link.streams).collect();
        assert!(streams.iter().all(|streams| *streams == 0), "no slot is left in use");
    }
}
