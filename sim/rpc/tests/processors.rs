//! Processors bound the answers of a server by closed forms.

use std::num::NonZeroU32;
use std::time::Duration;

use netacc_device::Instant;
use netacc_host::{LoopKind, ProcessorConfig, Usage};
use netacc_modelled::HostConfig;
use netacc_rnic::network::{LinkConfig, SwitchConfig, Topology};
use netacc_rnic::{CommandTimes, NicConfig};
use netacc_rpc::{run_plain, Arrival, Conversation, Outcome, Pause, RunConfig, StackConfig, Tcp};

/// Bits per second: a byte takes a nanosecond.
const LINE: u64 = 8_000_000_000;
const DELAY_NS: u64 = 1_000;
const SERVICE: Duration = Duration::from_micros(10);

fn ns(ns: u64) -> Duration {
    Duration::from_nanos(ns)
}

/// A server's processors, which always poll.
fn polling() -> ProcessorConfig {
    ProcessorConfig {
        cores: 1,
        spin: Duration::MAX,
        wake_up: ns(5_000).into(),
        library_call: ns(100).into(),
        system_call: ns(400).into(),
        copy_per_kib: ns(512).into(),
        segment: ns(700).into(),
        segment_size_bytes: 1_000,
        ..ProcessorConfig::free()
    }
}

/// Two hosts, the second one with these processors: how it went.
fn run(processor: Option<ProcessorConfig>, promote: bool, conversations: Vec<Conversation>) -> Outcome {
    run_on(vec![None, processor], promote, conversations)
}

/// As [`run`], on so many hosts.
fn run_on(processors: Vec<Option<ProcessorConfig>>, promote: bool, conversations: Vec<Conversation>) -> Outcome {
    let host = HostConfig::roce(NicConfig::ideal(LINE));
    let hosts = processors.into_iter().map(|processor| HostConfig { processor, ..host.clone() }).collect();
    run_hosts(hosts, promote, conversations)
}

fn run_hosts(hosts: Vec<HostConfig>, promote: bool, conversations: Vec<Conversation>) -> Outcome {
    let conversations = conversations.into_iter().map(|plan| Conversation { promoted: promote, ..plan }).collect();
    let config = RunConfig {
        hosts,
        conversations,
        stack: StackConfig::default(),
        tcp: Tcp::Memory,
        sampled: false,
        traced: false,
    };
    let link = LinkConfig::clean(LINE, ns(DELAY_NS));
    let topology = match config.hosts.len() {
        2 => Topology::Direct(link),
        _ => Topology::Star(link, SwitchConfig { buffer_bytes: 1 << 20, marking: None }),
    };
    let outcome = run_plain(&config, &topology, 0, Instant::from_nanos(100_000_000_000)).expect("devices have queues");
    let outcome = outcome.expect("the configuration makes sense").expect("no byte is wrong");
    assert!(outcome.complete);
    outcome
}

fn talks(count: usize, requests: u32) -> Vec<Conversation> {
    let talk = Conversation::closed(0, 1, 64, 200, requests).expect("lengths above 0");
    vec![Conversation { service: SERVICE, ..talk }; count]
}

fn median(outcome: &Outcome, conversation: usize) -> u64 {
    let mut all = outcome.measured[conversation].latencies_ns.clone();
    all.sort_unstable();
    all[all.len() / 2]
}

/// The cost of a request of 64 bytes with a response of 200 on a link: waiting, reading, writing, copying, and the service.
fn cost_on_a_link() -> u64 {
    3 * 100 + (64 + 200) / 2 + 10_000
}

// Breaks if a core does more than one thing at a time, idles while requests wait, or a part of the work is free: eight clients
// that ask again at once have to wait for eight times the cost, so one core answers one over its cost.
#[test]
fn a_core_answers_one_over_its_cost() {
    for (cores, threads, at_once) in [(1, 1, 1), (2, 2, 2), (1, 4, 1), (2, 8, 2), (0, 4, 4)] {
        let outcome = run(Some(ProcessorConfig { cores, threads, ..polling() }), true, talks(8, 100));
        for conversation in 0..8 {
            let expected = 8 * cost_on_a_link() / at_once;
            assert_eq!(median(&outcome, conversation), expected, "{cores} cores, {threads} threads");
        }
        let usage = outcome.usage[1].expect("the server has processors");
        assert_eq!(usage.busy, ns(800 * cost_on_a_link()));
    }
}

