//! DCQCN: a rate that falls with notifications of marked packets, and comes back by time and volume.

use std::time::Duration;

use netacc_device::Instant;
use netacc_parameters::parameters;

use super::RateControl;

/// Parameters of DCQCN's reaction point (Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015,
/// section 5 and appendix). Names in parentheses are the paper's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DcqcnConfig {
    /// `g` is 2 to the minus this.
    pub gain_shift: u32,
    /// Without a notification for so long, the estimate of congestion decays (`K`).
    pub alpha_interval: Duration,
    /// At most one decrease in so long; zero for one with each notification.
    pub decrease_interval: Duration,
    /// Period of increases by time (`T`).
    pub increase_interval: Duration,
    /// Bytes between increases by volume (`B`). `None`: increases are by time alone, and hyper ones need no volume.
    pub increase_bytes: Option<u64>,
    /// Increases of a kind that recover before additive ones begin (`F`).
    pub fast_recovery_steps: u32,
    /// A decrease that follows another without an increase between leaves the target where it was.
    pub keeps_target: bool,
    /// `R_AI`, in bits per second.
    pub additive_bps: u64,
    /// `R_HAI`, in bits per second.
    pub hyper_bps: u64,
    /// Lowest rate, in bits per second.
    pub min_rate_bps: u64,
}

impl DcqcnConfig {
    /// As the paper deployed it at 40 Gb/s: g 1/256, K and T 55 us, B 10 MB, F 5, R_AI 40 Mb/s. It names no hyper step or
    /// lowest rate; those here are ten additive steps and one.
    pub fn paper() -> DcqcnConfig {
        DcqcnConfig {
            gain_shift: 8,
            alpha_interval: Duration::from_micros(55),
            decrease_interval: Duration::ZERO,
            increase_interval: Duration::from_micros(55),
            increase_bytes: Some(10_000_000),
            fast_recovery_steps: 5,
            keeps_target: false,
            additive_bps: 40_000_000,
            hyper_bps: 400_000_000,
            min_rate_bps: 40_000_000,
        }
    }

    /// As the HPCC authors ran it (`dcqcn` of their `run.py`, and `RdmaHw`'s `...Mlx`, which its name attributes to a vendor):
    /// alpha 1 us, decrease 4 us, increase 300 us by time alone, g 1/256, F 1, steps of 5 and 50 Mb/s at 25 Gb/s and in
    /// proportion at other line rates. Theirs decides about decreases every 4 us; here it is upon a notification, no sooner
    /// than 4 us after the last.
    pub fn hpcc(line_rate_bps: u64) -> DcqcnConfig {
        let scaled = |bps: u64| (bps * (line_rate_bps / 1_000_000) / 25_000).max(1);
        DcqcnConfig {
            alpha_interval: Duration::from_micros(1),
            decrease_interval: Duration::from_micros(4),
            increase_interval: Duration::from_micros(300),
            increase_bytes: None,
            fast_recovery_steps: 1,
            keeps_target: true,
            additive_bps: scaled(5_000_000),
            hyper_bps: scaled(50_000_000),
            min_rate_bps: 100_000_000,
            ..DcqcnConfig::paper()
        }
    }
}

parameters! {
    /// Parameters of DCQCN that differ from those of a set (the paper's, the HPCC authors'). `None`: the set's value.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DcqcnChanges {
        /// g is 2 to the minus this.
        dcqcn_gain_shift: Option<u32> = None, at least 1, at most 30;
        /// K: without a notification for so long, the estimate of congestion decays.
        dcqcn_alpha_interval: Option<Duration> = None, at least 1;
        /// At most one decrease in so long; 0 for one with each notification.
        dcqcn_decrease_interval: Option<Duration> = None;
        /// T: period of increases by time.
        dcqcn_increase_interval: Option<Duration> = None, at least 1;
        /// B: bytes between increases by volume; 0 for increases by time alone.
        dcqcn_increase_bytes: Option<u64> = None;
        /// F: increases of a kind that recover before additive ones begin.
        dcqcn_fast_recovery_steps: Option<u32> = None, at least 1;
        /// A decrease that follows another without an increase between leaves the target rate where it was.
        dcqcn_keeps_target: Option<bool> = None;
        /// R_AI: the additive step.
        dcqcn_additive_bps: Option<u64> = None, at least 1;
        /// R_HAI: the hyper step.
        dcqcn_hyper_bps: Option<u64> = None, at least 1;
        /// The lowest rate.
        dcqcn_min_rate_bps: Option<u64> = None, at least 1;
    }
}

