//! A window after Swift: it grows while round trips are below a target, and falls in proportion to how far they are above it.
//!
//! Kumar et al., "Swift: Delay is Simple and Effective for Congestion Control in the Datacenter", SIGCOMM 2020, algorithm 1
//! and section 3.5 (flow scaling of the target). Swift-like, because three things are left out: the window of the end host
//! (a modelled NIC has no host in its round trips), scaling by hops (no packet has a hop count, so the base target holds what
//! the longest path takes), and recovery from losses, which is the NIC's own: a timeout takes the greatest decrease, and the
//! window is never reset to its least. Names in parentheses are the paper's.

use std::time::Duration;

use netacc_device::Instant;
use netacc_parameters::parameters;

use super::{Progress, RateControl, MILLION};

parameters! {
    /// Parameters of the Swift-like control. No default is the paper's: all are this model's choices, for networks of a few
    /// hops and some microseconds. The share of a decrease is TIMELY's.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct SwiftConfig {
        /// The target of round trips without flow scaling.
        swift_target: Duration = Duration::from_micros(25), at least 1;
        /// ai: thousandths of a packet by which the window grows in a round trip below the target.
        swift_increase_milli: u32 = 1_000, at least 1;
        /// beta: the share of the window that a round trip far above the target takes off.
        swift_decrease_ppm: u32 = 800_000, at least 1;
        /// max_mdf: the greatest share of the window that a decrease takes off.
        swift_max_decrease_ppm: u32 = 500_000, at least 1;
        /// fs_range: the most that flow scaling adds to the target. 0 for no scaling.
        swift_scaling_range: Duration = Duration::ZERO;
        /// fs_min_cwnd: thousandths of a packet; with a window as small, all of the range is added.
        swift_scaling_min_milli: u32 = 100, at least 1;
        /// fs_max_cwnd: packets; with a window as large, nothing is added.
        swift_scaling_max: u32 = 100, at least 1;
        /// min_cwnd: thousandths of a packet. Below one packet the control paces.
        swift_min_window_milli: u32 = 10, at least 1;
        /// max_cwnd: packets, also the window at the start.
        swift_max_window: u32 = 256, at least 1;
    }
}

/// Bits of fraction of windows, which count packets.
const FRACTION: u32 = 20;

/// One packet.
const ONE: u64 = 1 << FRACTION;

/// Invariant: `least <= window <= most`.
#[derive(Debug)]
pub(super) struct Swift {
    config: SwiftConfig,
    mtu_bytes: u32,
    window: u64,
    least: u64,
    most: u64,
    decreased_at: Option<Instant>,
    round_trip: Duration,
}

impl Swift {
    pub(super) fn new(config: SwiftConfig, mtu_bytes: u32) -> Swift {
        let most = u64::from(config.swift_max_window) * ONE;
        let least = (milli(config.swift_min_window_milli)).min(most);
        let round_trip = config.swift_target;
        Swift { config, mtu_bytes, window: most, least, most, decreased_at: None, round_trip }
    }

    /// The target with this window: base + clamp(alpha / sqrt(cwnd) + beta, 0, range), where it is the whole range at the
    /// least window of scaling and 0 at the greatest.
    fn target(&self) -> Duration {
        let SwiftConfig { swift_scaling_range: range, swift_scaling_min_milli: low, swift_scaling_max: high, .. } =
            self.config;
        let (low, high) = (inverse_root(milli(low)), inverse_root(u64::from(high) * ONE));
        let here = inverse_root(self.window);
        if range.is_zero() || low <= high {
            return self.config.swift_target;
        }
        let part = u128::from(here.clamp(high, low) - high);
        let added = range.as_nanos() * part / u128::from(low - high);
        self.config.swift_target + Duration::from_nanos(u64::try_from(added).unwrap_or(u64::MAX))
    }

    fn increase(&mut self, packets: u64) {
        let step = u128::from(milli(self.config.swift_increase_milli)) * u128::from(packets);
        // ai / cwnd for each packet; below one packet ai.
        let grown = if self.window >= ONE { step * u128::from(ONE) / u128::from(self.window) } else { step };
        self.window = u64::try_from(u128::from(self.window) + grown).unwrap_or(self.most).min(self.most);
    }

    /// At most once in a round trip.
    fn decrease(&mut self, now: Instant, share_ppm: u64) {
        if self.decreased_at.is_some_and(|at| now.saturating_since(at) < self.round_trip) {
            return;
        }
        self.decreased_at = Some(now);
        let kept = u64::from(MILLION) - share_ppm.min(self.config.swift_max_decrease_ppm.min(MILLION).into());
        let window = u128::from(self.window) * u128::from(kept) / u128::from(MILLION);
        self.window = u64::try_from(window).unwrap_or(self.most).max(self.least);
    }
}

impl RateControl for Swift {
    fn window_bytes(&self) -> u64 {
        (self.window >> FRACTION).max(1) * u64::from(self.mtu_bytes)
    }