// Breaks if a loop that serves all that are ready asks for each connection, reads or writes for nothing, or loses one: a request costs a
// call to read and one to write, and each round one call more.
#[test]
fn a_round_asks_once() {
    let processor = ProcessorConfig { loop_kind: LoopKind::Batches, ..polling() };
    let outcome = run(Some(processor), true, talks(8, 100));
    let busy = outcome.usage[1].expect("the server has processors").busy.as_nanos() as u64;
    let asking = busy - 800 * (cost_on_a_link() - 100);
    assert_eq!(asking % 100, 0, "{busy}");
    assert!((100..700).contains(&(asking / 100)), "{} rounds for 800 requests", asking / 100);
}

// Breaks if a client that defers its writes asks once for a request, as one that reads and writes at once does, or if the call that asks
// is free, or not counted: alone on its connection it asks for the answer, and then for room.
#[test]
fn a_deferred_write_asks_again() {
    let used = |loop_kind| {
        let client = ProcessorConfig { loop_kind, ..polling() };
        run_on(vec![Some(client), Some(polling())], true, talks(1, 100)).usage[0].expect("the client has processors")
    };
    let [at_once, deferred] = [LoopKind::Batches, LoopKind::Deferred].map(used);
    // Rounds that move nothing, while the stream goes onto its link, cost nothing.
    assert!((100..=103).contains(&(deferred.asks - at_once.asks)), "{} and {}", deferred.asks, at_once.asks);
    assert_eq!(deferred.busy - at_once.busy, ns(100 * 100));
}

// Breaks if a client found what comes on links in the order in which it comes, as it finds what the kernel has; or if its own work for an
// answer came between its writes, as it did. It writes to all connections of the round before at once, faster than the server answers, so
// that the server finds many of the requests together. With the former it asked for nearly each of them alone, with the latter 10,000
// times.
#[test]
fn a_server_finds_requests_on_links_together() {
    let client = ProcessorConfig { loop_kind: LoopKind::Deferred, ..polling() };
    let server = ProcessorConfig { loop_kind: LoopKind::Batches, ..polling() };
    let (service, client_service) = (ns(1_000), ns(1_200));
    let talks = talks(200, 100).into_iter().map(|talk| Conversation { service, client_service, ..talk }).collect();
    let outcome = run_on(vec![Some(client), Some(server)], true, talks);
    let asks = outcome.usage[1].expect("the server has processors").asks;
    assert!(asks < 2_000, "{asks} asks for 20,000 requests");
}

// Breaks if a client that defers its writes does its own work for an answer before the request's time ends, or not at all.
#[test]
fn a_deferred_client_works_after_the_answer() {
    let client_service = ns(3_000);
    let used = |loop_kind, client_service| {
        let client = ProcessorConfig { loop_kind, ..polling() };
        let talks = talks(1, 100).into_iter().map(|talk| Conversation { client_service, ..talk }).collect();
        let outcome = run_on(vec![Some(client), Some(polling())], true, talks);
        (median(&outcome, 0), outcome.usage[0].expect("the client has processors").busy)
    };
    for (loop_kind, later) in [(LoopKind::Batches, 3_000), (LoopKind::Deferred, 0)] {
        let ((free, idle), (latency, busy)) = (used(loop_kind, Duration::ZERO), used(loop_kind, client_service));
        assert_eq!(latency, free + later, "{loop_kind:?}");
        assert_eq!(busy - idle, 100 * client_service, "{loop_kind:?}");
    }
}

// Breaks if work after a write delays the bytes, is free, or is the server's: alone on its connection the client has nothing else to do.
#[test]
fn work_after_a_write_delays_nothing() {
    let used = |after: u64| {
        let plans = |talk| Conversation { client_after_write: ns(after), ..talk };
        let outcome =
            run_on(vec![Some(polling()), Some(polling())], true, talks(1, 50).into_iter().map(plans).collect());
        (median(&outcome, 0), [0, 1].map(|host| outcome.usage[host].expect("both have processors").busy))
    };
    let ((free, before), (latency, after)) = (used(0), used(2_000));
    assert_eq!((latency, after), (free, [before[0] + 50 * ns(2_000), before[1]]));
}