impl DcqcnConfig {
    /// With these changes.
    pub fn with(self, changes: &DcqcnChanges) -> DcqcnConfig {
        let increase_bytes = match changes.dcqcn_increase_bytes {
            None => self.increase_bytes,
            Some(bytes) => (bytes > 0).then_some(bytes),
        };
        DcqcnConfig {
            gain_shift: changes.dcqcn_gain_shift.unwrap_or(self.gain_shift),
            alpha_interval: changes.dcqcn_alpha_interval.unwrap_or(self.alpha_interval),
            decrease_interval: changes.dcqcn_decrease_interval.unwrap_or(self.decrease_interval),
            increase_interval: changes.dcqcn_increase_interval.unwrap_or(self.increase_interval),
            increase_bytes,
            fast_recovery_steps: changes.dcqcn_fast_recovery_steps.unwrap_or(self.fast_recovery_steps),
            keeps_target: changes.dcqcn_keeps_target.unwrap_or(self.keeps_target),
            additive_bps: changes.dcqcn_additive_bps.unwrap_or(self.additive_bps),
            hyper_bps: changes.dcqcn_hyper_bps.unwrap_or(self.hyper_bps),
            min_rate_bps: changes.dcqcn_min_rate_bps.unwrap_or(self.min_rate_bps),
        }
    }
}

/// One, in the fixed-point numbers that `alpha` is kept in.
const ONE: u64 = 1 << 30;

/// Invariants: `min_rate <= current <= target <= line` once a notification has come, all of them `line` before;
/// `increase_at` is set exactly while `current < line`.
#[derive(Debug)]
pub(super) struct Dcqcn {
    config: DcqcnConfig,
    line: u64,
    current: u64,
    target: u64,
    alpha: u64,
    alpha_at: Option<Instant>,
    increase_at: Option<Instant>,
    decreased_at: Option<Instant>,
    bytes: u64,
    by_time: u32,
    by_bytes: u32,
}

impl Dcqcn {
    pub(super) fn new(config: DcqcnConfig, line: u64) -> Dcqcn {
        Dcqcn {
            config,
            line,
            current: line,
            target: line,
            alpha: ONE,
            alpha_at: None,
            increase_at: None,
            decreased_at: None,
            bytes: 0,
            by_time: 0,
            by_bytes: 0,
        }
    }

    /// Does what was due by now. Ends: both timers stop once there is nothing left for them to do.
    fn catch_up(&mut self, now: Instant) {
        while let Some(due) = [self.alpha_at, self.increase_at].into_iter().flatten().min().filter(|t| *t <= now) {
            if self.alpha_at == Some(due) {
                self.alpha -= (self.alpha >> self.config.gain_shift).max(1).min(self.alpha);
                self.alpha_at = (self.alpha > 0).then(|| due + self.config.alpha_interval);
            } else {
                self.by_time += 1;
                self.increase_at = Some(due + self.config.increase_interval);
                self.increase();
            }
        }
    }

