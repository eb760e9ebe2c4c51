//! HPCC: a window by how busy the busiest port of the path is, from telemetry that acknowledgements bring back.
//!
//! Li et al., "HPCC: High Precision Congestion Control", SIGCOMM 2019, algorithm 1. Names in parentheses are the paper's.

use std::time::Duration;

use netacc_device::Instant;
use netacc_parameters::parameters;

use super::{Progress, RateControl, MILLION};
use crate::telemetry::{Hop, MAX_HOPS};

parameters! {
    /// Parameters of HPCC.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct HpccConfig {
        /// T: the round trip of the longest path when nothing waits. The default is that of the paper's simulated network.
        hpcc_base_round_trip: Duration = Duration::from_micros(13), at least 1;
        /// eta: the share of a port's rate that is aimed at (the paper's 95 %).
        hpcc_utilization_ppm: u32 = 950_000, at least 1;
        /// maxStage: additive increases in a row before a multiplicative one (the paper's 5; the authors' simulator has 0).
        hpcc_max_stage: u32 = 5;
        /// W_AI as a rate: the window grows by what it sends in T. The default is the authors' simulator's at 100 Gbit/s.
        hpcc_additive_bps: u64 = 40_000_000;
        /// The least rate, at most the port's; that of the authors' simulator.
        hpcc_min_bps: u64 = 1_000_000_000, at least 1;
    }
}

/// Bits of fraction of windows, in bytes, and of shares.
const FRACTION: u32 = 20;
const ONE: u64 = 1 << FRACTION;

/// Invariant: `least <= window, reference <= most`.
#[derive(Debug)]
pub(super) struct Hpcc {
    config: HpccConfig,
    mtu_bytes: u64,
    least: u64,
    most: u64,
    additive: u64,
    /// W and Wc.
    window: u64,
    reference: u64,
    /// U.
    used: u64,
    /// incStage.
    stage: u32,
    /// lastUpdateSeq.
    updated: u64,
    /// L, the hops of the last acknowledgement, and when it came.
    last: Option<([Hop; MAX_HOPS], usize, Instant)>,
}

impl Hpcc {
    pub(super) fn new(config: HpccConfig, line_rate_bps: u64, mtu_bytes: u32) -> Hpcc {
        let in_round_trip = |bps: u64| {
            let bytes = ((u128::from(bps) * config.hpcc_base_round_trip.as_nanos()) << FRACTION) / 8_000_000_000;
            u64::try_from(bytes).unwrap_or(u64::MAX >> 8).max(1)
        };
        let most = in_round_trip(line_rate_bps);
        let least = in_round_trip(config.hpcc_min_bps.min(line_rate_bps)).min(most);
        let additive = in_round_trip(config.hpcc_additive_bps);
        let (window, used) = (most, ONE);
        let mtu_bytes = u64::from(mtu_bytes.max(1));
        Hpcc {
            config,
            mtu_bytes,
            least,
            most,
            additive,
            window,
            reference: window,
            used,
            stage: 0,
            updated: 0,
            last: None,
        }
    }

    fn base_ns(&self) -> u128 {
        self.config.hpcc_base_round_trip.as_nanos().max(1)
    }

    /// MeasureInflight: U with these hops and those before.
    fn measure(&mut self, hops: &[Hop], before: &[Hop]) {
        let base = self.base_ns();
        let (mut most, mut span) = (0u128, 0);
        for (hop, earlier) in hops.iter().zip(before) {
            let (passed, sent) = hop.since(*earlier);
            if passed == 0 {
                continue;
            }
            let queue = u128::from(hop.queue_ns().min(earlier.queue_ns()));
            let used = (queue << FRACTION) / base + (u128::from(sent) << FRACTION) / u128::from(passed);
            if used > most {
                (most, span) = (used, u128::from(passed));
            }
        }
        let span = span.min(base);
        let used = (u128::from(self.used) * (base - span) + most * span) / base;
        self.used = u64::try_from(used).unwrap_or(u64::MAX >> FRACTION);
    }

    /// ComputeWind.
    fn compute(&mut self, update: bool) {
        let aim = u128::from(self.config.hpcc_utilization_ppm) * u128::from(ONE) / u128::from(MILLION);
        let multiply = u128::from(self.used) >= aim || self.stage >= self.config.hpcc_max_stage;
        let kept = match multiply {
            true => u128::from(self.reference) * aim / u128::from(self.used.max(1)),
            false => u128::from(self.reference),
        };
        let window = u64::try_from(kept).unwrap_or(self.most).saturating_add(self.additive);
        self.window = window.clamp(self.least, self.most);
        if update {
            self.stage = if multiply { 0 } else { self.stage + 1 };
            self.reference = self.window;
        }
    }
}

impl RateControl for Hpcc {
    /// A packet may be sent while less than the window is unacknowledged, as in the authors' simulator.
    fn window_bytes(&self) -> u64 {
        (self.window >> FRACTION).next_multiple_of(self.mtu_bytes)
    }

    /// R = W / T.
    fn rate_bps(&mut self, _: Instant) -> Option<u64> {
        let bps = ((u128::from(self.window) * 8_000_000_000) >> FRACTION) / self.base_ns();
        Some(u64::try_from(bps).unwrap_or(u64::MAX).max(1))
    }

