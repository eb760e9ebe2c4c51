//! TIMELY: a rate that rises while round trips get shorter, and falls by how fast they get longer.
//!
//! Mittal et al., "TIMELY: RTT-based Congestion Control for the Datacenter", SIGCOMM 2015, algorithm 1. Names in parentheses
//! are the paper's. The equations are the paper's. Three things differ: a queue pair begins at the line rate (theirs by the
//! number of active flows of its host), there is a lowest rate, and one event takes off at most half of the rate, as in the
//! code of eRPC, which follows the authors' (<https://github.com/erpc-io/eRPC>, `timely.cc`). Each acknowledgement with a round
//! trip is a completion event, so `ack_interval` packets are a segment (16 KB in the paper).
//!
//! TIMELY has no fixed point (Zhu et al., "ECN or Delay: Lessons Learnt from Analysis of DCQCN and TIMELY", CoNEXT 2016,
//! section 4). With `timely_patched` the change that they propose replaces the two cases between T_low and T_high: with g the
//! gradient, w = 0 up to -1/4, 1 from 1/4 on, and 2 g + 1/2 between, the rate becomes
//! `delta (1 - w) + rate (1 - beta w (rtt - T_low) / T_low)`. Where g is 0 that keeps C/N if the round trip is
//! `T_low (1 + N delta / (beta C))`.

use std::time::Duration;

use netacc_device::Instant;
use netacc_parameters::parameters;

use super::{Progress, RateControl, MILLION};

parameters! {
    /// Parameters of TIMELY. T_low, T_high, delta and beta are the paper's (section 6). For alpha and D_minRTT the defaults are
    /// those with which the authors of HPCC ran it beside theirs (`TimelyAlpha` and so on of their simulator's `RdmaHw`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct TimelyConfig {
        /// T_low: below this round trip the rate rises, whatever the gradient is.
        timely_low: Duration = Duration::from_micros(50);
        /// T_high: above this round trip the rate falls, whatever the gradient is.
        timely_high: Duration = Duration::from_micros(500), at least 1;
        /// D_minRTT: gradients are in units of this time.
        timely_min_round_trip: Duration = Duration::from_micros(20), at least 1;
        /// alpha: the weight of a new difference in the mean of differences.
        timely_gain_ppm: u32 = 875_000, at least 1;
        /// beta: the share of the rate that a gradient of 1 takes off.
        timely_decrease_ppm: u32 = 800_000, at least 1;
        /// The greatest share of the rate that an acknowledgement takes off.
        timely_max_decrease_ppm: u32 = 500_000, at least 1;
        /// With the change of "ECN or Delay" (CoNEXT 2016), which gives it a fixed point; beta has to be much smaller then.
        timely_patched: bool = false;
        /// delta: the rate added by an acknowledgement.
        timely_step_bps: u64 = 10_000_000, at least 1;
        /// N: from so many gradients in a row that do not rise on, as many steps are added at once.
        timely_hyper_after: u32 = 5, at least 1;
        /// The lowest rate. The default is arbitrary: one step.
        timely_min_rate_bps: u64 = 10_000_000, at least 1;
    }
}

/// Bits of fraction of the mean of differences.
const FRACTION: u32 = 8;

/// Invariant: `min_rate <= rate <= line`, or `rate == line`.
#[derive(Debug)]
pub(super) struct Timely {
    config: TimelyConfig,
    line: u64,
    rate: u64,
    previous: Option<Duration>,
    /// Mean of the differences of successive round trips, in nanoseconds, with [`FRACTION`] bits of fraction.
    difference: i64,
    /// Gradients in a row that did not rise.
    falling: u32,
}

impl Timely {
    pub(super) fn new(config: TimelyConfig, line: u64) -> Timely {
        Timely { config, line, rate: line, previous: None, difference: 0, falling: 0 }
    }

    fn increase(&mut self, steps: u32) {
        self.rate = self.rate.saturating_add(self.config.timely_step_bps.saturating_mul(steps.into())).min(self.line);
    }

    /// Takes `part` of `whole` times beta off the rate.
    fn decrease(&mut self, part: u64, whole: u64) {
        let rate = u128::from(self.rate);
        let cut = rate * u128::from(self.config.timely_decrease_ppm) * u128::from(part)
            / (u128::from(MILLION) * u128::from(whole.max(1)));
        let most = rate * u128::from(self.config.timely_max_decrease_ppm.min(MILLION)) / u128::from(MILLION);
        let left = u64::try_from(rate - cut.min(most)).unwrap_or(0);
        self.rate = left.max(self.config.timely_min_rate_bps.min(self.line));
    }

    /// The cases between T_low and T_high, with the change of "ECN or Delay".
    fn balance(&mut self, round_trip_ns: u64, low_ns: u64) {
        let unit = nanos(self.config.timely_min_round_trip) << FRACTION;
        let gradient = i128::from(self.difference) * i128::from(MILLION) / i128::from(unit.max(1));
        // Of a million.
        let weight = (2 * gradient + i128::from(MILLION) / 2).clamp(0, MILLION.into()) as u64;
        let step = u128::from(self.config.timely_step_bps) * u128::from(u64::from(MILLION) - weight);
        self.decrease((round_trip_ns - low_ns).saturating_mul(weight) / u64::from(MILLION), low_ns);
        let step = u64::try_from(step / u128::from(MILLION)).unwrap_or(u64::MAX);
        self.rate = self.rate.saturating_add(step).min(self.line);
    }