// Breaks if a round's own work is free, the other end's, or paid for each connection of the round.
#[test]
fn a_round_has_work_of_its_own() {
    let used = |connections, round_service, client_round_service| {
        let processor = ProcessorConfig { loop_kind: LoopKind::Batches, ..polling() };
        let plans = |talk| Conversation { round_service, client_round_service, ..talk };
        let talks = talks(connections, 100).into_iter().map(plans).collect();
        let outcome = run_on(vec![Some(processor.clone()), Some(processor)], true, talks);
        [0, 1].map(|host| outcome.usage[host].expect("both have processors").busy)
    };
    let (free, own) = (Duration::ZERO, ns(2_000));
    let [client, server] = used(1, free, free);
    assert_eq!(used(1, own, free), [client, server + 100 * own]);
    // In its last round the client takes an answer, and makes no request.
    assert_eq!(used(1, free, own)[1], server);
    assert!((100..=101).contains(&((used(1, free, own)[0] - client).as_nanos() / own.as_nanos())));
    let shared = used(8, own, free)[1] - used(8, free, free)[1];
    assert!(shared < 400 * own, "{shared:?} for 800 requests");
}

// Breaks if states beyond the caches cost nothing, those within them something, or a closed connection goes on displacing others.
#[test]
fn displaced_states_take_their_time() {
    let processor = ProcessorConfig { cold: ns(4_000).into(), warm_connections: 2, ..polling() };
    let busy = |talks: Vec<Conversation>| {
        let count = talks.len() as u32;
        let outcome = run(Some(processor.clone()), true, talks);
        let busy = outcome.usage[1].expect("the server has processors").busy.as_nanos() as u64;
        (busy - u64::from(count) * 100 * cost_on_a_link()) / (u64::from(count) * 100)
    };
    assert_eq!([1, 2, 4, 8].map(|count| busy(talks(count, 100))), [0, 0, 2_000, 3_000]);
    let own = Conversation { cold_service: ns(1_000), client_cold_service: ns(50_000), ..talks(1, 100).remove(0) };
    assert_eq!(busy(vec![own; 4]), 2_500);
    // One after the other: at most two at a time, as the server may close one late.
    let short = Conversation { requests_per_connection: NonZeroU32::new(1), ..talks(1, 100).remove(0) };
    let took = |cold: u64| {
        let processor = ProcessorConfig { cold: ns(cold).into(), ..processor.clone() };
        run(Some(processor), false, vec![short.clone()]).usage[1].expect("it has processors").busy
    };
    assert_eq!(took(4_000), took(0));
}

// Breaks if a client's own work is free, or that of others.
#[test]
fn a_clients_work_takes_its_time() {
    let client_service = ns(3_000);
    let plans = |talk: Conversation| Conversation { client_service, ..talk };
    let busy = |talks| {
        let outcome = run_on(vec![Some(polling()), Some(polling())], true, talks);
        [0, 1].map(|host| outcome.usage[host].expect("both have processors").busy)
    };
    let [without, with] = [busy(talks(2, 50)), busy(talks(2, 50).into_iter().map(plans).collect())];
    assert_eq!(with, [without[0] + ns(100 * 3_000), without[1]]);
}

