//! The stages of messages add up to the latencies, and each is the modelled cost that it is named after.

use std::time::Duration;

use netacc_device::Instant;
use netacc_host::{LoopKind, ProcessorConfig};
use netacc_modelled::HostConfig;
use netacc_rnic::network::{LinkConfig, Topology};
use netacc_rnic::NicConfig;
use netacc_rpc::{run_plain, Arrival, Conversation, Outcome, Pause, RunConfig, StackConfig, Tcp, TracedMessage};
use netacc_trace::stage::Stage;

/// Bits per second: a byte takes a nanosecond.
const LINE: u64 = 8_000_000_000;
const DELAY_NS: u64 = 1_000;
const SERVICE_NS: u64 = 10_000;

fn ns(ns: u64) -> Duration {
    Duration::from_nanos(ns)
}

fn processor(spin: Duration, loop_kind: LoopKind) -> ProcessorConfig {
    ProcessorConfig {
        cores: 1,
        spin,
        wake_up: ns(5_000).into(),
        library_call: ns(100).into(),
        post: ns(40).into(),
        copy_per_kib: ns(512).into(),
        loop_kind,
        ..ProcessorConfig::free()
    }
}

/// Clients on one host with such processors ask a server on another one.
fn run(clients: usize, processor: &ProcessorConfig) -> Outcome {
    let talk = Conversation::closed(0, 1, 64, 200, 100).expect("lengths above 0");
    let talk = Conversation { service: ns(SERVICE_NS), ..talk };
    run_talk(clients, processor, NicConfig::ideal(LINE), &talk)
}

fn run_talk(clients: usize, processor: &ProcessorConfig, nic: NicConfig, talk: &Conversation) -> Outcome {
    let host = HostConfig { processor: Some(processor.clone()), ..HostConfig::roce(nic) };
    let config = RunConfig {
        hosts: vec![host.clone(), host],
        conversations: vec![talk.clone(); clients],
        stack: StackConfig::default(),
        tcp: Tcp::Memory,
        sampled: false,
        traced: true,
    };
    let topology = Topology::Direct(LinkConfig::clean(LINE, ns(DELAY_NS)));
    let outcome = run_plain(&config, &topology, 0, Instant::from_nanos(100_000_000_000)).expect("devices have queues");
    let outcome = outcome.expect("the configuration makes sense").expect("no byte is wrong");
    assert!(outcome.complete);
    outcome
}

/// A request and its answer, of the only conversation, in the middle of the run.
fn exchange(outcome: &Outcome) -> (TracedMessage, TracedMessage) {
    let [requests, answers] = [true, false].map(|is_request| {
        let of = outcome.messages.iter().filter(move |message| message.is_request == is_request);
        of.copied().collect::<Vec<_>>()
    });
    assert_eq!((requests.len(), answers.len()), (100, 100));
    (requests[50], answers[50])
}

fn end(message: &TracedMessage) -> u64 {
    message.begun.as_nanos() + message.stages.total()
}

fn durations(message: &TracedMessage) -> Vec<(Stage, u64)> {
    let all = Stage::ALL.into_iter().map(|stage| (stage, message.stages.get(stage)));
    all.filter(|(_, duration)| *duration > 0).collect()
}

#[test]
fn processes_that_poll() {
    let outcome = run(1, &processor(Duration::MAX, LoopKind::Turns));
    let (request, answer) = exchange(&outcome);
    assert!(request.on_link && request.bytes == 64 && answer.bytes == 200);
    let wire = request.stages.get(Stage::Wire);
    // A round trip on the wire has both messages, and the delays.
    assert!(wire > DELAY_NS + 64 && wire < DELAY_NS + 400, "{wire} ns");
    // The server waits by one call, and reads by another.
    let read = 2 * 100 + 32;
    let expected = [(Stage::Call, 100), (Stage::Copy, 32), (Stage::Post, 40), (Stage::Wire, wire), (Stage::Read, read)];
    assert_eq!(durations(&request), expected);
    assert_eq!((answer.stages.get(Stage::Call), answer.stages.get(Stage::Copy)), (100, 100));
    assert_eq!(answer.begun.as_nanos() - end(&request), SERVICE_NS);
}

// Breaks if a part of a latency is in no stage, or in two: a request is measured from its post on.
#[test]
fn the_stages_add_up_to_the_latency() {
    for spin in [Duration::MAX, Duration::ZERO] {
        let outcome = run(1, &processor(spin, LoopKind::Turns));
        let (request, answer) = exchange(&outcome);
        let before = [Stage::Call, Stage::Copy, Stage::Post].map(|stage| request.stages.get(stage));
        let posted = request.begun.as_nanos() + before.iter().sum::<u64>();
        let after_the_answer = 100 + 32 + 40;
        let latency = outcome.measured[0].latencies_ns[50];
        assert_eq!(end(&answer) + after_the_answer - posted, latency);
    }
}

#[test]
fn processes_that_sleep() {
    let (request, answer) = exchange(&run(1, &processor(Duration::ZERO, LoopKind::Turns)));
    for message in [request, answer] {
        assert_eq!(message.stages.get(Stage::Wake), 5_000);
        assert_eq!(message.stages.get(Stage::Completion), 0);
    }
}

// Breaks if waiting for a busy server is not seen: it works on one request at a time.
#[test]
fn a_busy_server() {
    let outcome = run(8, &processor(Duration::MAX, LoopKind::Turns));
    let waits = outcome.messages.iter().filter(|message| message.is_request);
    let waits: Vec<u64> =
        waits.map(|message| message.stages.get(Stage::Completion) + message.stages.get(Stage::Ready)).collect();
    let mean = waits.iter().sum::<u64>() / waits.len() as u64;
    assert!((6 * SERVICE_NS..8 * SERVICE_NS).contains(&mean), "{mean} ns");
}

// Breaks if the time is lost in which the driver holds messages back, until earlier ones are complete.
#[test]
fn more_messages_than_are_answered() {
    let held = |interval: Duration| {
        let talk = Conversation::closed(0, 1, 64, 200, 100).expect("lengths above 0");
        let talk = Conversation { arrival: Arrival::Open { interval: Pause::Fixed(interval) }, ..talk };
        let processor = processor(Duration::MAX, LoopKind::Turns);
        let outcome = run_talk(1, &processor, NicConfig::ideal(LINE), &talk);
        let requests = outcome.messages.into_iter().filter(|message| message.is_request);
        let requests: Vec<TracedMessage> = requests.collect();
        assert!(requests.windows(2).all(|two| end(&two[0]) <= end(&two[1])), "{requests:?}");
        requests.iter().map(|message| message.stages.get(Stage::Held)).max()
    };
    assert_eq!(held(ns(20_000)), Some(0));
    let longest = held(ns(300)).expect("there are messages");
    assert!(longest > DELAY_NS, "{longest} ns");
}
