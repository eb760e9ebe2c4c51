//! Many senders, one receiver.

use std::time::Duration;

use netacc_rnic::network::{Marking, SwitchConfig};
use netacc_rnic::{DcqcnConfig, NicConfig, RateConfig, Recovery};

use crate::pair::{star, Bench, BYTE_PER_NS};

const SENDERS: usize = 8;
const MESSAGE: u32 = 2_000_000;

struct Incast {
    last_ns: u64,
    first_ns: u64,
    dropped: u64,
    marked: u64,
    repeated: u64,
}

fn incast(rate: RateConfig, recovery: Recovery, switch: SwitchConfig) -> Incast {
    let config = NicConfig {
        mtu_bytes: 1000,
        rate_control: rate,
        recovery,
        retry_timeout: Duration::from_millis(1),
        // Without congestion control a flow may lose everything many times over.
        retry_count: 100,
        ..NicConfig::ideal(BYTE_PER_NS)
    };
    let mut bench = Bench::new(&star(1000, switch), vec![config; SENDERS + 1], 1);
    let mut ends = Vec::new();
    for n in 0..SENDERS {
        let rkey = 100 * (n as u32 + 1);
        let [a, b] = bench.connect(n, SENDERS, rkey);
        bench.post_recv(SENDERS, b, 1);
        bench.write(n, a, rkey + SENDERS as u32, MESSAGE, n as u32);
        ends.push(b);
    }
    bench.run();
    let times: Vec<u64> = ends.iter().map(|b| bench.seen(SENDERS, *b).receives()[0].0).collect();
    let (dropped, marked) = bench.net.switch_counts();
    Incast {
        last_ns: times.iter().copied().max().unwrap_or(0),
        first_ns: times.iter().copied().min().unwrap_or(0),
        dropped,
        marked,
        repeated: (0..SENDERS).map(|n| bench.net.station(n).counters().data_repeated).sum(),
    }
}

/// No transfer is faster than the receiver's link.
fn serialisation_ns() -> u64 {
    SENDERS as u64 * (u64::from(MESSAGE) / 1000) * 1082
}

// Breaks if the receiver's link is idle while there is something to send, or shares are unfair without losses: a buffer that
// holds everything takes exactly the serialisation (and two delays, the headers that first and last packets have more, and
// the first packet's way to the switch).
#[test]
fn an_endless_buffer_costs_exactly_the_serialisation() {
    let incast =
        incast(RateConfig::Unlimited, Recovery::GoBackN, SwitchConfig { buffer_bytes: 1 << 30, marking: None });
    assert_eq!((incast.dropped, incast.repeated), (0, 0));
    let exact = serialisation_ns() + SENDERS as u64 * 20 + 2 * 1000 + 1082 + 16;
    assert_eq!(incast.last_ns, exact);
    assert!(
        incast.first_ns > exact - exact / 50,
        "one flow ended long before the others: {} of {exact}",
        incast.first_ns
    );
}

// Breaks if DCQCN does not react, or not enough: the same small buffer overflows without it, and hardly with it.
#[test]
fn dcqcn_keeps_the_buffer_from_overflowing() {
    let marking = Some(Marking { min_bytes: 5_000, max_bytes: 200_000, max_ppm: 10_000 });
    let switch = SwitchConfig { buffer_bytes: 1_000_000, marking };
    let without = incast(RateConfig::Unlimited, Recovery::GoBackN, switch.clone());
    let dcqcn = RateConfig::Dcqcn(DcqcnConfig::paper());
    let with = incast(dcqcn, Recovery::GoBackN, switch);
    assert!(without.dropped > 10_000 && with.marked > 0, "{} {}", without.dropped, with.marked);
    assert!(with.dropped * 20 < without.dropped, "{} with, {} without", with.dropped, without.dropped);
    assert!(with.last_ns < without.last_ns, "{} with, {} without", with.last_ns, without.last_ns);
}

// Breaks if selective repeat sends what has arrived: with a shallow buffer it repeats about what was dropped, go-back-N
// half as much again with this window, and needs longer.
#[test]
fn selective_repeat_resends_lost_packets() {
    let switch = SwitchConfig { buffer_bytes: 100_000, marking: None };
    let rate = RateConfig::FixedWindow { bytes: 30_000 };
    let selective = incast(rate.clone(), Recovery::SelectiveRepeat, switch.clone());
    let back = incast(rate, Recovery::GoBackN, switch);
    assert!(selective.dropped > 100 && back.dropped > 100, "{} {}", selective.dropped, back.dropped);
    let share = |i: &Incast| (i.repeated * 100).checked_div(i.dropped);
    assert!(share(&selective) < Some(110), "{} repeated, {} dropped", selective.repeated, selective.dropped);
    assert!(share(&back) > Some(130), "{} repeated, {} dropped", back.repeated, back.dropped);
    assert!(selective.last_ns < serialisation_ns() * 105 / 100, "{} of {}", selective.last_ns, serialisation_ns());
}
