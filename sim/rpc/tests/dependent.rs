//! Requests that wait for others: steps of collective operations, by closed forms.

use std::time::Duration;

use netacc_device::Instant;
use netacc_modelled::HostConfig;
use netacc_rnic::network::{LinkConfig, SwitchConfig, Topology};
use netacc_rnic::NicConfig;
use netacc_rpc::{run_plain, Arrival, Conversation, Dependent, Outcome, Received, RunConfig, StackConfig, Tcp};

/// Bits per second: a byte takes a nanosecond.
const LINE: u64 = 8_000_000_000;
const DELAY_NS: u64 = 1_000;
const START_NS: u64 = 1_000_000;

fn message(bytes: u32, after: Vec<Received>) -> Dependent {
    Dependent { request_bytes: bytes, response_bytes: 1, after }
}

fn received(conversation: u32, requests: u64) -> Received {
    Received { conversation, requests }
}

/// Links are made before they are used.
fn talk(client: u32, server: u32, messages: Vec<Dependent>) -> Conversation {
    let base = Conversation::closed(client, server, 1, 1, 1).expect("lengths above 0");
    Conversation { arrival: Arrival::After(messages), count: None, start: Instant::from_nanos(START_NS), ..base }
}

fn run(hosts: u32, conversations: Vec<Conversation>) -> Option<Outcome> {
    let config = RunConfig {
        hosts: vec![HostConfig::roce(NicConfig::ideal(LINE)); hosts as usize],
        conversations,
        stack: StackConfig::default(),
        tcp: Tcp::Memory,
        sampled: false,
        traced: false,
    };
    let link = LinkConfig::clean(LINE, Duration::from_nanos(DELAY_NS));
    let topology = Topology::Star(link, SwitchConfig { buffer_bytes: 1 << 20, marking: None });
    let most = Instant::from_nanos(20_000_000);
    run_plain(&config, &topology, 1, most).expect("devices have queues").map(|run| run.expect("no byte is wrong"))
}

/// One way through the switch, which stores and forwards: frame, RETH and immediate with each message.
fn way_ns(bytes: u64) -> u64 {
    2 * (82 + 16 + 4 + bytes + DELAY_NS)
}

/// Four hosts in a ring, each step waits for that of the host before.
fn ring(steps: u64, bytes: u32) -> Vec<Conversation> {
    let before = |host: u32, step| Vec::from_iter((step > 0).then(|| received((host + 3) % 4, step)));
    let messages = |host| (0..steps).map(move |step| message(bytes, before(host, step)));
    (0..4).map(|host| talk(host, (host + 1) % 4, messages(host).collect())).collect()
}

// Breaks if steps do not wait for each other, or for more than that: for answers, for example.
#[test]
fn steps_of_a_ring_follow_each_other() {
    let outcome = run(4, ring(6, 1000)).expect("it makes sense");
    assert!(outcome.complete);
    assert!(outcome.measured.iter().all(|m| m.latencies_ns.len() == 6));
    let took = (outcome.end - Instant::from_nanos(START_NS)).as_nanos() as u64;
    let steps = 6 * way_ns(1000);
    // The answer to the last; and answers and acknowledgements are on the way of each message.
    assert!((steps..steps + way_ns(1) + 6 * 600).contains(&took), "{took}, {steps} for the steps");
}

// Breaks if a request that waits for several went with the first of them, or waited for ever.
#[test]
fn a_request_waits_for_all_that_it_depends_on() {
    let up = |host, bytes| talk(host, 0, vec![message(bytes, Vec::new())]);
    let down = talk(0, 3, vec![message(100, vec![received(0, 1), received(1, 1)])]);
    let outcome = run(4, vec![up(1, 100), up(2, 50_000), down]).expect("it makes sense");
    assert!(outcome.complete);
    let took = (outcome.end - Instant::from_nanos(START_NS)).as_nanos() as u64;
    assert!(took > 50_000 + way_ns(100), "{took}");
    // Its latency begins when the last of them has come.
    let latency = outcome.measured[2].latencies_ns[0];
    assert!((way_ns(100) + way_ns(1)..way_ns(100) + way_ns(1) + 600).contains(&latency), "{latency}");
}

// Breaks if requests that wait for each other were taken for a run that is over.
#[test]
fn a_circle_is_never_complete() {
    let on = |conversation| vec![message(10, vec![received(conversation, 1)])];
    let outcome = run(2, vec![talk(0, 1, on(1)), talk(1, 0, on(0))]).expect("it makes sense");
    assert!(!outcome.complete && outcome.measured.iter().all(|m| m.latencies_ns.is_empty()));
}

#[test]
fn a_conversation_that_does_not_exist_is_refused() {
    assert_eq!(run(2, vec![talk(0, 1, vec![message(10, vec![received(1, 1)])])]), None);
}