// Breaks if requests wait for anything but their turn: with Poisson arrivals the mean wait is that of M/D/1.
#[test]
fn poisson_requests_wait_as_md1() {
    let mean = |outcome: &Outcome| {
        let all: Vec<u64> = outcome.measured.iter().flat_map(|m| m.latencies_ns.clone()).collect();
        all.iter().sum::<u64>() as f64 / all.len() as f64
    };
    let unloaded = median(&run(Some(polling()), true, talks(1, 100)), 0) as f64;
    let cost = cost_on_a_link() as f64;
    for load in [0.4, 0.7] {
        // Many connections, so that hardly ever two requests of one wait at a time: those would be answered together.
        let interval = Pause::Exponential(ns((300.0 * cost / load) as u64));
        let open = |(seed, talk): (usize, Conversation)| Conversation {
            arrival: Arrival::Open { interval },
            seed: seed as u64 + 1,
            // When all connections are on their links; then as long as everybody asks.
            start: Instant::from_nanos(2_000_000),
            until: Some(Instant::from_nanos(2_000_000) + ns((40_000.0 * cost / load) as u64)),
            count: None,
            ..talk
        };
        let talks = talks(300, 0).into_iter().enumerate().map(open).collect();
        let waited = mean(&run(Some(polling()), true, talks)) - unloaded;
        let expected = load / (1.0 - load) * cost / 2.0;
        assert!((waited / expected - 1.0).abs() < 0.08, "load {load}: {waited} ns for {expected}");
    }
}

// Breaks if a server that sleeps answers as fast as one that polls, polling counts as work, or a sleep takes no core's time.
#[test]
fn sleeping_costs_a_wake_up_a_call_and_time() {
    let pause = Pause::Fixed(Duration::from_micros(100));
    let lazy = |talk| Conversation { arrival: Arrival::Closed { depth: 1, think: pause }, ..talk };
    let talks = || talks(1, 50).into_iter().map(lazy).collect::<Vec<_>>();
    let awake = run(Some(polling()), true, talks());
    let lazily = ProcessorConfig { spin: Duration::ZERO, sleep: ns(700).into(), ..polling() };
    let asleep = run(Some(lazily), true, talks());
    // The wake-up contains the part of a sleep that delays the thread.
    assert_eq!(median(&asleep, 0), median(&awake, 0) + 5_000 + 400);
    let [awake, asleep] = [awake, asleep].map(|o| o.usage[1].expect("the server has processors"));
    assert_eq!((awake.wake_ups, asleep.polling), (0, Duration::ZERO));
    assert!(asleep.wake_ups >= 49 && awake.polling > ns(49 * 100_000), "{awake:?} {asleep:?}");
    assert_eq!(asleep.busy, awake.busy + ns((400 + 700) * asleep.wake_ups));
}

// Breaks if a write that wakes the other end takes no time of its thread, delays the bytes that it has sent, or takes time although the
// other end is awake. A client that still wakes the server when its answer is there takes it when that is done.
#[test]
fn a_write_that_wakes_keeps_its_thread() {
    let pause = Pause::Fixed(Duration::from_micros(200));
    let used = |waker: u64, sleeper: usize| {
        let processor = |host| {
            let spin = if host == sleeper { Duration::ZERO } else { Duration::MAX };
            Some(ProcessorConfig { spin, waker: ns(waker).into(), ..polling() })
        };
        let lazy = |talk| Conversation { arrival: Arrival::Closed { depth: 1, think: pause }, ..talk };
        let outcome = run_on(vec![processor(0), processor(1)], true, talks(1, 50).into_iter().map(lazy).collect());
        (median(&outcome, 0), [0, 1].map(|host| outcome.usage[host].expect("both have processors")))
    };
    for sleeper in [0, 1] {
        let ((free, before), (latency, after)) = (used(0, sleeper), used(3_000, sleeper));
        assert_eq!(latency, free, "{sleeper} sleeps");
        assert_eq!(after[sleeper].busy, before[sleeper].busy, "nobody sleeps whom it could wake");
        let waking = (after[1 - sleeper].busy - before[1 - sleeper].busy).as_nanos() as u64;
        assert_eq!(waking % 3_000, 0);
        // A client also wakes by itself, at the end of its pause.
        assert!((49..=after[sleeper].wake_ups).contains(&(waking / 3_000)), "{waking} ns for {after:?}");
    }
    assert_eq!(used(70_000, 1).0 - used(60_000, 1).0, 10_000);
}

