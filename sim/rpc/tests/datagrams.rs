//! Conversations by datagrams, by closed forms.

use std::time::Duration;

use netacc_device::Instant;
use netacc_host::ProcessorConfig;
use netacc_modelled::{HostConfig, Interrupts};
use netacc_parameters::Distribution;
use netacc_rnic::network::{LinkConfig, Topology};
use netacc_rnic::NicConfig;
use netacc_rpc::{run_plain, Arrival, Conversation, Outcome, Pause, Run, RunConfig, StackConfig, Tcp, Transport};

/// Bits per second: a byte takes a nanosecond.
const LINE: u64 = 8_000_000_000;
const DELAY_NS: u64 = 1_000;
/// Of a datagram's frame beside its payload.
const FRAME_NS: u64 = 66;

fn ns(ns: u64) -> Duration {
    Duration::from_nanos(ns)
}

/// A host whose thread polls: a call 300 ns, a segment 700, a copied byte half a nanosecond.
fn kernel() -> ProcessorConfig {
    ProcessorConfig {
        spin: Duration::MAX,
        system_call: ns(300).into(),
        segment: ns(700).into(),
        copy_per_kib: ns(512).into(),
        ..ProcessorConfig::free()
    }
}

/// The same with a thread of the stack, which does the work of segments.
fn bypass(segment: u64) -> ProcessorConfig {
    ProcessorConfig { stack_thread: true, segment: ns(segment).into(), ..kernel() }
}

/// One flow from the first host to the second, for a millisecond of sending.
fn run(
    processors: [Option<ProcessorConfig>; 2],
    answered: bool,
    conversation: Conversation,
    loss_ppm: u32,
) -> (Outcome, u64) {
    let host = HostConfig::roce(NicConfig::ideal(LINE));
    let interrupts = Interrupts { delay: ns(2_000), interval: Duration::ZERO };
    let hosts = processors.map(|processor| HostConfig { processor, interrupts, ..host.clone() }).into();
    let conversation = Conversation {
        transport: Transport::Datagrams { answered },
        count: None,
        until: Some(Instant::from_nanos(1_000_000)),
        ..conversation
    };
    let conversations = vec![conversation];
    let stack = StackConfig::default();
    let config = RunConfig { hosts, conversations, stack, tcp: Tcp::Memory, sampled: false, traced: false };
    let link = LinkConfig { loss_ppm, ..LinkConfig::clean(LINE, ns(DELAY_NS)) };
    let outcome = run_plain(&config, &Topology::Direct(link), 3, Instant::from_nanos(100_000_000_000));
    let outcome = outcome.expect("devices have queues").expect("it makes sense").expect("no byte is wrong");
    assert!(outcome.complete);
    let lost = outcome.lost[0];
    (outcome, lost)
}

fn closed(bytes: u32) -> Conversation {
    Conversation::closed(0, 1, bytes, bytes, 1).expect("lengths above 0")
}

fn latencies(outcome: &Outcome) -> &[u64] {
    &outcome.measured[0].latencies_ns
}

/// Calls, segments and copies of a datagram of 200 bytes, once.
const WORK_NS: u64 = 300 + 700 + 100;

// Breaks if a part of the way is left out, or taken twice: an exchange of two datagrams on idle hosts.
#[test]
fn an_answer_takes_the_sum_of_the_way() {
    let (outcome, lost) = run([Some(kernel()), Some(kernel())], true, closed(200), 0);
    let way = 2_000 + DELAY_NS + 200 + FRAME_NS;
    // The client's send and the server's two calls, and the client's receive.
    let expected = 4 * WORK_NS + 2 * way;
    assert!(latencies(&outcome).len() > 50);
    assert!(
        latencies(&outcome).iter().all(|ns| *ns == expected),
        "{:?}, expected {expected}",
        &latencies(&outcome)[..3]
    );
    assert_eq!(lost, 0);
    // The stack's thread does the work of segments, one when a datagram goes and one when it comes.
    let (outcome, _) = run([Some(bypass(700)), Some(bypass(700))], true, closed(200), 0);
    assert!(
        latencies(&outcome).iter().all(|ns| *ns == expected),
        "{:?}, expected {expected}",
        &latencies(&outcome)[..3]
    );
}

/// The number of datagrams of 200 bytes that are taken in a millisecond of sending as fast as calls return.
fn taken(sender: ProcessorConfig, receiver: ProcessorConfig) -> (f64, u64) {
    let (outcome, lost) = run([Some(sender), Some(receiver)], false, closed(200), 0);
    (latencies(&outcome).len() as f64, lost)
}