    fn observe(&mut self, round_trip: Duration) {
        let Some(previous) = self.previous.replace(round_trip) else { return };
        let (new_ns, old_ns) = (nanos(round_trip), nanos(previous));
        let gain = i128::from(self.config.timely_gain_ppm);
        let mean = i128::from(self.difference) * (i128::from(MILLION) - gain)
            + (i128::from(new_ns) - i128::from(old_ns)) * (1 << FRACTION) * gain;
        self.difference = i64::try_from(mean / i128::from(MILLION)).unwrap_or(0);
        let (low, high) = (nanos(self.config.timely_low), nanos(self.config.timely_high));
        if new_ns < low {
            self.falling = 0;
            self.increase(1);
        } else if new_ns > high {
            self.falling = 0;
            self.decrease(new_ns - high, new_ns);
        } else if self.config.timely_patched {
            self.balance(new_ns, low);
        } else if self.difference <= 0 {
            self.falling = self.falling.saturating_add(1);
            let hyper = self.falling >= self.config.timely_hyper_after;
            self.increase(if hyper { self.config.timely_hyper_after } else { 1 });
        } else {
            self.falling = 0;
            let unit = nanos(self.config.timely_min_round_trip) << FRACTION;
            self.decrease(self.difference.unsigned_abs(), unit);
        }
    }
}

impl RateControl for Timely {
    fn window_bytes(&self) -> u64 {
        u64::MAX
    }

    fn rate_bps(&mut self, _: Instant) -> Option<u64> {
        (self.rate < self.line).then_some(self.rate)
    }

    fn handle_progress(&mut self, _: Instant, progress: Progress) {
        if let Some(round_trip) = progress.round_trip {
            self.observe(round_trip);
        }
    }
}

/// No longer than an hour, so that sums and products of a few stay small.
fn nanos(time: Duration) -> u64 {
    const HOUR_NS: u64 = 3_600_000_000_000;
    u64::try_from(time.as_nanos()).map_or(HOUR_NS, |ns| ns.min(HOUR_NS))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: u64 = 10_000_000_000;

    fn after(round_trips_us: &[u64]) -> Timely {
        let mut timely = Timely::new(TimelyConfig::default(), LINE);
        timely.rate = LINE / 2;
        for us in round_trips_us {
            let round_trip = Some(Duration::from_micros(*us));
            timely.handle_progress(Instant::ZERO, Progress { packets: 16, round_trip, ..Progress::default() });
        }
        timely
    }

    // Breaks if the rate does not follow algorithm 1: each of its four cases, by hand.
    #[test]
    fn one_event_of_each_kind() {
        const STEP: u64 = 10_000_000;
        // Below T_low the gradient does not matter.
        assert_eq!(after(&[10, 49]).rate, LINE / 2 + STEP);
        // 1 - 0.8 (1 - 500 / 1000) = 0.6, and at most a half is taken off.
        assert_eq!(after(&[1000, 1000]).rate, LINE / 2 * 6 / 10);
        assert_eq!(after(&[100, 120]).rate, LINE / 2 / 2);
        // Not rising: one step.
        assert_eq!(after(&[100, 100]).rate, LINE / 2 + STEP);
        // Rising by 8 us: 0.875 * 8 / 20 = 0.35, and 1 - 0.8 * 0.35 = 0.72.
        assert_eq!(after(&[100, 108]).rate, LINE / 2 * 72 / 100);
    }

    // Breaks if the hyper-active increase begins too early or never, or another event does not end it.
    #[test]
    fn five_in_a_row_are_faster() {
        let rises = |trips: &[u64]| (after(trips).rate - LINE / 2) / 10_000_000;
        assert_eq!(rises(&[100; 5]), 4);
        assert_eq!(rises(&[100; 6]), 4 + 5);
        assert_eq!(rises(&[100; 7]), 4 + 5 + 5);
        // An event below T_low adds one step and begins the count anew; the way back up is no rise of the mean's.
        assert_eq!(rises(&[100, 100, 100, 100, 100, 49]), 4 + 1);
    }

    // Breaks if the changed cases have another weight or decrease: with g = 0, 1/8 and -1/4 it is 1/2, 3/4 and 0.
    #[test]
    fn the_changed_cases() {
        let patched = |trips: &[u64]| {
            let config = TimelyConfig { timely_patched: true, timely_decrease_ppm: 80_000, ..TimelyConfig::default() };
            let mut timely = Timely::new(config, LINE);
            timely.rate = LINE / 2;
            trips.iter().for_each(|ns| timely.observe(Duration::from_nanos(*ns)));
            i64::try_from(timely.rate).expect("is small") - LINE as i64 / 2
        };
        // A half of 10 Mb/s more, and 0.08 / 2 * (75 - 50) / 50 of the rate less.
        assert_eq!(patched(&[75_000, 75_000]), 5_000_000 - 100_000_000);
        // 0.875 * 20 us / 7 / 20 us.
        let rising = patched(&[75_000 - 20_000 / 7, 75_000]);
        assert!((rising - (2_500_000 - 150_000_000)).abs() < 20_000, "{rising}");
        assert_eq!(patched(&[100_000, 75_000]), 10_000_000);
    }

    // Breaks if the mean forgets, or a decrease goes below the least rate: with alpha 0.875 an eighth of a difference stays.
    #[test]
    fn the_mean_and_the_least_rate() {
        let timely = after(&[100, 116, 116]);
        assert_eq!(timely.difference, (16_000 * 7 / 8 / 8) << FRACTION);
        let least = TimelyConfig::default().timely_min_rate_bps;
        let doubling: Vec<u64> = (0..26).map(|n| 60 << n).collect();
        assert_eq!(after(&doubling).rate, least);
    }
}
