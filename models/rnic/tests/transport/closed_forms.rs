//! Times that can be computed by hand. One byte takes 1 ns on these links unless a test sets another rate.

use std::time::Duration;

use netacc_device::CompletionStatus;
use netacc_rnic::network::SwitchConfig;
use netacc_rnic::{Costs, Engines, NicConfig, RateConfig};

use crate::pair::{direct, star, Bench, BYTE_PER_NS};

/// Frame, RETH and immediate of a message of one packet.
const HEADERS: u64 = 82 + 16 + 4;
const ACK: u64 = 86;
const DELAY: u64 = 500;

fn config() -> NicConfig {
    NicConfig { mtu_bytes: 1000, ack_interval: 1, ..NicConfig::ideal(BYTE_PER_NS) }
}

// Breaks if a byte too much or too little is sent, or anything waits that need not: serialisation and propagation, there
// and back.
#[test]
fn one_packet_and_its_acknowledgement() {
    let mut bench = Bench::new(&direct(DELAY), vec![config(); 2], 0);
    let [a, b] = bench.connect(0, 1, 10);
    bench.post_recv(1, b, 1);
    bench.write(0, a, 11, 1000, 7);
    bench.run();
    let there = HEADERS + 1000 + DELAY;
    assert_eq!(bench.seen(1, b).receives(), [(there, 7)]);
    assert_eq!(bench.seen(0, a).sends(), [(there + ACK + DELAY, 7, CompletionStatus::Success)]);
    assert_eq!(bench.seen(1, b).placed[&0], 1000);
}

// Breaks if packets of a message do not follow each other without a gap.
#[test]
fn a_long_message_goes_at_line_rate() {
    let mut bench = Bench::new(&direct(DELAY), vec![config(); 2], 0);
    let [a, b] = bench.connect(0, 1, 10);
    bench.post_recv(1, b, 1);
    bench.write(0, a, 11, 50_000, 7);
    bench.run();
    let expected = 50 * (82 + 1000) + 16 + 4 + DELAY;
    assert_eq!(bench.seen(1, b).receives(), [(expected, 7)]);
}

// Breaks if the window does not hold packets back, or an acknowledgement does not free it at once: with a window of w
// packets, w are delivered in each round trip.
#[test]
fn a_window_limits_throughput() {
    for window in [1, 2, 3] {
        let rate = RateConfig::FixedWindow { bytes: window * 1000 };
        let mut bench = Bench::new(&direct(50_000), vec![NicConfig { rate_control: rate, ..config() }, config()], 0);
        let [a, b] = bench.connect(0, 1, 10);
        bench.post_recv(1, b, 1);
        bench.write(0, a, 11, 12_000, 7);
        bench.run();
        let round_trip = 82 + 1000 + 50_000 + ACK + 50_000;
        let rounds = 12 / window;
        // The RETH of the first packet delays its round by 16 ns, the immediate of the last the end by 4; in a round after
        // the first, the last packet of the window is w - 1 packets behind the first.
        let expected = 16 + (rounds - 1) * round_trip + window * (82 + 1000) + 4 + 50_000;
        assert_eq!(bench.seen(1, b).receives(), [(expected, 7)], "window {window}");
    }
}

// Breaks if a cost is forgotten or counted twice.
#[test]
fn costs_add_up() {
    let ns = Duration::from_nanos;
    let costs = Costs {
        doorbell: ns(1),
        request_fetch: ns(20),
        payload_fetch: ns(300),
        transmit_packet: ns(4_000),
        receive_packet: ns(50_000),
        context_miss: ns(0),
        region_miss: ns(0),
        placement: ns(600_000),
        completion: ns(7_000_000),
        interrupt: ns(0),
    };
    let mut bench = Bench::new(&direct(DELAY), vec![NicConfig { costs, ..config() }; 2], 0);
    let [a, b] = bench.connect(0, 1, 10);
    bench.post_recv(1, b, 1);
    bench.write(0, a, 11, 1000, 7);
    bench.run();
    let arrived = 1 + 20 + 300 + 4_000 + HEADERS + 1000 + DELAY + 50_000;
    assert_eq!(bench.seen(1, b).receives(), [(arrived + 600_000 + 7_000_000, 7)]);
    let acknowledged = arrived + 4_000 + ACK + DELAY + 50_000;
    assert_eq!(bench.seen(0, a).sends(), [(acknowledged + 7_000_000, 7, CompletionStatus::Success)]);
}

