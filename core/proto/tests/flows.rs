//! Flows of datagrams, at the surface of the two state machines. Together they run in `sim/harness`.

use netacc_device::{Instant, RemoteKey};
use netacc_proto::{
    is_flow_proof, FlowGrant, FlowProof, FlowReceiver, FlowRefusal, FlowRequest, FlowSender, RecordHeader,
    RingDescriptor, Violation, WireTuple, FLOW_ORDER_PATIENCE, FLOW_PROOF_INTERVAL, FLOW_PROOF_TRIES,
    FLOW_RECORD_HEADER_LEN,
};
use proptest::prelude::*;

const RING: u32 = 4096;
const NONCES: [[u8; 16]; 2] = [[1; 16], [2; 16]];
/// Where the libraries receive proofs: the sender's, and the receiver's.
const PORTS: [u16; 2] = [901, 902];

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn ring(ring_len: u32) -> RingDescriptor {
    RingDescriptor { rkey: RemoteKey(1), base: 0, ring_len }
}

/// Two ends, and the messages between them in order.
struct Pair {
    sender: FlowSender,
    receiver: FlowReceiver,
}

impl Pair {
    fn granted() -> Pair {
        Pair::after(0)
    }

    /// After so many datagrams were sent by the kernel.
    fn after(by_kernel: u64) -> Pair {
        let end = ([0; 16], 7);
        let addresses = WireTuple { local: end, remote: end };
        let request = FlowRequest { slot: 3, addresses, nonce: NONCES[0], ring: ring(RING), proof_port: PORTS[0] };
        let (mut sender, receiver) = (FlowSender::new(RING, by_kernel), FlowReceiver::new(NONCES[1], &request));
        let grant = receiver.grant(3, 4, ring(RING), PORTS[1]);
        assert_eq!(sender.handle_grant(&grant), Ok(()));
        Pair { sender, receiver }
    }

    fn open() -> Pair {
        let mut pair = Pair::granted();
        pair.prove();
        pair
    }

    fn prove(&mut self) {
        let proof = self.sender.poll_proof(at(0)).expect("a proof is due");
        let FlowProof { record, port } = self.receiver.handle_proof(&proof.record).expect("it is the sender's");
        assert_eq!([port, proof.port], PORTS, "each goes to the other side's library");
        assert!(is_flow_proof(&record, &NONCES[0]) && !is_flow_proof(&record[1..], &NONCES[0]));
        assert!(!is_flow_proof(&record, &NONCES[1]));
        self.sender.handle_proof();
        self.receiver.stay_awake();
        self.report();
        assert!(self.sender.is_open());
    }

    fn report(&mut self) {
        let word = self.receiver.report();
        self.sender.handle_status(word).expect("an honest receiver");
    }

    fn send(&mut self, len: usize) -> Result<(u32, RecordHeader), FlowRefusal> {
        let (placed, header) = self.sender.prepare(len, 64, 8)?;
        self.sender.commit(placed);
        Ok((placed.span.len, header))
    }

    fn arrive(&mut self, (len, header): (u32, RecordHeader)) -> Result<(), Violation> {
        let placed = self.receiver.handle_message(len)?;
        self.receiver.handle_record(placed, &header)
    }
}

//= spec §10.7.1
//= type=test
//# No datagram takes the link before the kernel has brought each side the other's proof.
#[test]
fn both_addresses_are_proven_first() {
    let mut pair = Pair::granted();
    let proof = pair.sender.poll_proof(at(0)).expect("a proof is due").record;
    assert_eq!(pair.receiver.handle_proof(&[7; 48]), None, "any datagram");
    assert!(pair.receiver.handle_message(20).is_err(), "the source is not proven");
    pair.receiver.stay_awake();
    pair.sender.handle_proof();
    pair.report();
    assert_eq!(pair.send(1), Err(FlowRefusal::Unproven), "the receiver has not had the proof");
    assert!(pair.receiver.handle_proof(&proof).is_some());
    pair.report();
    assert!(pair.send(1).is_ok());
    let mut other = Pair::granted();
    other.receiver.handle_proof(&proof);
    other.report();
    assert_eq!(other.send(1), Err(FlowRefusal::Unproven), "the destination is not proven");
}

//= spec §10.7.2, §10.7.3
//= type=test
//# The sender repeats its proof every FLOW_PROOF_INTERVAL until both addresses are proven, and closes the flow after
//# FLOW_PROOF_TRIES.
#[test]
fn proofs_are_repeated_and_then_given_up() {
    let mut pair = Pair::granted();
    let mut now = at(1);
    for _ in 0..FLOW_PROOF_TRIES {
        let proof = pair.sender.poll_proof(now).expect("a proof is due");
        assert!(pair.receiver.handle_proof(&proof.record).is_some(), "each is answered");
        assert_eq!(pair.sender.poll_proof(now), None);
        now = now + FLOW_PROOF_INTERVAL;
        assert_eq!(pair.sender.next_proof(), Some(now));
    }
    assert!(!pair.sender.is_closed());
    assert_eq!(pair.sender.poll_proof(now), None);
    assert!(pair.sender.is_closed());
}