    fn handle_progress(&mut self, now: Instant, progress: Progress) {
        let Some(telemetry) = progress.telemetry else { return };
        let hops = telemetry.hops();
        let mut kept = [Hop::default(); MAX_HOPS];
        kept[..hops.len()].copy_from_slice(hops);
        let before = self.last.replace((kept, hops.len(), now));
        // Of another path, or too old for its times: the next one has something to compare with.
        let Some((before, count, at)) = before else {
            self.updated = progress.next;
            return;
        };
        if hops.is_empty() || count != hops.len() || now.saturating_since(at) >= Hop::WRAP / 2 {
            return;
        }
        let update = progress.acknowledged > self.updated;
        self.measure(hops, &before[..count]);
        self.compute(update);
        if update {
            self.updated = progress.next;
        }
    }

    fn handle_timeout(&mut self, _: Instant) {
        (self.window, self.reference, self.stage) = (self.least, self.least, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Telemetry;

    const T: u64 = 10_000;

    /// At 8 Gbit/s, a byte a nanosecond: the window at the start is 10,000 bytes.
    fn hpcc() -> Hpcc {
        let hpcc_base_round_trip = Duration::from_nanos(T);
        Hpcc::new(
            HpccConfig {
                hpcc_base_round_trip,
                hpcc_min_bps: 80_000_000,
                hpcc_additive_bps: 8_000_000,
                ..HpccConfig::default()
            },
            8_000_000_000,
            1_000,
        )
    }

    fn window(control: &Hpcc) -> u64 {
        control.window >> FRACTION
    }

    /// An acknowledgement at a time, of a port that has sent for so long and whose queue takes so long.
    fn handle(control: &mut Hpcc, at: u64, sent: u64, queue: u64, (acknowledged, next): (u64, u64)) {
        let now = Instant::from_nanos(at);
        let telemetry = Some(Telemetry::of([Hop::new(now, sent, queue)]));
        control.handle_progress(now, Progress { packets: 1, round_trip: None, telemetry, acknowledged, next });
    }

    // Breaks if U is not a port's rate and queue over a round trip, or the window other than Wc / (U / eta) + W_AI.
    #[test]
    fn a_busy_port_shrinks_the_window() {
        let mut control = hpcc();
        handle(&mut control, 0, 0, 3_200, (1, 20));
        assert_eq!(window(&control), 10_000, "one alone tells nothing");
        // Always sending, and a queue of 0.32 T before and 0.64 T after: U = 1.32.
        handle(&mut control, T, T, 6_400, (2, 21));
        assert_eq!(window(&control), (10_000.0 * 0.95 / 1.32 + 10.0) as u64);
        let rate = control.rate_bps(Instant::ZERO).expect("it paces");
        assert_eq!(control.window_bytes(), 8_000, "whole packets");
        assert!(rate.abs_diff(window(&control) * 800_000) < 800_000, "{rate}");
    }

    // Breaks if acknowledgements within a round trip compound: each starts from the reference window.
    #[test]
    fn within_a_round_trip_the_reference_stays() {
        let mut control = hpcc();
        handle(&mut control, 0, 0, 0, (1, 20));
        handle(&mut control, T, T, 0, (2, 21));
        let once = window(&control);
        assert_eq!(once, 9_509);
        for n in 1..10 {
            handle(&mut control, T + n * T, T + n * T, 0, (2 + n, 30));
        }
        assert_eq!(window(&control), once);
        handle(&mut control, 12 * T, 12 * T, 0, (22, 40));
        assert_eq!(control.reference, control.window);
        handle(&mut control, 13 * T, 13 * T, 0, (23, 41));
        // From the window of the one update: 9510 * 0.95 + 10.
        assert_eq!(window(&control), 9_044);
    }

    // Breaks if an idle port does not let the window grow by W_AI, and after maxStage times to eta / U.
    #[test]
    fn idle_ports_let_it_grow() {
        let mut control = hpcc();
        (control.window, control.reference, control.used) = (1_000 * ONE, 1_000 * ONE, ONE / 10);
        handle(&mut control, 0, 0, 0, (1, 1));
        for n in 1..=5 {
            handle(&mut control, n * T, n * T / 10, 0, (n + 1, n + 1));
            assert_eq!(window(&control), 1_000 + 10 * n);
        }
        handle(&mut control, 6 * T, 6 * T / 10, 0, (7, 7));
        let grown = window(&control);
        assert!((1_050 * 95 / 10 - 5..1_050 * 95 / 10 + 20).contains(&grown), "{grown}");
    }

    // Breaks if a path with other hops, or telemetry whose times have wrapped, is compared with the one before.
    #[test]
    fn other_paths_and_old_hops_tell_nothing() {
        let mut control = hpcc();
        handle(&mut control, 0, 0, 0, (1, 1));
        handle(&mut control, 4_000_000, 4_000_000, 90_000, (2, 2));
        let now = Instant::from_nanos(4_000_100);
        let telemetry = Some(Telemetry::of([Hop::new(now, 5, 90_000), Hop::new(now, 5, 90_000)]));
        control.handle_progress(now, Progress { packets: 1, round_trip: None, telemetry, acknowledged: 3, next: 3 });
        assert_eq!(window(&control), 10_000);
    }
}