// Breaks if a stream on TCP costs no more than one on a link: system calls and the kernel's work for segments.
#[test]
fn tcp_costs_the_kernels_work() {
    let large = |talk| Conversation { response: netacc_rpc::Sizes::fixed(4_900).expect("above 0"), ..talk };
    let talks = || talks(1, 20).into_iter().map(large).collect::<Vec<_>>();
    // In memory TCP takes no time, so only the server's time remains.
    let free = run(None, false, talks());
    let paid = run(Some(polling()), false, talks());
    let bytes = 64 + 4_900;
    assert_eq!(median(&free, 0), 0);
    // One segment of the request and five of the response, although 4,964 bytes would fit into five.
    assert_eq!(median(&paid, 0), 3 * 400 + bytes / 2 + 6 * 700 + 10_000);
    assert_eq!(free.usage[1], None);
    assert_eq!(paid.usage[1].map(|u: Usage| u.busy), Some(ns(20 * median(&paid, 0))));
}

// Breaks if the owner of the network does not get the deadline of the other end of a connection in memory; or
// if a client's own time is not part of its latencies.
#[test]
fn both_ends_take_their_time() {
    let both = run_on(vec![Some(polling()), Some(polling())], false, talks(1, 30));
    let server = run(Some(polling()), false, talks(1, 30));
    assert!(median(&both, 0) > median(&server, 0), "{both:?}");
    let [client, server] = [0, 1].map(|host| both.usage[host].expect("both have processors"));
    assert!(client.busy > Duration::ZERO && server.busy > client.busy, "{client:?} {server:?}");
}

/// A helper thread whose work for a link is longer than anything else here.
fn helping(cores: u32) -> ProcessorConfig {
    ProcessorConfig { cores, link: ns(300_000).into(), promotion: ns(40_000).into(), ..polling() }
}

// Breaks if making links in the background takes no time of a processor, another one's, or some of it twice: each link and each
// stream that goes onto it is paid once at each end, and a helper that has nothing to do sleeps.
#[test]
fn each_link_takes_the_helpers_time_at_each_end() {
    for count in [1, 8] {
        let without = run_on(vec![Some(polling()), Some(polling())], true, talks(count, 100));
        let with = run_on(vec![Some(helping(1)), Some(helping(1))], true, talks(count, 100));
        assert_eq!((with.set_up.links_made, with.set_up.promoted), (count as u64, count as u64));
        for host in 0..2 {
            let [without, with] = [&without, &with].map(|o| o.usage[host].expect("both have processors"));
            assert_eq!(without.wake_ups, 0, "workers poll");
            assert!(with.wake_ups > 0, "the helper slept before its first task");
            let helped = ns(count as u64 * (300_000 + 40_000) + with.wake_ups * 400);
            assert_eq!(with.busy, without.busy + helped, "{count} links, host {host}");
        }
    }
}

// Breaks if links are made beside the application where it needs the same core, or slow it where there is another one.
#[test]
fn making_links_slows_the_application_on_one_core() {
    // One connection that lasts, and after a while another one, which is promoted when it is made.
    let late = Arrival::Open { interval: Pause::Fixed(ns(3_000_000)) };
    let visit = Conversation {
        requests_per_connection: NonZeroU32::new(1),
        count: Some(1),
        arrival: late,
        ..Conversation::closed(2, 1, 64, 200, 1).expect("lengths above 0")
    };
    let plans = || [talks(1, 300), vec![visit.clone()]].concat();
    for (cores, slowed) in [(1, true), (2, false)] {
        let outcome = run_on(vec![None, Some(helping(cores)), None], true, plans());
        assert_eq!((outcome.set_up.links_made, outcome.set_up.links_failed), (2, 0));
        let usual = median(&outcome, 0);
        // The first request has waited for its own link.
        let longest = outcome.measured[0].latencies_ns.iter().skip(1).max().copied().unwrap_or_default();
        // The request that finds the helper at work came at most one round after that began.
        let waited = longest - usual;
        let range = if slowed { 300_000 - usual..300_001 } else { 0..2_000 };
        assert!(range.contains(&waited), "{cores} cores: {waited} ns, usually {usual} ns");
    }
}