//= spec §10.6.4
//= type=test
//# Its ring is as long as the sender's region says; another length, or a second grant, is a violation.
#[test]
fn a_grant_has_the_rings_length_and_comes_once() {
    let grant = |ring_len| FlowGrant { peer_slot: 3, slot: 4, nonce: NONCES[1], ring: ring(ring_len), proof_port: 9 };
    assert!(FlowSender::new(RING, 0).handle_grant(&grant(2 * RING)).is_err());
    assert!(Pair::granted().sender.handle_grant(&grant(RING)).is_err());
}

//= spec §10.8.5
//= type=test
//# A sender that sees a new sleep sends the records that were not taken before it by the kernel, in their order.
#[test]
fn what_a_sleeper_has_not_taken_comes_back() {
    let mut pair = Pair::open();
    let sent: Vec<_> = (1..=4).map(|len| pair.send(len).expect("room")).collect();
    for record in &sent[..2] {
        pair.arrive(*record).expect("honest");
    }
    assert!(!pair.receiver.fall_asleep(), "there are datagrams");
    while pair.receiver.front().is_some() {
        pair.receiver.take();
    }
    assert!(pair.receiver.fall_asleep());
    for record in &sent[2..] {
        pair.arrive(*record).expect("honest");
    }
    assert!(!pair.receiver.has_more(), "a sleeper has none");
    pair.receiver.stay_awake();
    pair.report();
    let returned: Vec<_> = std::iter::from_fn(|| pair.sender.poll_returned()).map(|span| span.len).collect();
    assert_eq!(returned, [3, 4].map(|len| len + FLOW_RECORD_HEADER_LEN as u32));
    assert!(pair.sender.is_drained());
    let next = pair.send(5).expect("it is awake again");
    assert_eq!(pair.arrive(next), Ok(()));
    assert!(pair.receiver.front().is_some_and(|front| front.span.len == 5));
}

//= spec §10.8.8
//= type=test
//# A receiver that takes no more from a flow skips what is in the ring, and begins a sleep that does not end.
#[test]
fn what_a_receiver_gives_back_comes_back() {
    for was_asleep in [false, true] {
        let mut pair = Pair::open();
        let sent: Vec<_> = (1..=3).map(|len| pair.send(len).expect("room")).collect();
        pair.arrive(sent[0]).expect("honest");
        pair.receiver.take();
        if was_asleep {
            assert!(pair.receiver.fall_asleep());
        } else {
            pair.arrive(sent[1]).expect("honest");
        }
        pair.receiver.give_back();
        assert!(!pair.receiver.has_more() && !pair.receiver.stay_awake(), "nothing is taken from now on");
        pair.report();
        let returned: Vec<_> = std::iter::from_fn(|| pair.sender.poll_returned()).map(|span| span.len).collect();
        assert_eq!(returned, [2, 3].map(|len| len + FLOW_RECORD_HEADER_LEN as u32));
        for record in &sent[if was_asleep { 1 } else { 2 }..] {
            assert_eq!(pair.arrive(*record), Ok(()), "it was under way");
        }
        assert_eq!(pair.send(4), Err(FlowRefusal::Asleep));
    }
}

//= spec §10.9.3
//= type=test
//# If more have come than the sender's proof says were sent, another socket had the source's address before: then the
//# receiver counts from 0.
#[test]
fn datagrams_of_another_socket_do_not_count() {
    for (before, is_due) in [(1, false), (2, true), (3, false)] {
        let mut pair = Pair::after(2);
        pair.receiver.start(before);
        pair.prove();
        let record = pair.send(1).expect("room");
        pair.arrive(record).expect("honest");
        assert_eq!(pair.receiver.front().is_some(), is_due, "{before}");
    }
}

// Breaks if a program that waits for an edge is told of a record that it does not get, and of none later.
#[test]
fn a_record_counts_as_waiting_once_it_may_be_taken() {
    let mut pair = Pair::open();
    pair.sender.count_by_kernel();
    let record = pair.send(1).expect("room");
    pair.arrive(record).expect("honest");
    assert_eq!((pair.receiver.waiting(), pair.receiver.has_more()), (0, true));
    assert!(!pair.receiver.fall_asleep());
    assert_eq!(pair.receiver.waiting(), 1);
}