// Breaks if engine and port do not overlap: packets are as far apart as the slower of the two takes.
#[test]
fn the_slower_of_engine_and_port_bounds_the_rate() {
    for engine in [100, 5_000] {
        let costs = Costs { transmit_packet: Duration::from_nanos(engine), ..Costs::default() };
        let mut bench = Bench::new(&direct(0), vec![NicConfig { costs, ..config() }, config()], 0);
        let [a, b] = bench.connect(0, 1, 10);
        bench.post_recv(1, b, 1);
        bench.write(0, a, 11, 10_000, 7);
        bench.run();
        let packet: u64 = 82 + 1000;
        let expected = if engine > packet { 10 * engine + packet + 4 } else { engine + 10 * packet + 16 + 4 };
        assert_eq!(bench.seen(1, b).receives(), [(expected, 7)], "engine {engine}");
    }
}

// Breaks if contexts that do not fit on chip cost nothing, or those that fit something: two queue pairs take turns, and the
// acknowledgement of each message comes when all is sent.
#[test]
fn contexts_that_do_not_fit_cost_a_miss_for_each_packet() {
    const MISS: u64 = 10_000;
    for (entries, misses) in [(1, 18), (2, 2), (0, 0)] {
        let costs = Costs { context_miss: Duration::from_nanos(MISS), ..Costs::default() };
        let sender = NicConfig { context_cache: entries, costs, ack_interval: 100, ..config() };
        let mut bench = Bench::new(&direct(MISS * 2), vec![sender, config()], 0);
        let pairs = [bench.connect(0, 1, 10), bench.connect(0, 1, 20)];
        for (rkey, [a, b]) in [11, 21].into_iter().zip(pairs) {
            bench.post_recv(1, b, 1);
            bench.write(0, a, rkey, 10_000, 7);
        }
        bench.run();
        let last = pairs.map(|[_, b]| bench.seen(1, b).receives()[0].0).into_iter().max();
        let expected = match entries {
            // The first queue pair is twice in turn before the second has posted, the second at the end: those two hit,
            // and for each other packet the engine is slower than the port.
            1 => 18 * MISS + (1082 + 16) + 1082 + (1082 + 4),
            // The second queue pair's first packet waits for its miss, then the port is the slower one.
            2 => 2 * MISS + (1082 + 16) + 18 * 1082 + 16 + 2 * 4,
            _ => 20 * 1082 + 2 * (16 + 4),
        };
        assert_eq!(last, Some(expected + 2 * MISS), "{entries} entries");
        // With one entry the two acknowledgements miss as well.
        let more = if entries == 1 { 2 } else { 0 };
        assert_eq!(bench.net.station(0).counters().context_misses, misses + more, "{entries} entries");
    }
}

// Breaks if an unsignaled request completes, or keeps its slot after a later one's completion was polled.
#[test]
fn only_signaled_requests_complete() {
    use netacc_device::{RemoteKey, WorkRequestId};
    use netacc_rnic::{SendRequest, Verb};
    let mut bench = Bench::new(&direct(DELAY), vec![config(); 2], 0);
    let [a, b] = bench.connect(0, 1, 10);
    let now = bench.net.now();
    for id in 0..8u64 {
        let verb = Verb::Write { rkey: RemoteKey(11), remote: 0, imm: None };
        let request = SendRequest { id: WorkRequestId(id), verb, len: 8, inline: true, signaled: id % 4 == 3 };
        assert_eq!(bench.net.station_mut(0).post_send(now, a, request), Ok(id));
    }
    assert_eq!(bench.net.station(0).send_room(a), 56);
    bench.net.kick(0);
    bench.run();
    let ids: Vec<u64> = bench.seen(0, a).sends().iter().map(|(_, id, _)| *id).collect();
    assert_eq!(ids, [3, 7]);
    assert_eq!(bench.net.station(0).send_room(a), 64);
    assert_eq!(bench.seen(1, b).placed.len(), 8);
    assert!(bench.seen(1, b).completions.is_empty());
}

