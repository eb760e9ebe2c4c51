//! Conversations of several stacks in one run.

use std::sync::Arc;
use std::time::Duration;

use netacc_device::Instant;
use netacc_host::ProcessorConfig;
use netacc_modelled::HostConfig;
use netacc_rnic::network::{LinkConfig, SwitchConfig, Topology};
use netacc_rnic::NicConfig;
use netacc_rpc::{run_plain, Conversation, Outcome, RunConfig, StackConfig, Tcp};

/// Bits per second: a byte takes a nanosecond.
const LINE: u64 = 8_000_000_000;

fn ns(ns: u64) -> Duration {
    Duration::from_nanos(ns)
}

/// A host whose thread polls.
fn costs(system_call: u64) -> ProcessorConfig {
    ProcessorConfig {
        spin: Duration::MAX,
        library_call: ns(100).into(),
        system_call: ns(system_call).into(),
        ..ProcessorConfig::free()
    }
}

fn run(conversations: Vec<Conversation>) -> Outcome {
    let host = HostConfig { processor: Some(costs(400)), ..HostConfig::roce(NicConfig::ideal(LINE)) };
    let hosts = vec![host; 4];
    let stack = StackConfig::default();
    let config = RunConfig { hosts, conversations, stack, tcp: Tcp::Memory, sampled: false, traced: false };
    let link = LinkConfig::clean(LINE, ns(1_000));
    let topology = Topology::Star(link, SwitchConfig { buffer_bytes: 1 << 20, marking: None });
    let outcome = run_plain(&config, &topology, 0, Instant::from_nanos(1_000_000_000)).expect("devices have queues");
    let outcome = outcome.expect("the configuration makes sense").expect("no byte is wrong");
    assert!(outcome.complete);
    outcome
}

fn plan(client: u32, server: u32, promoted: bool) -> Conversation {
    Conversation { promoted, ..Conversation::closed(client, server, 64, 200, 50).expect("lengths above 0") }
}

// Breaks if one stack of a run changes the other one, whose hosts are others, or carries its bytes.
#[test]
fn each_stack_is_as_alone() {
    let alone = [plan(0, 1, true), plan(2, 3, false)].map(|plan| run(vec![plan]));
    let both = run(vec![plan(0, 1, true), plan(2, 3, false)]);
    for (conversation, alone) in alone.iter().enumerate() {
        assert_eq!(both.measured[conversation], alone.measured[0], "conversation {conversation}");
        assert_eq!(both.carried[conversation], alone.carried[0], "conversation {conversation}");
    }
    let [links, tcp] = [0, 1].map(|conversation| both.carried[conversation]);
    assert!(links.link_bytes == 50 * 264 && links.tcp_bytes == 0, "{links:?}");
    assert!(tcp.tcp_bytes == 50 * 264 && tcp.link_bytes == 0, "{tcp:?}");
}

// Breaks if a stack's own costs are those of its hosts, or are paid by the other one: an end of a request has three calls.
#[test]
fn each_stack_has_its_own_costs() {
    let dear = Conversation { costs: Some(Arc::new(costs(1_400))), ..plan(0, 1, false) };
    let busy = |plans: Vec<Conversation>| run(plans).usage[1].expect("it has processors").busy;
    let cheap = busy(vec![plan(0, 1, false)]);
    assert_eq!(busy(vec![dear.clone()]) - cheap, ns(50 * 3 * 1_000));
    // They are paid when the calls are made: to send, to read and answer, and to read.
    let first = |plan| run(vec![plan]).measured[0].latencies_ns[0];
    assert!(first(dear.clone()) - first(plan(0, 1, false)) >= 7 * 1_000);
    let link = busy(vec![plan(0, 1, true)]);
    // Two connections on one thread: a call that asks is for one of them, as before.
    assert_eq!(busy(vec![dear, plan(0, 1, true)]), link + cheap + ns(50 * 3 * 1_000));
}
