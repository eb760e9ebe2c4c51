//! Messages arrive once and in order, or the queue pair ends, under every fault of the network.

use std::time::Duration;

use netacc_device::CompletionStatus;
use netacc_rnic::network::{LinkConfig, Network, Topology};
use netacc_rnic::{Nic, NicConfig, NodeId, Packet, Recovery};
use proptest::prelude::*;

use crate::pair::{direct, Bench, BYTE_PER_NS};

fn config(recovery: Recovery) -> NicConfig {
    NicConfig {
        mtu_bytes: 256,
        ack_interval: 4,
        recovery,
        retry_timeout: Duration::from_micros(100),
        rnr_pause: Duration::from_micros(20),
        rnr_retry: None,
        max_in_flight: 32,
        ..NicConfig::ideal(BYTE_PER_NS)
    }
}

/// One direction's messages, and how the network treats them.
#[derive(Clone, Debug)]
struct Case {
    recovery: Recovery,
    link: LinkConfig,
    lens: [Vec<u32>; 2],
    receives_late: bool,
    retry_count: u8,
    seed: u64,
}

fn cases(worst_ppm: u32) -> impl Strategy<Value = Case> {
    let lens = || prop::collection::vec(prop_oneof![Just(0), 1u32..256, 256u32..5000], 0..20);
    let recovery = prop_oneof![Just(Recovery::GoBackN), Just(Recovery::SelectiveRepeat)];
    let ppm = move || prop_oneof![Just(0), 0..worst_ppm];
    let link = (ppm(), ppm(), ppm(), 0u64..20_000, 0u64..5000).prop_map(|(loss, twice, late, by, delay)| LinkConfig {
        rate_bps: BYTE_PER_NS,
        delay: Duration::from_nanos(delay),
        loss_ppm: loss,
        duplicate_ppm: twice,
        reorder_ppm: late,
        reorder_delay: Duration::from_nanos(by),
    });
    (recovery, link, lens(), lens(), any::<bool>(), any::<u64>()).prop_map(|(recovery, link, to, back, late, seed)| {
        Case { recovery, link, lens: [to, back], receives_late: late, retry_count: 7, seed }
    })
}

struct Outcome {
    complete: bool,
    failed: bool,
    trace: (u64, u64),
}

