//! Conversations on the plain network.

use std::time::Duration;

use netacc_device::Instant;
use netacc_modelled::HostConfig;
use netacc_rnic::network::{LinkConfig, SwitchConfig, Topology};
use netacc_rnic::{Costs, NicConfig};
use netacc_rpc::{run_plain, Arrival, Conversation, Outcome, Pause, RunConfig, StackConfig, Tcp};

/// Bits per second: a byte takes a nanosecond.
const LINE: u64 = 8_000_000_000;

fn run(hosts: u32, costs: Costs, conversations: Vec<Conversation>, link: LinkConfig, seed: u64) -> Outcome {
    let nic = NicConfig { costs, retry_timeout: Duration::from_micros(200), ..NicConfig::ideal(LINE) };
    let hosts = vec![HostConfig::roce(nic); hosts as usize];
    let config = RunConfig {
        hosts,
        conversations,
        stack: StackConfig::default(),
        tcp: Tcp::Memory,
        sampled: false,
        traced: false,
    };
    let topology = Topology::Star(link, SwitchConfig { buffer_bytes: 1 << 20, marking: None });
    let most = Instant::from_nanos(10_000_000_000);
    let outcome = run_plain(&config, &topology, seed, most).expect("devices have queues");
    outcome.expect("the configuration makes sense").expect("no byte is wrong")
}

// Breaks if the core sends or waits for anything more than a request and its response: the time can be computed by hand.
#[test]
fn a_round_trip_takes_the_sum_of_its_parts() {
    let ns = Duration::from_nanos;
    let costs = Costs {
        doorbell: ns(100),
        request_fetch: ns(200),
        payload_fetch: ns(400),
        placement: ns(500),
        completion: ns(300),
        ..Costs::default()
    };
    let talk = Conversation::closed(0, 1, 64, 1000, 20).expect("lengths above 0");
    let outcome = run(2, costs, vec![talk], LinkConfig::clean(LINE, ns(1000)), 0);
    assert!(outcome.complete);
    // Two links, the switch stores and forwards; frame, RETH and immediate with each message.
    let way = |bytes: u64, fetch: u64| 100 + 200 + fetch + 2 * (82 + 16 + 4 + bytes + 1000) + 500 + 300;
    // The first request waits for the link.
    let (first, latencies) = outcome.measured[0].latencies_ns.split_first().expect("were answered");
    let usual = way(64, 400) + way(1000, 400);
    let exact = latencies.iter().filter(|l| **l == usual).count();
    assert!(exact >= 15, "{usual}: {latencies:?}");
    assert!(*first > 2 * usual, "{usual}: {first}");
    // Now and then an acknowledgement or a credit word is on the way of a message.
    assert!(latencies.iter().all(|l| (usual..usual + 500).contains(l)), "{usual}: {latencies:?}");
}

// Breaks if a request is lost, or answered with other bytes, on a network that loses, doubles and reorders; or if a run is
// not the one of its seed.
#[test]
fn a_bad_network_costs_time_and_nothing_else() {
    let talks: Vec<Conversation> =
        (1..6).filter_map(|client| Conversation::closed(client, 0, 3000, 20_000, 10)).collect();
    let link = LinkConfig {
        loss_ppm: 10_000,
        duplicate_ppm: 10_000,
        reorder_ppm: 10_000,
        reorder_delay: Duration::from_micros(5),
        ..LinkConfig::clean(LINE, Duration::from_micros(1))
    };
    let bad = run(6, Costs::default(), talks.clone(), link.clone(), 3);
    assert!(bad.complete && bad.measured.iter().all(|m| m.latencies_ns.len() == 10));
    assert_eq!(run(6, Costs::default(), talks.clone(), link.clone(), 3), bad);
    assert_ne!(run(6, Costs::default(), talks.clone(), link, 4).trace, bad.trace);
    let good = run(6, Costs::default(), talks, LinkConfig::clean(LINE, Duration::from_micros(1)), 3);
    assert!(good.complete && good.end < bad.end);
}

// Breaks if requests of an open loop are not made when they are due, their latency does not count from then, or some are
// never answered though the network keeps up.
#[test]
fn an_open_loop_is_served_when_it_is_due() {
    let us = Duration::from_micros;
    let base = Conversation::closed(0, 1, 64, 1000, 1).expect("lengths above 0");
    let end = Instant::from_nanos(2_000_000);
    let plan = |interval| Conversation {
        arrival: Arrival::Open { interval: Pause::Fixed(interval) },
        // By then the connection has long been promoted.
        start: Instant::from_nanos(1_000_000),
        until: Some(end),
        count: None,
        ..base.clone()
    };
    let link = LinkConfig::clean(LINE, Duration::from_nanos(1000));
    let slow = run(2, Costs::default(), vec![plan(us(20))], link.clone(), 0);
    assert!(slow.complete);
    let latencies = &slow.measured[0].latencies_ns;
    assert_eq!(latencies.len(), 50);
    // Two links each way, the switch stores and forwards.
    let usual = 2 * (102 + 64 + 1000) + 2 * (102 + 1000 + 1000);
    assert!(latencies.iter().all(|l| (usual..usual + 500).contains(l)), "{usual}: {latencies:?}");
    // A response occupies the link for 1102 ns and more: twice as many as it carries wait for each other.
    let late = run(2, Costs::default(), vec![plan(Duration::from_nanos(500))], link, 0);
    let latencies = &late.measured[0].latencies_ns;
    assert!(late.complete && latencies.len() == 2000);
    assert!(latencies[1999] > 900_000 && latencies[1999] > 10 * latencies[10], "{latencies:?}");
}

// Breaks if requests in flight on one connection are answered in another order or with other lengths, or a closed loop is
// no faster when it may have several unanswered.
#[test]
fn a_deeper_loop_carries_more() {
    let deep = |depth| {
        let base = Conversation::closed(0, 1, 64, 64, 200).expect("lengths above 0");
        let talk = Conversation { arrival: Arrival::Closed { depth, think: Pause::Fixed(Duration::ZERO) }, ..base };
        let outcome = run(2, Costs::default(), vec![talk], LinkConfig::clean(LINE, Duration::from_micros(10)), 0);
        assert!(outcome.complete && outcome.measured[0].latencies_ns.len() == 200);
        outcome.end.as_nanos()
    };
    assert!(deep(8) * 4 < deep(1));
}

// Breaks if connections beyond those that an acceptor sets up at a time are never promoted.
#[test]
fn thousands_of_connections_are_promoted() {
    let talks: Vec<Conversation> =
        (0..2500).filter_map(|number| Conversation::closed(1 + number % 5, 0, 64, 64, 2)).collect();
    let nic = NicConfig { costs: Costs::default(), ..NicConfig::ideal(LINE) };
    let stack = StackConfig { ring_bytes: 4096, message_bytes: 1024, ..StackConfig::default() };
    let hosts = vec![HostConfig::roce(nic); 6];
    let config = RunConfig { hosts, conversations: talks, stack, tcp: Tcp::Memory, sampled: false, traced: false };
    let topology = Topology::Star(
        LinkConfig::clean(LINE, Duration::from_micros(1)),
        SwitchConfig { buffer_bytes: 1 << 24, marking: None },
    );
    let most = Instant::from_nanos(10_000_000_000);
    let outcome = run_plain(&config, &topology, 0, most).expect("devices have queues");
    let outcome = outcome.expect("the configuration makes sense").expect("no byte is wrong");
    assert!(outcome.complete, "{}", outcome.measured.iter().filter(|m| m.latencies_ns.len() < 2).count());
}
