//! Connections that are made, used and closed while the run goes on.

use std::num::NonZeroU32;
use std::time::Duration;

use netacc_device::Instant;
use netacc_host::ProcessorConfig;
use netacc_modelled::HostConfig;
use netacc_rnic::network::{LinkConfig, Topology};
use netacc_rnic::{CommandTimes, NicConfig};
use netacc_rpc::{run_plain, Arrival, Conversation, Outcome, Pause, RunConfig, StackConfig, Tcp};

/// Bits per second: a byte takes a nanosecond.
const LINE: u64 = 8_000_000_000;

fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// Two hosts, with processors where nothing is promoted, as nothing else takes time there.
fn run(promote: bool, conversations: Vec<Conversation>) -> Outcome {
    let costs = ProcessorConfig {
        system_call: us(1).into(),
        connection: us(10).into(),
        spin: Duration::MAX,
        ..ProcessorConfig::free()
    };
    let processor = (!promote).then_some(costs);
    run_on(HostConfig { processor, ..HostConfig::roce(NicConfig::ideal(LINE)) }, promote, conversations)
}

/// Two such hosts.
fn run_on(host: HostConfig, promote: bool, conversations: Vec<Conversation>) -> Outcome {
    let conversations = conversations.into_iter().map(|plan| Conversation { promoted: promote, ..plan }).collect();
    let config = RunConfig {
        hosts: vec![host; 2],
        conversations,
        stack: StackConfig::default(),
        tcp: Tcp::Memory,
        sampled: true,
        traced: false,
    };
    let topology = Topology::Direct(LinkConfig::clean(LINE, us(1)));
    let outcome = run_plain(&config, &topology, 0, Instant::from_nanos(10_000_000_000)).expect("devices have queues");
    outcome.expect("the configuration makes sense").expect("no byte is wrong")
}

fn visits(requests: u32, count: u64, arrival: Arrival) -> Conversation {
    let base = Conversation::closed(0, 1, 64, 200, 1).expect("lengths above 0");
    Conversation { requests_per_connection: NonZeroU32::new(requests), count: Some(count), arrival, ..base }
}

fn one_after_the_other() -> Arrival {
    Arrival::Closed { depth: 1, think: Pause::Fixed(Duration::ZERO) }
}

// Breaks if a connection asks more or less than it should, is not closed, or its number is not free again.
#[test]
fn connections_come_and_go() {
    for promote in [false, true] {
        let outcome = run(promote, vec![visits(3, 50, one_after_the_other())]);
        assert!(outcome.complete);
        assert_eq!(outcome.measured[0].latencies_ns.len(), 150);
        assert_eq!(outcome.connections.len(), 50);
        for (one, next) in outcome.connections.iter().zip(&outcome.connections[1..]) {
            assert!((one.answered, one.failed, one.promoted) == (3, false, promote), "{one:?}");
            assert!(one.connected.is_some_and(|at| one.begun <= at && at <= one.end) && one.end <= next.begun);
        }
        // The last may not have had the time: when everything is answered the run is over.
        assert!(outcome.connections_now <= 1, "{}", outcome.connections_now);
        let carried = outcome.carried[0];
        let [used, unused] =
            if promote { [carried.link_bytes, carried.tcp_bytes] } else { [carried.tcp_bytes, carried.link_bytes] };
        assert_eq!((used, unused), (150 * 264, 0));
    }
}

// Breaks if the cost of connecting is paid never, with each request, or by one end alone.
#[test]
fn connecting_costs_once_at_each_end() {
    for requests in [1, 4] {
        let outcome = run(false, vec![visits(requests, 1, one_after_the_other())]);
        let [connection] = outcome.connections[..] else { panic!("{:?}", outcome.connections) };
        // The client waits and writes; the server waits, reads and writes, and so does the client until its last answer.
        let calls = 2 + 3 * u64::from(requests) + 3 * u64::from(requests - 1) + 2;
        assert_eq!(connection.end.saturating_since(connection.begun), us(calls + 2 * 10), "{requests}");
    }
}

