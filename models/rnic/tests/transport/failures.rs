//! How queue pairs end: who learns of it, with what, and when.

use std::time::Duration;

use netacc_device::{CompletionStatus, Instant, RemoteKey, WorkRequestId};
use netacc_rnic::network::{LinkConfig, Topology};
use netacc_rnic::{Body, ControlEvent, Costs, NakReason, NicConfig, NodeId, Recovery, SendRequest, Verb};

use crate::pair::{direct, Bench, BYTE_PER_NS};

fn config() -> NicConfig {
    NicConfig {
        mtu_bytes: 1000,
        retry_timeout: Duration::from_micros(100),
        retry_count: 3,
        rnr_pause: Duration::from_micros(50),
        rnr_retry: Some(2),
        ..NicConfig::ideal(BYTE_PER_NS)
    }
}

// Breaks if a cut cable is noticed at another time than after 1 + retry_count timeouts, or flushes look alike.
#[test]
fn retries_end_in_an_error_then_flushes() {
    for recovery in [Recovery::GoBackN, Recovery::SelectiveRepeat] {
        let mut bench = Bench::new(&direct(100), vec![NicConfig { recovery, ..config() }; 2], 0);
        let [a, b] = bench.connect(0, 1, 10);
        bench.post_recv(1, b, 2);
        bench.net.set_cut(0, true);
        bench.write(0, a, 11, 3000, 1);
        bench.write(0, a, 11, 3000, 2);
        bench.run();
        let end = 4 * 100_000;
        let expected = [(end, 1, CompletionStatus::RetryExceeded), (end, 2, CompletionStatus::Flushed)];
        assert_eq!(bench.seen(0, a).sends(), expected);
        assert_eq!(bench.seen(0, a).disconnected(), Some(end));
        assert_eq!(bench.net.station(0).counters().timeouts, 3);
    }
}

// Breaks if a cable that is repaired in time is not enough.
#[test]
fn a_repaired_cable_is_forgiven() {
    let mut bench = Bench::new(&direct(100), vec![config(); 2], 0);
    let [a, b] = bench.connect(0, 1, 10);
    bench.post_recv(1, b, 1);
    bench.net.set_cut(0, true);
    bench.write(0, a, 11, 3000, 1);
    bench.run_until(Duration::from_micros(250));
    bench.net.set_cut(0, false);
    bench.run();
    assert_eq!(bench.seen(0, a).sends()[0].2, CompletionStatus::Success);
    assert_eq!(bench.seen(0, a).disconnected(), None);
}

// Breaks if a message without a receive is not tried again after the pause, with the pauses counted.
#[test]
fn receiver_not_ready_is_retried_then_fails() {
    for recovery in [Recovery::GoBackN, Recovery::SelectiveRepeat] {
        let mut bench = Bench::new(&direct(0), vec![NicConfig { recovery, ..config() }; 2], 0);
        let [a, b] = bench.connect(0, 1, 10);
        bench.write(0, a, 11, 0, 1);
        bench.run_until(Duration::from_micros(75));
        assert_eq!(bench.net.station(1).counters().not_ready_sent, 2);
        bench.post_recv(1, b, 1);
        bench.run();
        assert_eq!(bench.seen(0, a).sends()[0].2, CompletionStatus::Success, "{recovery:?}");
        bench.write(0, a, 11, 0, 2);
        bench.run();
        let (_, id, status) = bench.seen(0, a).sends()[1];
        assert_eq!((id, status), (2, CompletionStatus::Other(13)));
        assert_eq!(bench.net.station(1).counters().not_ready_sent, 2 + 3);
        assert!(bench.seen(1, b).disconnected().is_some());
    }
}

// Breaks if an empty receive queue is forgiven where it must not be.
#[test]
fn an_empty_receive_queue_can_be_fatal() {
    let mut bench = Bench::new(&direct(0), vec![NicConfig { no_receive_is_fatal: true, ..config() }; 2], 0);
    let [a, b] = bench.connect(0, 1, 10);
    bench.write(0, a, 11, 0, 1);
    bench.run();
    assert_eq!(bench.seen(0, a).sends()[0].2, CompletionStatus::RemoteError);
    assert!(bench.seen(0, a).disconnected().is_some() && bench.seen(1, b).disconnected().is_some());
}

// Breaks if a write outside the region, under another queue pair's key, or one key too far is placed.
#[test]
fn writes_outside_are_refused() {
    for rkey in [12, 21] {
        let mut bench = Bench::new(&direct(0), vec![config(); 2], 0);
        let [a, b] = bench.connect(0, 1, 10);
        let [_, other] = bench.connect(0, 1, 20);
        bench.post_recv(1, b, 1);
        bench.write(0, a, rkey, 8, 1);
        bench.run();
        assert_eq!(bench.seen(0, a).sends()[0].2, CompletionStatus::RemoteError);
        assert!(bench.seen(1, b).placed.is_empty() && !bench.seen.contains_key(&(1, other)));
    }
}

