//! Hosts with a device in software, and programs whose calls move one message each.

use std::time::Duration;

use netacc_device::Instant;
use netacc_host::ProcessorConfig;
use netacc_modelled::HostConfig;
use netacc_rnic::network::{LinkConfig, Topology};
use netacc_rnic::{Costs, Engines, NicConfig};
use netacc_rpc::{run_plain, Arrival, Calls, Conversation, Outcome, Pause, RunConfig, StackConfig, Tcp};

/// Bits per second: a byte takes a nanosecond.
const LINE: u64 = 8_000_000_000;
/// No request is made after that.
const LONGEST: Duration = Duration::from_millis(50);

fn ns(ns: u64) -> Duration {
    Duration::from_nanos(ns)
}

/// A device in software, or one in hardware with the same stages.
fn device(engines: Engines) -> NicConfig {
    let costs = Costs {
        doorbell: ns(10_000),
        transmit_packet: ns(4_000),
        receive_packet: ns(5_000),
        completion: ns(2_000),
        ..Costs::default()
    };
    NicConfig { engines, costs, ..NicConfig::ideal(LINE) }
}

fn processor(cores: u32, library_call: u64) -> ProcessorConfig {
    ProcessorConfig { cores, spin: Duration::MAX, library_call: ns(library_call).into(), ..ProcessorConfig::free() }
}

/// One client with so many requests of 64 bytes in flight, which are answered with as many, for [`LONGEST`].
fn run(nic: &NicConfig, processor: &ProcessorConfig, depth: u32, calls: Calls) -> Outcome {
    let host = HostConfig { processor: Some(processor.clone()), ..HostConfig::roce(nic.clone()) };
    let talk = Conversation::closed(0, 1, 64, 64, 1).expect("lengths above 0");
    let arrival = Arrival::Closed { depth, think: Pause::Fixed(Duration::ZERO) };
    let until = Some(Instant::ZERO + LONGEST);
    let config = RunConfig {
        hosts: vec![host; 2],
        conversations: vec![Conversation { arrival, calls, until, count: None, ..talk }],
        stack: StackConfig::default(),
        tcp: Tcp::Memory,
        sampled: false,
        traced: false,
    };
    let topology = Topology::Direct(LinkConfig::clean(LINE, ns(500)));
    let outcome = run_plain(&config, &topology, 0, Instant::from_nanos(100_000_000_000)).expect("devices have queues");
    let outcome = outcome.expect("the configuration makes sense").expect("no byte is wrong");
    assert!(outcome.complete);
    outcome
}

/// How long the processors of both ends were busy.
fn busy(outcome: &Outcome) -> [Duration; 2] {
    [0, 1].map(|host| outcome.usage[host].expect("the hosts have processors").busy)
}

// Breaks if a call moves a second message, or one is left unread: each request costs both ends a call to ask, one to read and one to
// write, and joined requests share them.
#[test]
fn a_single_call_moves_one_message() {
    let of = |calls| {
        let outcome = run(&device(Engines::Separate), &processor(1, 100), 16, calls);
        busy(&outcome).map(|busy| busy.as_nanos() as u64 / outcome.measured[0].latencies_ns.len() as u64)
    };
    let [joined, single] = [Calls::Joined, Calls::Single].map(of);
    assert!(single.iter().all(|busy| (300..310).contains(busy)), "{single:?}");
    assert!(joined.iter().all(|busy| *busy < 150), "{joined:?}");
}

// Breaks if programs and the device of a host with one core work side by side: then calls that take less time than the device change
// no rate. With another core they do.
#[test]
fn one_core_is_the_device_s_too() {
    const CALL: u64 = 3_000;
    let between = |cores, call| {
        let outcome = run(&device(Engines::Shared), &processor(cores, call), 16, Calls::Single);
        LONGEST.as_nanos() as u64 / outcome.measured[0].latencies_ns.len() as u64
    };
    let [one, two] = [1, 2].map(|cores| between(cores, CALL).abs_diff(between(cores, 0)));
    let calls = 3 * CALL;
    assert!(one.abs_diff(calls) < calls / 20, "{one}, not {calls}");
    assert!(two < calls / 20, "{two} of {calls}");
}

// Breaks if the device's work is not counted as that of the host's core.
#[test]
fn the_device_s_work_is_that_of_the_core() {
    let of = |engines| {
        let outcome = run(&device(engines), &processor(1, 100), 1, Calls::Joined);
        busy(&outcome)[0].as_nanos() as u64 / outcome.measured[0].latencies_ns.len() as u64
    };
    let [separate, shared] = [Engines::Separate, Engines::Shared].map(of);
    // Of each request: a post, its packet, the packet that brings the answer, and its completion.
    assert!(shared >= separate + 10_000 + 4_000 + 5_000 + 2_000, "{shared}, {separate}");
}