    fn increase(&mut self) {
        let (most, least) = match self.config.increase_bytes {
            Some(_) => (self.by_time.max(self.by_bytes), self.by_time.min(self.by_bytes)),
            // So many came before this one.
            None => (self.by_time - 1, self.by_time - 1),
        };
        let steps = self.config.fast_recovery_steps;
        if least > steps {
            self.target = self.target.saturating_add(self.config.hyper_bps);
        } else if most >= steps {
            self.target = self.target.saturating_add(self.config.additive_bps);
        }
        self.target = self.target.min(self.line);
        // The half is rounded up, so that the target is reached.
        self.current = (self.current + self.target).div_ceil(2);
        if self.current >= self.line {
            self.increase_at = None;
        }
    }
}

impl RateControl for Dcqcn {
    fn window_bytes(&self) -> u64 {
        u64::MAX
    }

    fn rate_bps(&mut self, now: Instant) -> Option<u64> {
        self.catch_up(now);
        (self.current < self.line).then_some(self.current)
    }

    fn handle_sent(&mut self, now: Instant, wire_bytes: u32) {
        self.catch_up(now);
        let (Some(_), Some(increase_bytes)) = (self.increase_at, self.config.increase_bytes) else { return };
        self.bytes += u64::from(wire_bytes);
        if self.bytes >= increase_bytes {
            self.bytes = 0;
            self.by_bytes += 1;
            self.increase();
        }
    }

