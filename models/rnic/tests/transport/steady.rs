//! Long transfers to one receiver, and the state that rate controls bring them to: held against the fixed points of the
//! published equations.

use std::time::Duration;

use netacc_rnic::network::SwitchConfig;
use netacc_rnic::{HpccConfig, NicConfig, RateConfig, SwiftConfig, TimelyConfig};

use crate::pair::{star, Bench, BYTE_PER_NS};

const MTU: u32 = 1000;
const DELAY_NS: u64 = 1000;
/// A packet on the wire, and so the nanoseconds that it takes.
const WIRE_BYTES: f64 = 1082.0;
/// A packet's way there and its acknowledgement's way back, when nothing waits: two links each.
const EMPTY_NS: f64 = 2.0 * (WIRE_BYTES + 86.0) + 4.0 * DELAY_NS as f64;

/// A bottleneck: its queue, and how its rate was shared.
#[derive(Debug)]
struct Steady {
    /// Bytes that waited: nanoseconds of wait, too.
    queue: Vec<u64>,
    /// Bytes of payload placed for each sender.
    shares: Vec<u64>,
    span_ns: u64,
}

impl Steady {
    fn mean_queue(&self) -> f64 {
        self.queue.iter().sum::<u64>() as f64 / self.queue.len() as f64
    }

    fn max_queue(&self) -> u64 {
        self.queue.iter().copied().max().unwrap_or(0)
    }

    /// Share of the time in which the receiver's link sent data.
    fn utilisation(&self) -> f64 {
        self.shares.iter().sum::<u64>() as f64 / f64::from(MTU) * WIRE_BYTES / self.span_ns as f64
    }

    /// Jain's index: 1 where all have the same.
    fn fairness(&self) -> f64 {
        let sum: f64 = self.shares.iter().map(|s| *s as f64).sum();
        let squares: f64 = self.shares.iter().map(|s| (*s as f64).powi(2)).sum();
        sum * sum / (self.shares.len() as f64 * squares)
    }
}

/// `senders` that never stop, measured from the end of the warm-up on.
fn steady(rate: RateConfig, senders: usize, ack_interval: u32, warmup_us: u64, measured_us: u64) -> Steady {
    steady_over(DELAY_NS, rate, senders, ack_interval, (warmup_us, measured_us))
}

/// As [`steady`], with links of this delay.
fn steady_over(
    delay_ns: u64,
    rate: RateConfig,
    senders: usize,
    ack_interval: u32,
    (warmup_us, measured_us): (u64, u64),
) -> Steady {
    let config = NicConfig { mtu_bytes: MTU, rate_control: rate, ack_interval, ..NicConfig::ideal(BYTE_PER_NS) };
    let switch = SwitchConfig { buffer_bytes: 1 << 30, marking: None };
    let mut bench = Bench::new(&star(delay_ns, switch), vec![config; senders + 1], 1);
    let mut ends = Vec::new();
    for n in 0..senders {
        let rkey = 100 * (n as u32 + 1);
        let [a, b] = bench.connect(n, senders, rkey);
        bench.post_recv(senders, b, 1);
        bench.write(n, a, rkey + senders as u32, 1 << 30, n as u32);
        ends.push(b);
    }
    let placed = |bench: &Bench| -> Vec<u64> {
        ends.iter()
            .map(|b| bench.seen.get(&(senders, *b)).map_or(0, |s| s.placed.values().map(|v| u64::from(*v)).sum()))
            .collect()
    };
    let micros = Duration::from_micros;
    bench.run_until(micros(warmup_us));
    let before = placed(&bench);
    let mut queue = Vec::new();
    for us in warmup_us + 1..=warmup_us + measured_us {
        bench.run_until(micros(us));
        queue.push(bench.net.queued_bytes(senders));
    }
    let shares = placed(&bench).into_iter().zip(before).map(|(after, before)| after - before).collect();
    Steady { queue, shares, span_ns: measured_us * 1000 }
}

/// A window of so many packets for each of `senders` fills the bottleneck with this round trip.
fn share_of_window(round_trip_ns: f64, senders: usize) -> f64 {
    round_trip_ns / WIRE_BYTES / senders as f64
}

// Breaks if a window of Swift's does not settle where round trips are the target: algorithm 1 grows every window by at most
// a packet in a round trip, so that what waits is at most that much above, and takes off beta times the excess.
#[test]
fn swift_keeps_round_trips_at_its_target() {
    let target = Duration::from_micros(100);
    let expected = target.as_nanos() as f64 - EMPTY_NS;
    for senders in [2, 4, 8, 16] {
        let config = SwiftConfig { swift_target: target, ..SwiftConfig::default() };
        let found = steady(RateConfig::Swift(config), senders, 1, 10_000, 10_000);
        let above = (found.mean_queue() - expected) / WIRE_BYTES;
        assert!((-1.0..senders as f64 / 2.0).contains(&above), "{senders}: {above} packets above the target");
        assert!((found.max_queue() as f64) < expected + (senders + 1) as f64 * WIRE_BYTES, "{senders}: {found:?}");
        assert!(found.utilisation() > 0.999, "{senders}: {}", found.utilisation());
        assert!(found.fairness() > 0.98, "{senders}: {}", found.fairness());
    }
}