// Breaks if the slowest of a pipeline's stages does not limit it, or another one does: the sender's thread, the stack's, the link.
#[test]
fn the_slowest_stage_limits_a_stream_of_datagrams() {
    let fast = || ProcessorConfig { system_call: ns(10).into(), segment: ns(20).into(), ..bypass(20) };
    for (sender, stage_ns) in [
        (kernel(), WORK_NS),
        // A call and a copy take 400 ns; the stack's thread works beside it.
        (bypass(100), 400),
        (bypass(900), 900),
        // The line's 266 ns.
        (ProcessorConfig { copy_per_kib: Distribution::ZERO, ..fast() }, 200 + FRAME_NS),
    ] {
        let (count, lost) = taken(sender, ProcessorConfig { copy_per_kib: Distribution::ZERO, ..fast() });
        // Those that leave when the time to send is over are taken later: as many as a full queue.
        let expected = 1_000_000.0 / stage_ns as f64;
        assert!(count >= expected * 0.99 && count <= expected * 1.01 + 260.0, "{count}, expected {expected}");
        assert_eq!(lost, 0);
    }
}

// Breaks if a receiver that is too slow takes more than it can, or what it drops is not counted.
#[test]
fn a_slow_receiver_loses_the_rest() {
    let sender = ProcessorConfig { system_call: ns(400).into(), copy_per_kib: Distribution::ZERO, ..bypass(10) };
    let receiver = ProcessorConfig { datagram_queue: 8, ..kernel() };
    let (count, lost) = taken(sender, receiver);
    let (sent, expected) = (1_000_000.0 / 400.0, 1_000_000.0 / WORK_NS as f64);
    assert!((count - expected).abs() < 20.0, "{count}, expected {expected}");
    assert!((count + lost as f64 - sent).abs() <= 2.0, "{count} and {lost} lost of {sent}");
}

// Breaks if a lost datagram ends a closed loop, or is counted as answered.
#[test]
fn a_client_goes_on_after_a_loss() {
    let hosts = || [Some(kernel()), Some(kernel())];
    let many = Conversation { arrival: Arrival::Open { interval: Pause::Fixed(ns(10_000)) }, ..closed(200) };
    let (outcome, lost) = run(hosts(), true, many, 100_000);
    assert_eq!(latencies(&outcome).len() as u64 + lost, 100);
    assert!((8..=32).contains(&lost), "{lost} of 100, where 19 are expected");
    let (outcome, lost) = run(hosts(), true, closed(200), 1_000_000);
    assert_eq!((latencies(&outcome).len(), lost), (0, 1));
}

// Breaks if hosts without costs send without end, or not at the line's rate.
#[test]
fn free_hosts_send_at_the_rate_of_the_line() {
    let (outcome, lost) = run([None, None], false, closed(934), 0);
    let count = latencies(&outcome).len();
    assert!((1_000..=1_000 + 258).contains(&count), "{count}");
    assert_eq!(lost, 0);
}

// Breaks if a plan that has both short connections and datagrams is taken.
#[test]
fn short_connections_have_no_datagrams() {
    let requests_per_connection = std::num::NonZeroU32::new(1);
    let transport = Transport::Datagrams { answered: true };
    let conversations = vec![Conversation { transport, requests_per_connection, ..closed(10) }];
    let hosts = vec![HostConfig::roce(NicConfig::ideal(LINE)); 2];
    let stack = StackConfig::default();
    let config = RunConfig { hosts, conversations, stack, tcp: Tcp::Memory, sampled: false, traced: false };
    assert!(Run::new(&config).expect("devices have queues").is_none());
}

// Breaks if a datagram that wakes its receiver takes no more of the sender's time, or comes later.
#[test]
fn a_datagram_that_wakes_keeps_its_sender() {
    let used = |waker: u64| {
        let client = ProcessorConfig { waker: ns(waker).into(), ..kernel() };
        let server = ProcessorConfig { spin: Duration::ZERO, wake_up: ns(4_000).into(), ..client.clone() };
        let think = Pause::Fixed(ns(50_000));
        let lazy = Conversation { arrival: Arrival::Closed { depth: 1, think }, ..closed(200) };
        let (outcome, _) = run([Some(client), Some(server)], true, lazy, 0);
        let usage = [0, 1].map(|host| outcome.usage[host].expect("both have processors"));
        (latencies(&outcome).to_vec(), usage)
    };
    let ((free, before), (waking, after)) = (used(0), used(3_000));
    assert_eq!((waking, after[1]), (free, before[1]));
    assert!(after[1].wake_ups > 10, "{after:?}");
    assert_eq!(after[0].busy - before[0].busy, ns(3_000) * after[1].wake_ups as u32);
}