// Breaks if the peer of a queue pair that was destroyed gets no datagram, or gets it before packets in flight arrived; also with
// the first disconnect lost.
#[test]
fn the_peer_is_notified() {
    for lost in [false, true] {
        let mut bench = Bench::new(&direct(100), vec![config(); 2], 0);
        let [a, b] = bench.connect(0, 1, 10);
        bench.post_recv(1, b, 1);
        bench.write(0, a, 11, 8, 1);
        bench.run();
        let now = bench.net.now();
        bench.net.set_cut(0, lost);
        bench.net.station_mut(0).destroy_qp(now, a);
        bench.net.kick(0);
        bench.run_until(Duration::from_nanos(now.as_nanos()) + Duration::from_micros(50));
        bench.net.set_cut(0, false);
        assert_eq!(bench.seen(1, b).disconnected().is_some(), !lost);
        bench.run();
        assert_eq!(bench.seen(1, b).receives().len(), 1);
        assert!(bench.seen(1, b).disconnected().is_some());
        assert!(bench.net.station_mut(1).post_recv(b, 1, 0).is_err());
    }
}

// Breaks if a late packet of a connection that is gone reaches the queue pair that has its place now.
#[test]
fn a_reused_slot_is_another_queue_pair() {
    let mut bench = Bench::new(&direct(10_000), vec![NicConfig { max_queue_pairs: 1, ..config() }; 2], 0);
    let [a, b] = bench.connect(0, 1, 10);
    bench.post_recv(1, b, 1);
    bench.write(0, a, 11, 8, 1);
    let now = bench.net.now();
    bench.net.station_mut(1).destroy_qp(now, b);
    let again = bench.net.station_mut(1).create_qp().expect("the place is free");
    assert_ne!(again, b);
    assert!(bench.net.station_mut(1).connect_qp(again, NodeId(0), a));
    bench.net.station_mut(1).post_recv(again, 1, 0).expect("it is connected");
    bench.run();
    assert!(!bench.seen.contains_key(&(1, again)));
}

// Breaks if a datagram that the network doubles is delivered twice, or one that it loses not at all.
#[test]
fn datagrams_come_once() {
    let link =
        LinkConfig { loss_ppm: 300_000, duplicate_ppm: 500_000, ..LinkConfig::clean(BYTE_PER_NS, Duration::ZERO) };
    let mut bench = Bench::new(&Topology::Direct(link), vec![NicConfig { retry_count: 100, ..config() }; 2], 3);
    for token in 0..50 {
        assert!(bench.net.station_mut(0).send_control(Instant::ZERO, NodeId(1), token));
    }
    bench.net.kick(0);
    bench.run();
    let mut tokens = Vec::new();
    while let Some(ControlEvent::Received { from: NodeId(0), token }) = bench.net.station_mut(1).poll_control() {
        tokens.push(token);
    }
    tokens.sort_unstable();
    assert_eq!(tokens, (0..50).collect::<Vec<_>>());
    assert_eq!(bench.net.station_mut(0).poll_control(), None);
}

// Breaks if a datagram to a node that does not exist is not given up, or its sender gets no event.
#[test]
fn datagrams_are_given_up() {
    let mut bench = Bench::new(&direct(0), vec![config(); 2], 0);
    bench.net.set_cut(0, true);
    assert!(bench.net.station_mut(0).send_control(Instant::ZERO, NodeId(1), 9));
    bench.net.kick(0);
    bench.run();
    let given_up = ControlEvent::GivenUp { to: NodeId(1), token: 9 };
    assert_eq!(bench.net.station_mut(0).poll_control(), Some(given_up));
}

// Breaks if a completion overtakes one before it, its own way to memory being shorter.
#[test]
fn completions_keep_their_order() {
    let costs = Costs { placement: Duration::from_micros(50), ..Costs::default() };
    let mut bench = Bench::new(&direct(0), vec![NicConfig { costs, ..config() }; 2], 0);
    let [a, b] = bench.connect(0, 1, 10);
    bench.post_recv(1, b, 1);
    bench.write(0, a, 11, 8, 1);
    bench.run_until(Duration::from_micros(1));
    let now = bench.net.now();
    bench.net.station_mut(1).fail_qp(now, b);
    bench.net.kick(1);
    bench.run();
    let seen = bench.seen(1, b);
    assert_eq!(seen.receives().len(), 1);
    assert!(seen.disconnected() >= Some(seen.receives()[0].0) && seen.completions.len() == 2);
    assert!(seen.disconnected() > Some(50_000));
}

// Breaks if what was kept is not acknowledged once the gap is filled by a packet that was merely late, and asks for nothing.
#[test]
fn a_late_packet_brings_the_acknowledgement() {
    let selective = NicConfig { recovery: Recovery::SelectiveRepeat, ..config() };
    let mut bench = Bench::new(&direct(0), vec![selective; 2], 0);
    let [a, b] = bench.connect(0, 1, 10);
    bench.post_recv(1, b, 1);
    // Packets are taken from the port by hand, and handed over in the wrong order.
    let request = SendRequest {
        id: WorkRequestId(0),
        verb: Verb::Write { rkey: RemoteKey(11), remote: 0, imm: Some(1) },
        len: 2000,
        inline: false,
        signaled: true,
    };
    let nic = bench.net.station_mut(0);
    nic.post_send(Instant::ZERO, a, request).expect("there is room");
    let packets = [nic.poll_transmit(Instant::ZERO), nic.poll_transmit(Instant::ZERO)].map(|p| p.expect("two packets"));
    let peer = bench.net.station_mut(1);
    peer.handle_packet(Instant::ZERO, packets[1]);
    peer.handle_packet(Instant::ZERO, packets[0]);
    let answers = [peer.poll_transmit(Instant::ZERO), peer.poll_transmit(Instant::ZERO)].map(|p| p.map(|p| p.body));
    let nak = Body::Nak { expected: 0, reason: NakReason::Sequence { kept: Some(1) } };
    assert_eq!(answers, [Some(nak), Some(Body::Ack { expected: 2 })]);
}