// Breaks if links that were made before a run take time in it, or links that are made in it take none.
#[test]
fn links_made_before_the_run_take_no_time() {
    let us = Duration::from_micros;
    let nic = NicConfig {
        commands: CommandTimes { create_queue_pair: us(500), ..CommandTimes::default() },
        ..NicConfig::ideal(LINE)
    };
    let run = |commands_from| {
        let host = HostConfig { processor: Some(helping(1)), commands_from, ..HostConfig::roce(nic.clone()) };
        run_hosts(vec![host; 2], true, talks(4, 100))
    };
    let (within, before) = (run(Instant::ZERO), run(Instant::from_nanos(1_000_000)));
    for host in 0..2 {
        let [within, before] = [&within, &before].map(|o| o.usage[host].expect("both have processors"));
        // Only the sleep between its tasks is left of them.
        let left = |usage: Usage| usage.busy - ns(usage.wake_ups * 400);
        assert_eq!(left(within), left(before) + ns(4 * (300_000 + 40_000)), "host {host}");
    }
    // The queue pairs of one end and then of the other, one after the other.
    let earlier = within.end.saturating_since(before.end);
    assert!(earlier >= us(4 * 500), "{earlier:?} earlier");
}

// Breaks if a softirq's work is lost or paid twice, or a program learns of bytes before it: with one request at a time the thread
// does the same later.
#[test]
fn softirqs_do_the_work_of_what_comes() {
    let lasts = |softirq| {
        let processor =
            ProcessorConfig { softirq, receive_segment_size_bytes: 2_000, packet: ns(90).into(), ..polling() };
        let outcome = run(Some(processor), false, talks(1, 100));
        (median(&outcome, 0), outcome.usage[1].expect("it has processors").busy)
    };
    let (threads, softirqs) = (lasts(false), lasts(true));
    assert_eq!(threads, softirqs);
    // A call each to wait, to read and to write; a segment each way and a packet; copies; the service.
    assert_eq!(threads.0, 3 * 400 + 2 * 700 + 90 + (64 + 200) / 2 + 10_000);
}

// Breaks if a softirq keeps only its own connection waiting: it takes the core of a thread that answers another one.
#[test]
fn softirqs_take_cores_from_threads() {
    let lasts = |softirq| {
        let outcome = run(Some(ProcessorConfig { softirq, ..polling() }), false, talks(8, 200));
        (median(&outcome, 0), outcome.usage[1].expect("it has processors").interrupted)
    };
    let ((threads, never), (softirqs, interrupted)) = (lasts(false), lasts(true));
    assert_eq!(never, ns(0));
    assert!(interrupted > ns(500 * 700), "{interrupted:?}");
    // The core has the same work.
    assert!(softirqs.abs_diff(threads) <= 700, "{threads}, {softirqs}");
}

// Breaks if a save is free, or its child takes a core that the threads need although others are idle.
#[test]
fn saving_takes_its_time() {
    let saving = |cores, save| ProcessorConfig {
        cores,
        save_interval: ns(1_000_000),
        fork: ns(200_000).into(),
        save,
        save_slice: ns(50_000),
        copy_on_write: ns(2_000).into(),
        ..polling()
    };
    let lasts = |processor| {
        let outcome = run(Some(processor), true, talks(1, 100));
        let usage = outcome.usage[1].expect("the server has processors");
        (outcome.measured[0].latencies_ns.clone(), usage.busy)
    };
    let (plain, busy) = lasts(polling());
    let usual = plain[50];
    // 100 requests take a millisecond and some: one save. Its child ends at once, and nothing is copied.
    let (forked, with_fork) = lasts(saving(1, ns(0)));
    let late: Vec<u64> = forked.iter().copied().filter(|took| *took > usual + 100_000).collect();
    assert!(matches!(late[..], [took] if (200_000..201_000).contains(&(took - usual))), "{forked:?}");
    assert_eq!(with_fork - busy, ns(200_000));
    // With a core of its own the child delays nobody, but each request after the fork copies a page.
    let (copied, with_child) = lasts(saving(2, ns(10_000_000)));
    let copies = copied.iter().filter(|took| (usual + 2_000..usual + 2_200).contains(*took)).count() as u64;
    assert!((10..100).contains(&copies), "{copied:?}");
    assert!(with_child - busy > ns(200_000 + copies * 2_000), "{with_child:?}");
    // On one core a request waits for a slice.
    let (sliced, _) = lasts(saving(1, ns(10_000_000)));
    assert!(sliced.iter().any(|took| (usual + 40_000..usual + 55_000).contains(took)), "{sliced:?}");
}