//= spec §10.8.4, §10.8.3
//= type=test
//# A sender places a record only if the receiver is awake, the ring has room, and the link has message credit.
#[test]
fn a_sleeper_and_a_full_ring_take_nothing() {
    let mut pair = Pair::open();
    assert_eq!(pair.send(RING as usize / 4 + 1), Err(FlowRefusal::TooLong));
    let sent: Vec<_> = std::iter::from_fn(|| pair.send(1000).ok()).collect();
    assert_eq!((sent.len(), pair.send(1000)), (4, Err(FlowRefusal::Full)));
    for record in sent {
        assert_eq!(pair.arrive(record), Ok(()));
    }
    assert!(pair.receiver.handle_message(100).is_err(), "a sender that does not look at the room");
    pair.receiver.front().expect("it is due");
    pair.receiver.take();
    pair.report();
    assert!(pair.send(1000).is_ok());
    while pair.receiver.front().is_some() {
        pair.receiver.take();
    }
    assert!(pair.receiver.fall_asleep());
    pair.report();
    assert_eq!(pair.send(1), Err(FlowRefusal::Asleep));
}

//= spec §10.9.1
//= type=test
//# A receiver takes a record once as many datagrams of the flow have come by the kernel as were sent before it, or once it
//# finds that the kernel has none, FLOW_ORDER_PATIENCE after it had found that first.
#[test]
fn a_record_waits_for_datagrams_by_the_kernel() {
    for comes in [true, false] {
        let mut pair = Pair::open();
        pair.sender.count_by_kernel();
        let record = pair.send(1).expect("room");
        pair.arrive(record).expect("honest");
        assert_eq!(pair.receiver.front(), None);
        if comes {
            pair.receiver.count_by_kernel();
        } else {
            pair.receiver.kernel_was_empty(at(1));
            pair.receiver.kernel_was_empty(at(2));
            assert_eq!(pair.receiver.front(), None);
            pair.receiver.kernel_was_empty(at(1) + FLOW_ORDER_PATIENCE);
        }
        assert!(pair.receiver.front().is_some());
    }
}

//= spec §10.8.6, §10.8.7
//= type=test
//# Counts that go back, or beyond what was sent, are a violation, and end the link.
#[test]
fn false_counts_lengths_and_sleeps_are_violations() {
    let word = |done: u64, taken: u64| 3 | done << 2 | taken << 25;
    for (done, taken, is_false) in
        [(1, 1, false), (2, 1, false), (3, 1, true), (1, 2, true), (0, 1, true), (1, 0, true)]
    {
        let mut pair = Pair::open();
        let record = pair.send(1).expect("room");
        pair.arrive(record).expect("honest");
        pair.receiver.front().expect("due");
        pair.receiver.take();
        pair.report();
        pair.send(1).expect("room");
        assert_eq!(pair.sender.handle_status(word(done, taken)).is_err(), is_false, "{done} {taken}");
    }
    let mut pair = Pair::open();
    let (len, header) = pair.send(9).expect("room");
    assert!(pair.arrive((len, RecordHeader { len: 8, ..header })).is_err());
    assert!(pair.arrive((len, RecordHeader { sleeps: 1, ..header })).is_err());
    assert!(pair.arrive((FLOW_RECORD_HEADER_LEN as u32 - 1, header)).is_err());
    assert!(pair.arrive((RING, header)).is_err());
    assert_eq!(pair.arrive((len, header)), Ok(()));
}

proptest! {
    //= spec §10.8.1, §10.8.2
    //= type=test
    //# It lies in one piece: where the rest of the ring is too short, it begins at offset 0.
    #[test]
    fn both_ends_place_records_alike(lens in prop::collection::vec(0usize..1000, 1..100)) {
        let mut pair = Pair::open();
        for len in lens {
            let (placed, header) = pair.sender.prepare(len, 1, 2).expect("an empty ring");
            pair.sender.commit(placed);
            prop_assert!(placed.span.offset % 8 == 0 && placed.span.offset + placed.span.len <= RING);
            prop_assert_eq!(pair.receiver.handle_message(placed.span.len), Ok(placed));
            let header = RecordHeader::decode(&header.encode());
            pair.receiver.handle_record(placed, &header).expect("honest");
            let front = pair.receiver.front().expect("due");
            prop_assert_eq!((front.span.len, front.ttl, front.tos), (len as u32, 1, 2));
            pair.receiver.take();
            pair.report();
        }
    }

    /// Neither end panics, whatever the other one says.
    #[test]
    fn anything_is_a_status_or_a_record(words in prop::collection::vec(any::<u64>(), 0..50), lens in prop::collection::vec((any::<u32>(), any::<[u8; 16]>()), 0..50)) {
        let mut pair = Pair::open();
        for word in words {
            let _ = pair.send(3);
            let _ = pair.sender.handle_status(word);
            while pair.sender.poll_returned().is_some() {}
        }
        for (len, header) in lens {
            let _ = pair.arrive((len % 1200, RecordHeader::decode(&header)));
            if pair.receiver.front().is_some() {
                pair.receiver.take();
            }
        }
    }
}