// Breaks if events of one instant do not happen in the order in which they were scheduled: of equal packets sent at the same
// time through a switch, the first one posted is the first to arrive.
#[test]
fn ties_keep_their_order() {
    const SENDERS: usize = 20;
    let switch = SwitchConfig { buffer_bytes: 1 << 20, marking: None };
    let mut bench = Bench::new(&star(DELAY, switch), vec![config(); SENDERS + 1], 0);
    let mut ends = Vec::new();
    for n in 0..SENDERS {
        let rkey = 100 * (n as u32 + 1);
        let [a, b] = bench.connect(n, SENDERS, rkey);
        bench.post_recv(SENDERS, b, 1);
        bench.write(n, a, rkey + SENDERS as u32, 1000, n as u32);
        ends.push(b);
    }
    bench.run();
    let packet = HEADERS + 1000;
    for (n, b) in ends.into_iter().enumerate() {
        let at = (n as u64 + 2) * packet + 2 * DELAY;
        assert_eq!(bench.seen(SENDERS, b).receives(), [(at, n as u32)]);
    }
}

/// A device in software: all stages take turns on one processor.
fn in_software(posting: u64, transmit: u64, receive: u64, completion: u64) -> NicConfig {
    let costs = Costs {
        doorbell: Duration::from_nanos(posting),
        transmit_packet: Duration::from_nanos(transmit),
        receive_packet: Duration::from_nanos(receive),
        completion: Duration::from_nanos(completion),
        ..Costs::default()
    };
    NicConfig { engines: Engines::Shared, costs, ..config() }
}

// Breaks if a message that is alone does not take the sum of all stages at both ends and of the network: its completion is
// written before it is acknowledged.
#[test]
fn one_message_of_shared_stages_takes_their_sum() {
    let mut bench = Bench::new(&direct(DELAY), vec![in_software(100, 2_000, 30_000, 400_000); 2], 0);
    let [a, b] = bench.connect(0, 1, 10);
    bench.post_recv(1, b, 1);
    bench.write(0, a, 11, 1000, 7);
    bench.run();
    let there = 100 + 2_000 + HEADERS + 1000 + DELAY + 30_000 + 400_000;
    assert_eq!(bench.seen(1, b).receives(), [(there, 7)]);
    let back = 2_000 + ACK + DELAY + 30_000 + 400_000;
    assert_eq!(bench.seen(0, a).sends(), [(there + back, 7, CompletionStatus::Success)]);
}

// Breaks if any stage of a stream happens beside another one at its end: messages are as far apart as the sum of the stages at the
// busier end, and with separate engines as the slowest stage.
#[test]
fn a_stream_is_as_fast_as_the_busier_end_s_stages_together() {
    const MESSAGES: u64 = 50;
    let idle = config();
    let stream = |ends: [&NicConfig; 2]| {
        let mut bench = Bench::new(&direct(0), ends.map(NicConfig::clone).to_vec(), 0);
        let [a, b] = bench.connect(0, 1, 10);
        bench.post_recv(1, b, MESSAGES as u32);
        (0..MESSAGES as u32).for_each(|number| bench.write(0, a, 11, 100, number));
        bench.run();
        assert_eq!(bench.seen(0, a).sends().len() as u64, MESSAGES);
        bench.seen(0, a).sends()[MESSAGES as usize - 1].0
    };
    let frame = HEADERS + 100;
    // A sender posts, sends, takes an acknowledgement and completes: it never rests, as there is more of the last two.
    let busy = in_software(300, 2_000, 5_000, 700);
    assert_eq!(stream([&busy, &idle]), MESSAGES * (300 + 2_000 + 5_000 + 700));
    // A receiver takes a packet, completes and acknowledges.
    assert_eq!(stream([&idle, &busy]), frame + MESSAGES * (5_000 + 700 + 2_000) + ACK);
    let separate = NicConfig { engines: Engines::Separate, ..busy };
    assert_eq!(stream([&idle, &separate]), frame + MESSAGES * 5_000 + 2_000 + ACK);
    assert_eq!(stream([&separate, &idle]), 300 + 2_000 + frame + ACK + MESSAGES * 5_000 + 700);
}