/// Runs a case; panics if a message is doubled, torn, out of order, or completes at its sender without having arrived.
fn run(case: &Case) -> Outcome {
    let config = NicConfig { retry_count: case.retry_count, ..config(case.recovery) };
    let mut bench = Bench::new(&Topology::Direct(case.link.clone()), vec![config; 2], case.seed);
    let ids = bench.connect(0, 1, 10);
    let post_receives = |bench: &mut Bench| {
        for (n, lens) in [(1, &case.lens[0]), (0, &case.lens[1])] {
            // One of them may have died meanwhile.
            let _ = bench.net.station_mut(n).post_recv(ids[n], lens.len() as u32, 0);
        }
    };
    if !case.receives_late {
        post_receives(&mut bench);
    }
    for (n, id) in ids.into_iter().enumerate() {
        for (i, len) in case.lens[n].iter().enumerate() {
            bench.write(n, id, 11 - n as u32, *len, i as u32);
        }
    }
    if case.receives_late {
        bench.run_until(Duration::from_micros(70));
        post_receives(&mut bench);
    }
    bench.run();
    let (mut complete, mut failed) = (true, false);
    for (from, to) in [(0, 1), (1, 0)] {
        let lens = &case.lens[from];
        let near = bench.seen.remove(&(from, ids[from])).unwrap_or_default();
        let far = bench.seen.get(&(to, ids[to]));
        let received: Vec<u32> = far.map_or(Vec::new(), |s| s.receives().iter().map(|r| r.1).collect());
        assert_eq!(received, (0..received.len() as u32).collect::<Vec<_>>(), "once and in order");
        for (i, len) in lens.iter().enumerate().take(received.len()) {
            let placed = far.and_then(|s| s.placed.get(&(i as u64))).copied().unwrap_or(0);
            assert_eq!(placed, *len, "message {i} came without its bytes");
        }
        let sends = near.sends();
        let done = sends.iter().filter(|s| s.2 == CompletionStatus::Success).count();
        assert!(done <= received.len(), "{done} succeeded, {} arrived", received.len());
        assert_eq!(sends.iter().map(|s| s.1).collect::<Vec<_>>(), (0..lens.len() as u64).collect::<Vec<_>>());
        complete &= done == lens.len() && received.len() == lens.len();
        failed |= near.disconnected().is_some();
        bench.seen.insert((from, ids[from]), near);
    }
    Outcome { complete, failed, trace: (bench.net.trace().value(), bench.net.trace().deliveries()) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    // Breaks if loss, repetition or lateness loses, doubles or reorders anything; if a queue pair that can recover does not;
    // or if any of it never ends.
    #[test]
    fn everything_arrives_once_and_in_order(case in cases(100_000)) {
        let outcome = run(&case);
        prop_assert!(outcome.complete && !outcome.failed);
    }

    // Breaks if a hopeless network makes a queue pair hang: each request completes or is flushed, whatever is lost.
    #[test]
    fn hopeless_networks_end_in_an_error(mut case in cases(900_000), retry_count in 0u8..4) {
        case.retry_count = retry_count;
        let outcome = run(&case);
        prop_assert!(outcome.complete != outcome.failed);
    }

    // Breaks if anything depends on more than the seed.
    #[test]
    fn a_seed_replays(case in cases(200_000)) {
        prop_assert_eq!(run(&case).trace, run(&case).trace);
    }

    // Breaks if a value in a packet panics, or harms a connection that the packet is not of.
    #[test]
    fn forged_packets_do_no_harm(words in prop::collection::vec(prop::array::uniform9(any::<u64>()), 1..50), plausible: bool) {
        let mut bench = Bench::new(&direct(100), vec![config(Recovery::SelectiveRepeat); 2], 0);
        let [a, b] = bench.connect(0, 1, 10);
        bench.post_recv(1, b, 1);
        bench.write(0, a, 11, 5000, 1);
        for mut w in words {
            w[0] = u64::from(w[0] as u32 % 3) << 32 | 1;
            w[1] = (u64::from(w[1] as u32 % 3) << 32) | ((w[1] >> 32) % 3);
            w[2] = ((w[2] >> 40) << 8) | (w[2] % 10);
            if plausible {
                (3..9).for_each(|i| w[i] %= 70);
            }
            let Some(packet) = Packet::from_words(&w) else { continue };
            let ours = packet.src == NodeId(0) && packet.src_qp == a && packet.dst_qp == b;
            if ours || matches!(packet.body, netacc_rnic::Body::Control { .. }) && packet.src == NodeId(0) {
                continue;
            }
            let now = bench.net.now();
            bench.net.station_mut(1).handle_packet(now, packet);
            bench.net.kick(1);
        }
        bench.run();
        prop_assert_eq!(bench.seen(1, b).receives().len(), 1);
        prop_assert_eq!(bench.seen(0, a).sends()[0].2, CompletionStatus::Success);
    }

    // Breaks if a value in a packet of the true peer panics.
    #[test]
    fn a_lying_peer_causes_no_panic(words in prop::collection::vec(prop::array::uniform9(0u64..40), 1..80), exact: bool) {
        let mut nic = Nic::new(NodeId(1), config(if exact { Recovery::SelectiveRepeat } else { Recovery::GoBackN }));
        let qp = nic.create_qp().expect("the table has room");
        nic.connect_qp(qp, NodeId(0), qp);
        nic.register(qp, netacc_device::RemoteKey(5), 0, 30);
        nic.post_recv(qp, 3, 10).expect("there is room");
        let mut net = Network::new(&direct(10), vec![nic, Nic::new(NodeId(0), config(Recovery::GoBackN))], 0);
        for mut w in words {
            let now = net.now();
            (w[0], w[1]) = (1, u64::from(qp.0) << 32 | u64::from(qp.0));
            w[2] = ((w[2] & 3) << 10) | (w[4] % 10) | ((w[3] & 7) << 9);
            let Some(packet) = Packet::from_words(&w) else { continue };
            net.station_mut(0).handle_packet(now, packet);
            while net.station_mut(0).poll_placement().is_some_and(|p| p.len > 0) {}
            net.station_mut(0).handle_timer(now + Duration::from_nanos(w[5]));
        }
    }
}