    /// Below one packet: one packet in `round_trip / window`.
    fn rate_bps(&mut self, _: Instant) -> Option<u64> {
        if self.window >= ONE {
            return None;
        }
        let bits = u128::from(self.mtu_bytes) * 8 * 1_000_000_000 * u128::from(self.window);
        let bps = bits / (self.round_trip.as_nanos().max(1) << FRACTION);
        Some(u64::try_from(bps).unwrap_or(u64::MAX).max(1))
    }

    fn handle_progress(&mut self, now: Instant, progress: Progress) {
        let Some(round_trip) = progress.round_trip else { return };
        self.round_trip = round_trip;
        let target = self.target();
        if round_trip < target {
            self.increase(progress.packets);
            return;
        }
        let above = (round_trip - target).as_nanos() * u128::from(self.config.swift_decrease_ppm);
        let share = above / round_trip.as_nanos().max(1);
        self.decrease(now, u64::try_from(share).unwrap_or(u64::MAX));
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.decrease(now, u64::MAX);
    }
}

/// Thousandths of a packet as a window.
fn milli(thousandths: u32) -> u64 {
    (u64::from(thousandths) * ONE).div_ceil(1000)
}

/// 1 / sqrt(window) with 32 bits of fraction.
fn inverse_root(window: u64) -> u64 {
    // sqrt(2^FRACTION / w) * 2^32 = sqrt(2^(FRACTION + 64) / w).
    let square = (1u128 << (FRACTION + 64)) / u128::from(window.max(1));
    u64::try_from(square.isqrt()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    fn swift(window: u64, config: SwiftConfig) -> Swift {
        Swift { window, ..Swift::new(config, 1000) }
    }

    fn progress(packets: u64, us: u64) -> Progress {
        Progress { packets, round_trip: Some(Duration::from_micros(us)), ..Progress::default() }
    }

    // Breaks if a window of acknowledgements below the target adds other than one packet, or below one packet less than ai
    // for each.
    #[test]
    fn a_round_trip_adds_one_packet() {
        let mut control = swift(10 * ONE, SwiftConfig::default());
        (0..10).for_each(|n| control.handle_progress(at(n), progress(1, 20)));
        // Each step is of a window that has grown already.
        assert!((10 * ONE + ONE * 95 / 100..11 * ONE).contains(&control.window), "{control:?}");
        let mut small = swift(ONE / 4, SwiftConfig { swift_increase_milli: 500, ..SwiftConfig::default() });
        small.handle_progress(at(0), progress(1, 20));
        assert_eq!(small.window, ONE * 3 / 4);
    }

    // Breaks if a decrease is not beta times the excess, more than the greatest, or comes twice in a round trip.
    #[test]
    fn decreases_are_in_proportion_and_once_in_a_round_trip() {
        let mut control = swift(100 * ONE, SwiftConfig::default());
        // 0.8 * (50 - 25) / 50 = 0.4.
        control.handle_progress(at(0), progress(1, 50));
        assert_eq!(control.window, 60 * ONE);
        control.handle_progress(at(49), progress(1, 50));
        assert_eq!(control.window, 60 * ONE);
        // 0.8 * 975 / 1000 is above the greatest, a half.
        control.handle_progress(at(1100), progress(1, 1000));
        assert_eq!(control.window, 30 * ONE);
        control.handle_timeout(at(1200));
        assert_eq!(control.window, 30 * ONE);
        control.handle_timeout(at(2100));
        assert_eq!(control.window, 15 * ONE);
    }

    // Breaks if pacing below one packet has another rate, or the least window does not hold.
    #[test]
    fn below_one_packet_it_paces() {
        let mut control = swift(ONE / 4, SwiftConfig::default());
        control.handle_progress(at(0), progress(1, 40));
        // 0.8 * 15 / 40 = 0.3 is taken off; a packet of 8000 bits in 40 us is 200 Mb/s.
        assert_eq!(control.window, ONE / 4 * 7 / 10);
        assert_eq!(control.rate_bps(at(0)).map(|bps| bps / 1_000_000), Some(34));
        assert_eq!(control.window_bytes(), 1000);
        (1..100).for_each(|n| control.handle_progress(at(10_000 * n), progress(1, 1000)));
        assert_eq!(control.window, milli(10));
        assert_eq!(swift(ONE, SwiftConfig::default()).rate_bps(at(0)), None);
    }

    // Breaks if the scaled target is not alpha / sqrt(cwnd) + beta, with the paper's alpha and beta.
    #[test]
    fn small_windows_have_later_targets() {
        let range = Duration::from_micros(100);
        let config = SwiftConfig { swift_scaling_range: range, ..SwiftConfig::default() };
        for window in [0.05, 0.1, 0.5, 1.0, 4.0, 25.0, 100.0, 200.0] {
            let alpha = 100_000.0 / (1.0 / 0.1f64.sqrt() - 1.0 / 100f64.sqrt());
            let beta = -alpha / 100f64.sqrt();
            let expected = 25_000.0 + (alpha / f64::sqrt(window) + beta).clamp(0.0, 100_000.0);
            let target = swift((window * ONE as f64) as u64, config.clone()).target().as_nanos() as f64;
            assert!((target - expected).abs() < 10.0, "{window}: {target} for {expected}");
        }
    }
}
