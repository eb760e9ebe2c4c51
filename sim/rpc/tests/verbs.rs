//! Conversations by verbs, by closed forms.

use std::time::Duration;

use netacc_device::Instant;
use netacc_modelled::HostConfig;
use netacc_rnic::network::{LinkConfig, Topology};
use netacc_rnic::{Costs, NicConfig};
use netacc_rpc::{run_plain, Arrival, Conversation, Outcome, Pause, RunConfig, StackConfig, Tcp, Transport, Verb};

/// Bits per second: a byte takes a nanosecond.
const LINE: u64 = 8_000_000_000;
const DELAY_NS: u64 = 1_000;

fn ns(ns: u64) -> Duration {
    Duration::from_nanos(ns)
}

fn costs() -> Costs {
    Costs {
        doorbell: ns(100),
        request_fetch: ns(200),
        payload_fetch: ns(400),
        transmit_packet: ns(20),
        receive_packet: ns(30),
        placement: ns(500),
        completion: ns(300),
        ..Costs::default()
    }
}

fn run(verb: Verb, answered: bool, loss_ppm: u32, plan: Conversation) -> Outcome {
    let nic = NicConfig { costs: costs(), retry_timeout: ns(200_000), ..NicConfig::ideal(LINE) };
    let conversations = vec![Conversation { transport: Transport::Verbs { verb, answered }, ..plan }];
    let hosts = vec![HostConfig::roce(nic); 2];
    let stack = StackConfig::default();
    let config = RunConfig { hosts, conversations, stack, tcp: Tcp::Memory, sampled: false, traced: false };
    let link = LinkConfig { loss_ppm, ..LinkConfig::clean(LINE, ns(DELAY_NS)) };
    let most = Instant::from_nanos(1_000_000_000);
    let outcome = run_plain(&config, &Topology::Direct(link), 1, most).expect("devices have queues");
    outcome.expect("the configuration makes sense").expect("no byte is wrong")
}

fn plan(request: u32, response: u32, count: u32) -> Conversation {
    Conversation::closed(0, 1, request, response, count).expect("lengths above 0")
}

/// One way of a message of one packet until it is in the peer's memory. 82 bytes of frame, 16 of a write.
fn way(bytes: u64, header: u64) -> u64 {
    let fetch = if bytes > 96 { 400 } else { 0 };
    100 + 200 + fetch + 20 + (82 + header + bytes + DELAY_NS) + 30 + 500
}

// Breaks if a way of a message leaves out a part or takes one twice: a writer's peer polls memory, a sender's a completion queue.
#[test]
fn a_round_trip_takes_the_sum_of_its_parts() {
    for (verb, header, completion) in [(Verb::Write, 16, 0), (Verb::Send, 0, 300)] {
        let outcome = run(verb, true, 0, plan(64, 1000, 200));
        assert!(outcome.complete, "{verb:?}");
        let expected = way(64, header) + way(1000, header) + 2 * completion;
        let latencies = &outcome.measured[0].latencies_ns;
        // An acknowledgement may be on the wire before the first one.
        assert!(latencies.iter().all(|took| *took == expected), "{verb:?}: {expected}, {latencies:?}");
        assert_eq!(outcome.carried[0].link_bytes, 200 * 1064);
        assert_eq!(outcome.connections_now, 0);
    }
}

// Breaks if a write of several packets is taken for more messages, or a message counts before its last byte.
#[test]
fn long_messages_arrive_whole() {
    let outcome = run(Verb::Write, true, 0, plan(10_000, 10_000, 20));
    let packets = 82 + 16 + 4096 + 82 + 4096;
    let expected = 2 * (way(10_000 - 8192, 0) + packets);
    let latencies = &outcome.measured[0].latencies_ns;
    assert!(outcome.complete && latencies.len() == 20);
    assert!(latencies.iter().all(|took| (expected..expected + 400).contains(took)), "{expected}, {latencies:?}");
}

// Breaks if writes without answers wait for each other: eight at a time fill the link.
#[test]
fn many_writes_fill_the_link() {
    let arrival = Arrival::Closed { depth: 8, think: Pause::Fixed(Duration::ZERO) };
    let outcome = run(Verb::Write, false, 0, Conversation { arrival, ..plan(4096, 1, 1_000) });
    let wire = 1_000 * (4096 + 82 + 16);
    // By Little's law; the last ones wait for fewer.
    let took = outcome.measured[0].latencies_ns.iter().sum::<u64>() / 8;
    assert!(outcome.complete && (wire * 99 / 100..wire * 101 / 100).contains(&took), "{wire} ns of packets, {took} ns");
    assert_eq!(outcome.measured[0].latencies_ns.len(), 1_000);
}

// Breaks if more requests than a send queue has room for are lost, or a lossy network loses or repeats one for its program.
#[test]
fn nothing_is_lost() {
    let arrival = Arrival::Closed { depth: 200, think: Pause::Fixed(Duration::ZERO) };
    for (verb, answered) in [(Verb::Write, false), (Verb::Write, true), (Verb::Send, false)] {
        let outcome = run(verb, answered, 10_000, Conversation { arrival: arrival.clone(), ..plan(3_000, 500, 2_000) });
        assert!(outcome.complete, "{verb:?}, answered {answered}");
        assert_eq!(outcome.measured[0].latencies_ns.len(), 2_000);
    }
}