// Breaks if flow scaling moves the target by other than alpha / sqrt(cwnd) + beta (section 3.5): the round trip is the one at
// which all windows together fill it, within half a packet for each sender.
#[test]
fn more_flows_of_swift_have_a_later_target() {
    let (base, range) = (20_000.0, 200_000.0);
    for senders in [2, 8, 32] {
        let config = SwiftConfig {
            swift_target: Duration::from_nanos(base as u64),
            swift_scaling_range: Duration::from_nanos(range as u64),
            ..SwiftConfig::default()
        };
        let found = steady(RateConfig::Swift(config), senders, 1, 20_000, 10_000);
        let alpha = range / (1.0 / 0.1f64.sqrt() - 1.0 / 100f64.sqrt());
        let mut round_trip = base;
        for _ in 0..100 {
            let window = share_of_window(round_trip, senders);
            round_trip = base + (alpha / window.sqrt() - alpha / 100f64.sqrt()).clamp(0.0, range);
        }
        let above = (found.mean_queue() + EMPTY_NS - round_trip) / WIRE_BYTES;
        assert!(above.abs() < senders as f64 / 2.0 + 1.0, "{senders}: {above} packets above {round_trip} ns");
        assert!(found.fairness() > 0.99, "{senders}: {}", found.fairness());
    }
}

// Breaks if the weight, the step or the decrease of the changed TIMELY is another one: its fixed point is at round trips of
// T_low (1 + N delta / (beta C)), with equal rates.
#[test]
fn patched_timely_is_at_its_fixed_point() {
    for senders in [2, 4, 8, 16] {
        let config = TimelyConfig { timely_patched: true, timely_decrease_ppm: 8_000, ..TimelyConfig::default() };
        let (step, beta, line) = (10e6, 0.008, BYTE_PER_NS as f64);
        let expected = 50_000.0 * (1.0 + senders as f64 * step / (beta * line)) - EMPTY_NS;
        let found = steady(RateConfig::Timely(config), senders, 16, 200_000, 10_000);
        let error = found.mean_queue() / expected - 1.0;
        assert!(error.abs() < 0.005, "{senders}: {} for {expected}", found.mean_queue());
        assert!(found.fairness() > 0.9999 && found.utilisation() > 0.999, "{senders}: {found:?}");
    }
}

// Breaks if TIMELY does not leave T_high after the start, at which both senders fill the queue at the line rate, or does not
// use the link below T_low. It has no fixed point to hold it against.
#[test]
fn timely_uses_the_link_without_a_standing_queue() {
    let found = steady(RateConfig::Timely(TimelyConfig::default()), 2, 16, 40_000, 20_000);
    assert!((found.max_queue() as f64) < 500_000.0 - EMPTY_NS, "{}", found.max_queue());
    assert!(found.mean_queue() < 50_000.0 - EMPTY_NS, "{}", found.mean_queue());
    assert!(found.utilisation() > 0.9 && found.fairness() > 0.99, "{found:?}");
}

// Breaks if HPCC's windows do not settle where a port is used to eta and what the additive increases add: with W = Wc eta / U + W_AI
// and N windows that share B T, U = eta + N W_AI / (B T) (section 3.3), so that nothing waits.
#[test]
fn hpcc_keeps_queues_empty() {
    // A window has 39 packets. Telemetry is in the packet and in its acknowledgement.
    let delay_ns = 10_000;
    let base_ns = EMPTY_NS + 4.0 * ((delay_ns - DELAY_NS) as f64 + 42.0);
    let base = Duration::from_nanos(base_ns as u64);
    for senders in [2, 4, 8] {
        let config = HpccConfig {
            hpcc_base_round_trip: base,
            hpcc_additive_bps: 16_000_000,
            hpcc_min_bps: 80_000_000,
            ..HpccConfig::default()
        };
        let found = steady_over(delay_ns, RateConfig::Hpcc(config), senders, 1, (20_000, 10_000));
        let used = found.utilisation() * (WIRE_BYTES + 42.0) / WIRE_BYTES;
        let expected = 0.95 + senders as f64 * 16e6 / 8e9;
        assert!((used / expected - 1.0).abs() < 0.015, "{senders}: {used} used, {expected} expected");
        assert!(found.mean_queue() < 1.5 * WIRE_BYTES, "{senders}: {} bytes wait", found.mean_queue());
        assert!(found.fairness() > 0.98, "{senders}: {}", found.fairness());
    }
}