// Breaks if each short connection makes a link of its own, though an unused one is left.
#[test]
fn links_are_used_again() {
    let outcome = run(true, vec![visits(2, 100, one_after_the_other())]);
    let set_up = outcome.set_up;
    assert!(outcome.complete && set_up.promoted == 100 && set_up.asked == 100, "{set_up:?}");
    // The next one may begin before the link of the last is free. A link is made for it then, unless the other one becomes
    // free first.
    assert!(set_up.links_made <= 3 && set_up.links_made + set_up.links_reused >= 100, "{set_up:?}");
}

// Breaks if connections of an open loop wait for others to be closed, or are counted from when they could be made.
#[test]
fn an_open_loop_connects_when_it_is_due() {
    let every = |interval| Arrival::Open { interval: Pause::Fixed(interval) };
    for promote in [false, true] {
        // Each takes far longer than the pause before the next.
        let outcome = run(promote, vec![visits(20, 40, every(us(2)))]);
        assert!(outcome.complete && outcome.connections.len() == 40);
        let mut begun: Vec<u64> = outcome.connections.iter().map(|c| c.begun.as_nanos()).collect();
        begun.sort_unstable();
        assert_eq!(begun, (1..=40).map(|n| n * 2_000).collect::<Vec<u64>>());
        assert!(outcome.connections.iter().all(|c| c.end.saturating_since(c.begun) > us(20)));
    }
}

// Breaks if a run depends on anything but its configuration, also where lasting and short connections share hosts.
#[test]
fn a_run_is_the_same_twice() {
    let lasting = Conversation::closed(1, 0, 500, 500, 200).expect("lengths above 0");
    let open = Arrival::Open { interval: Pause::Exponential(us(10)) };
    for promote in [false, true] {
        let plans = || vec![visits(2, 60, open.clone()), lasting.clone(), visits(1, 60, one_after_the_other())];
        let first = run(promote, plans());
        assert!(first.complete && first.connections.len() == 120 && first.measured[1].latencies_ns.len() == 200);
        assert_eq!(run(promote, plans()), first);
    }
}

// Breaks if devices and helper threads that take their time hold up more than links, let a connection ask that has the number of
// another one before it, or make a run depend on anything but its configuration.
#[test]
fn closing_a_connection_before_its_link_exists_is_harmless() {
    let commands = CommandTimes {
        create_queue_pair: us(200),
        connect_queue_pair: us(600),
        destroy_queue_pair: us(100),
        register_memory: us(50),
        register_per_mib: us(200),
        deregister_memory: us(30),
    };
    let processor = ProcessorConfig {
        cores: 1,
        link: us(20).into(),
        promotion: us(25).into(),
        wake_up: us(3).into(),
        system_call: us(1).into(),
        ..ProcessorConfig::free()
    };
    let nic = NicConfig { commands, ..NicConfig::ideal(LINE) };
    let host = HostConfig { processor: Some(processor), ..HostConfig::roce(nic) };
    let lasting = Conversation::closed(1, 0, 500, 500, 200).expect("lengths above 0");
    let open = Arrival::Open { interval: Pause::Exponential(us(300)) };
    let plans = || vec![visits(2, 200, open.clone()), lasting.clone(), visits(1, 60, one_after_the_other())];
    let first = run_on(host.clone(), true, plans());
    assert!(first.complete && first.connections.len() == 260 && first.connections.iter().all(|c| !c.failed));
    assert_eq!(first.set_up.links_failed, 0, "{:?}", first.set_up);
    // In memory connections talk on links only, so all of them have had one, in the end.
    assert!(first.set_up.promoted >= 261, "{:?}", first.set_up);
    assert_eq!(run_on(host, true, plans()), first);
}

// Breaks if a plan is run that makes no sense.
#[test]
fn a_recorded_load_has_no_short_connections() {
    let plan = visits(1, 1, Arrival::Trace(Vec::new()));
    let host = HostConfig::roce(NicConfig::ideal(LINE));
    let config = RunConfig {
        hosts: vec![host; 2],
        conversations: vec![plan],
        stack: StackConfig::default(),
        tcp: Tcp::Memory,
        sampled: false,
        traced: false,
    };
    let topology = Topology::Direct(LinkConfig::clean(LINE, us(1)));
    assert_eq!(run_plain(&config, &topology, 0, Instant::ZERO).expect("devices have queues"), None);
}