    fn handle_congestion(&mut self, now: Instant) {
        self.catch_up(now);
        self.alpha = self.alpha - (self.alpha >> self.config.gain_shift) + (ONE >> self.config.gain_shift);
        self.alpha_at = Some(now + self.config.alpha_interval);
        if self.decreased_at.is_some_and(|t| now.saturating_since(t) < self.config.decrease_interval) {
            return;
        }
        self.decreased_at = Some(now);
        if !self.config.keeps_target || self.by_time > 0 {
            self.target = self.current;
        }
        let cut = (u128::from(self.current) * u128::from(self.alpha) / u128::from(2 * ONE)) as u64;
        self.current = (self.current - cut).max(self.config.min_rate_bps.min(self.line));
        self.increase_at = Some(now + self.config.increase_interval);
        (self.bytes, self.by_time, self.by_bytes) = (0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: u64 = 40_000_000_000;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    // Breaks if the first notification does not halve the rate (alpha begins at 1), or recovery does not go half the way
    // back with each period: the paper's equations 1 and 3.
    #[test]
    fn a_cut_and_the_way_back() {
        let mut rate = Dcqcn::new(DcqcnConfig::paper(), LINE);
        assert_eq!(rate.rate_bps(at(0)), None);
        rate.handle_congestion(at(0));
        assert_eq!(rate.rate_bps(at(0)), Some(LINE / 2));
        assert_eq!(rate.rate_bps(at(54)), Some(LINE / 2));
        assert_eq!(rate.rate_bps(at(55)), Some(LINE * 3 / 4));
        assert_eq!(rate.rate_bps(at(110)), Some(LINE * 7 / 8));
    }

    // Breaks if additive increase begins too early or has another step: the fifth period is the first that raises the target.
    #[test]
    fn additive_increase_begins_after_five_periods() {
        let mut rate = Dcqcn::new(DcqcnConfig::paper(), LINE);
        rate.handle_congestion(at(0));
        rate.handle_congestion(at(1));
        assert_eq!(rate.target, LINE / 2);
        rate.catch_up(at(1 + 4 * 55));
        assert_eq!(rate.target, LINE / 2);
        rate.catch_up(at(1 + 5 * 55));
        assert_eq!(rate.target, LINE / 2 + 40_000_000);
        rate.catch_up(at(1 + 6 * 55));
        assert_eq!(rate.target, LINE / 2 + 80_000_000);
    }

    // Breaks if bytes do not count as time does: both beyond five periods is hyper increase.
    #[test]
    fn hyper_increase_needs_both() {
        let mut rate = Dcqcn::new(DcqcnConfig::paper(), LINE);
        rate.handle_congestion(at(0));
        rate.handle_congestion(at(1));
        for _ in 0..6 {
            rate.handle_sent(at(2), 10_000_000);
        }
        let before = rate.target;
        rate.catch_up(at(1 + 5 * 55));
        assert_eq!(rate.target, before + 5 * 40_000_000);
        rate.catch_up(at(1 + 6 * 55));
        assert_eq!(rate.target, before + 5 * 40_000_000 + 400_000_000);
    }

    // Breaks if an idle queue pair stays slow, or catching up after a long time never ends.
    #[test]
    fn the_line_rate_comes_back() {
        for config in [DcqcnConfig::paper(), DcqcnConfig::hpcc(LINE)] {
            let mut rate = Dcqcn::new(config, LINE);
            (0..100).for_each(|n| rate.handle_congestion(at(n)));
            assert!(rate.rate_bps(at(100)).is_some_and(|bps| bps < LINE / 100), "{rate:?}");
            assert_eq!(rate.rate_bps(at(10_000_000)), None);
            assert_eq!((rate.alpha, rate.alpha_at, rate.increase_at), (0, None, None));
        }
    }

    // Breaks if the HPCC authors' variant takes a lower target from each of several cuts, counts bytes, or waits for them.
    #[test]
    fn time_alone_increases_where_bytes_do_not_count() {
        let config = DcqcnConfig::hpcc(LINE);
        let mut rate = Dcqcn::new(config.clone(), LINE);
        rate.handle_congestion(at(0));
        rate.handle_congestion(at(4));
        assert_eq!(rate.target, LINE);
        let cut = rate.current;
        rate.handle_sent(at(5), u32::MAX);
        rate.catch_up(at(4 + 299));
        assert_eq!(rate.current, cut);
        rate.catch_up(at(4 + 300));
        assert_eq!((rate.target, rate.current), (LINE, (cut + LINE).div_ceil(2)));
        // There was an increase between.
        rate.handle_congestion(at(400));
        let target = (cut + LINE).div_ceil(2);
        assert_eq!(rate.target, target);
        for (after, above) in [(300, 0), (600, config.additive_bps), (900, config.additive_bps + config.hyper_bps)] {
            rate.catch_up(at(400 + after));
            assert_eq!(rate.target, target + above);
        }
    }

    // Breaks if a change gets lost or goes to another parameter: each differs from the paper's and from the others.
    #[test]
    fn changes_replace_values_of_a_set() {
        assert_eq!(DcqcnConfig::paper().with(&DcqcnChanges::default()), DcqcnConfig::paper());
        let us = |us| Some(Duration::from_micros(us));
        let changes = DcqcnChanges {
            dcqcn_gain_shift: Some(4),
            dcqcn_alpha_interval: us(1),
            dcqcn_decrease_interval: us(2),
            dcqcn_increase_interval: us(3),
            dcqcn_increase_bytes: Some(0),
            dcqcn_fast_recovery_steps: Some(7),
            dcqcn_keeps_target: Some(true),
            dcqcn_additive_bps: Some(10),
            dcqcn_hyper_bps: Some(11),
            dcqcn_min_rate_bps: Some(12),
        };
        let expected = DcqcnConfig {
            gain_shift: 4,
            alpha_interval: Duration::from_micros(1),
            decrease_interval: Duration::from_micros(2),
            increase_interval: Duration::from_micros(3),
            increase_bytes: None,
            fast_recovery_steps: 7,
            keeps_target: true,
            additive_bps: 10,
            hyper_bps: 11,
            min_rate_bps: 12,
        };
        assert_eq!(DcqcnConfig::paper().with(&changes), expected);
    }

    // Breaks if notifications within the interval cut again.
    #[test]
    fn decreases_keep_their_distance() {
        let mut rate = Dcqcn::new(DcqcnConfig::hpcc(LINE), LINE);
        (0..4).for_each(|us| rate.handle_congestion(at(us)));
        assert_eq!(rate.current, LINE / 2);
        rate.handle_congestion(at(4));
        assert!(rate.current < LINE / 3);
    }
}
