//! A span of time that varies: the value of a parameter whose cost is not always the same.
//!
//! # Invariants
//! * Draws are integers from integers ([`fixed`](crate::fixed)): the same on every machine.
//! * A constant takes nothing from the sequence of random numbers, so a model without variance runs as if there were none.

use std::time::Duration;

use serde_json::{json, Value};

use crate::fixed::{exponential, normal, scale_exp};
use crate::{Quantity, Unit};

/// Draws that stand for all where there are more: the sum of many hardly varies. Arbitrary.
const MAX_DRAWS: u32 = 1024;

/// Of which the deviation of a lognormal distribution's logarithm is a part.
const MILLION: i128 = 1_000_000;

/// The depth of mixtures of mixtures. Arbitrary: bounds the recursion on input from files.
const MAX_DEPTH: u32 = 4;

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution(Form);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    Constant(u64),
    Exponential {
        mean_ns: u64,
    },
    /// The deviation is of the natural logarithm, in millionths.
    Lognormal {
        median_ns: u64,
        deviation_ppm: u64,
    },
    /// Weight, shortest and longest, within which all are as likely. Some bin has weight.
    Histogram(Vec<[u64; 3]>),
    /// Some part has weight.
    Mixture(Vec<(u64, Distribution)>),
}

impl Distribution {
    /// Always no time.
    pub const ZERO: Distribution = Distribution(Form::Constant(0));

    /// Exponentially distributed.
    pub fn exponential(mean: Duration) -> Distribution {
        Distribution(Form::Exponential { mean_ns: whole_ns(mean) })
    }

    /// Lognormally distributed; the deviation is of the natural logarithm, in millionths.
    pub fn lognormal(median: Duration, deviation_ppm: u64) -> Distribution {
        Distribution(Form::Lognormal { median_ns: whole_ns(median), deviation_ppm })
    }

    /// Weights, and the shortest and longest time of each bin. `None` if no bin has weight, or one is out of order.
    pub fn histogram(bins: Vec<[u64; 3]>) -> Option<Distribution> {
        let total = bins.iter().try_fold(0u64, |sum, [weight, ..]| sum.checked_add(*weight))?;
        let sane = bins.iter().all(|[_, least, most]| least <= most && *most < u64::MAX);
        (total > 0 && sane).then_some(Distribution(Form::Histogram(bins)))
    }

    /// Each of these with its weight. `None` if none has weight.
    pub fn mixture(parts: Vec<(u64, Distribution)>) -> Option<Distribution> {
        let total = parts.iter().try_fold(0u64, |sum, (weight, _)| sum.checked_add(*weight))?;
        (total > 0).then_some(Distribution(Form::Mixture(parts)))
    }

    /// Whether it is always no time.
    pub fn is_zero(&self) -> bool {
        *self == Distribution::ZERO
    }

    /// One of its values.
    pub fn draw(&self, random: &mut dyn FnMut() -> u64) -> Duration {
        Duration::from_nanos(self.draw_ns(random))
    }

    /// The sum of so many of its values.
    pub fn sum(&self, count: u32, random: &mut dyn FnMut() -> u64) -> Duration {
        if let Form::Constant(ns) = self.0 {
            return Duration::from_nanos(ns.saturating_mul(u64::from(count)));
        }
        let drawn = count.min(MAX_DRAWS);
        let sum: u128 = (0..drawn).map(|_| u128::from(self.draw_ns(random))).sum();
        let all = sum * u128::from(count) / u128::from(drawn.max(1));
        Duration::from_nanos(u64::try_from(all).unwrap_or(u64::MAX))
    }

    fn draw_ns(&self, random: &mut dyn FnMut() -> u64) -> u64 {
        match &self.0 {
            Form::Constant(ns) => *ns,
            Form::Exponential { mean_ns } => {
                let product = u128::from(*mean_ns) * u128::from(exponential(random()));
                u64::try_from(product >> 32).unwrap_or(u64::MAX)
            }
            Form::Lognormal { median_ns, deviation_ppm } => {
                let power = i128::from(normal(random)) * i128::from(*deviation_ppm) / MILLION;
                let bounded = power.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
                scale_exp(*median_ns, bounded as i64)
            }
            Form::Histogram(bins) => {
                let [_, least, most] = bins[pick(bins.iter().map(|[weight, ..]| *weight), random)];
                least + random() % (most - least + 1)
            }
            Form::Mixture(parts) => {
                let part = pick(parts.iter().map(|(weight, _)| *weight), random);
                parts[part].1.draw_ns(random)
            }
        }
    }

    fn read(value: &Value, depth: u32) -> Option<Distribution> {
        if let Some(ns) = value.as_u64() {
            return Some(Distribution(Form::Constant(ns)));
        }
        let object = value.as_object().filter(|object| object.len() == 1 && depth > 0)?;
        let (name, form) = object.iter().next()?;
        match name.as_str() {
            "exponential" => Some(Distribution(Form::Exponential { mean_ns: form.as_u64()? })),
            "lognormal" => {
                let [median_ns, deviation_ppm] = numbers(form)?;
                Some(Distribution(Form::Lognormal { median_ns, deviation_ppm }))
            }
            "histogram" => Distribution::histogram(form.as_array()?.iter().map(numbers).collect::<Option<_>>()?),
            "mixture" => {
                let part = |part: &Value| match part.as_array()?.as_slice() {
                    [weight, of] => Some((weight.as_u64()?, Distribution::read(of, depth - 1)?)),
                    _ => None,
                };
                Distribution::mixture(form.as_array()?.iter().map(part).collect::<Option<_>>()?)
            }
            _ => None,
        }
    }
}

impl From<Duration> for Distribution {
    fn from(time: Duration) -> Distribution {
        Distribution(Form::Constant(whole_ns(time)))
    }
}

impl Quantity for Distribution {
    const UNIT: Unit = Unit::Distribution;
    const GREATEST: Option<u64> = Some(u64::MAX);

    fn encode(&self) -> Value {
        match &self.0 {
            Form::Constant(ns) => json!(ns),
            Form::Exponential { mean_ns } => json!({ "exponential": mean_ns }),
            Form::Lognormal { median_ns, deviation_ppm } => json!({ "lognormal": [median_ns, deviation_ppm] }),
            Form::Histogram(bins) => json!({ "histogram": bins }),
            Form::Mixture(parts) => {
                let parts: Vec<Value> = parts.iter().map(|(weight, of)| json!([weight, of.encode()])).collect();
                json!({ "mixture": parts })
            }
        }
    }

    fn decode(value: &Value) -> Option<Distribution> {
        Distribution::read(value, MAX_DEPTH)
    }
}

/// The index of one of these weights, each as likely as it weighs.
fn pick(weights: impl Iterator<Item = u64> + Clone, random: &mut dyn FnMut() -> u64) -> usize {
    let mut at = random() % weights.clone().sum::<u64>().max(1);
    for (index, weight) in weights.enumerate() {
        if at < weight {
            return index;
        }
        at -= weight;
    }
    unreachable!("`at` is below the sum of the weights")
}

fn numbers<const N: usize>(value: &Value) -> Option<[u64; N]> {
    let all: Vec<u64> = value.as_array()?.iter().map(Value::as_u64).collect::<Option<_>>()?;
    all.try_into().ok()
}

fn whole_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that look random, always the same (Steele and Vigna's SplitMix64).
    fn sequence() -> impl FnMut() -> u64 {
        let mut state = 7u64;
        move || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ mixed >> 31
        }
    }

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    /// Mean, deviation and the share below `limit` of a million draws, in microseconds.
    fn moments(of: &Distribution, limit: f64) -> [f64; 3] {
        let mut random = sequence();
        let drawn: Vec<f64> = (0..1_000_000).map(|_| of.draw(&mut random).as_nanos() as f64 / 1e3).collect();
        let count = drawn.len() as f64;
        let mean = drawn.iter().sum::<f64>() / count;
        let square = drawn.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
        [mean, square.sqrt(), drawn.iter().filter(|x| **x < limit).count() as f64 / count]
    }

    fn assert_near(found: [f64; 3], expected: [f64; 3]) {
        for (found, expected) in found.into_iter().zip(expected) {
            assert!((found - expected).abs() < 0.01 * expected.max(1e-9), "{found} for {expected}");
        }
    }

    // Breaks if a distribution is another one: mean, deviation, and the share below a limit by closed forms.
    #[test]
    fn draws_are_distributed_as_they_should() {
        assert_near(moments(&Distribution::exponential(us(10)), 10.0), [10.0, 10.0, 1.0 - (-1.0f64).exp()]);
        // Mean and deviation of exp(N(ln 10, 0.5)); half is below the median, and 97.725 % below exp(2 * 0.5) of it.
        let lognormal = Distribution::lognormal(us(10), 500_000);
        let (mean, spread) = (10.0 * 0.125f64.exp(), (0.25f64.exp() - 1.0).sqrt());
        assert_near(moments(&lognormal, 10.0), [mean, mean * spread, 0.5]);
        assert_near(moments(&lognormal, 10.0 * 1.0f64.exp()), [mean, mean * spread, 0.97725]);
        let histogram = Distribution::histogram(vec![[3, 1_000, 1_000], [1, 4_000, 6_000]]).expect("has weight");
        // Three quarters of 1, and 5 give or take the square root of a third: 1/4 * (25 + 1/3) + 3/4 - 4.
        assert_near(moments(&histogram, 2.0), [2.0, (25.333f64 / 4.0 + 0.75 - 4.0).sqrt(), 0.75]);
        let parts = vec![(9, us(1).into()), (1, Distribution::exponential(us(11)))];
        let mixture = Distribution::mixture(parts).expect("has weight");
        let variance = 0.9 + 0.1 * 2.0 * 121.0 - 4.0;
        assert_near(moments(&mixture, 1.5), [2.0, f64::sqrt(variance), 0.9 + 0.1 * (1.0 - (-1.5f64 / 11.0).exp())]);
    }

    // Breaks if a constant takes a number from the sequence, or its sum is not exact.
    #[test]
    fn a_constant_is_constant() {
        let mut random = || unreachable!("nothing is random");
        let constant = Distribution::from(us(3));
        assert_eq!((constant.draw(&mut random), constant.sum(7, &mut random)), (us(3), us(21)));
        assert!(Distribution::ZERO.is_zero() && !constant.is_zero());
    }

    // Breaks if a sum is of fewer or more draws, or of many is not what its length promises.
    #[test]
    fn a_sum_is_of_so_many() {
        let of = Distribution::histogram(vec![[1, 5, 5]]).expect("has weight");
        let mut random = sequence();
        for count in [0, 1, 3, MAX_DRAWS, MAX_DRAWS + 1, u32::MAX] {
            assert_eq!(of.sum(count, &mut random), Duration::from_nanos(5 * u64::from(count)));
        }
    }

    // Breaks if a form is read as another one, or one that makes no sense is accepted.
    #[test]
    fn forms_are_read_as_they_are_written() {
        let mixture = vec![(1, Distribution::exponential(us(2))), (2, Distribution::lognormal(us(1), 3))];
        let histogram = Distribution::histogram(vec![[1, 2, 3]]);
        for of in [Some(us(5).into()), Distribution::mixture(mixture), histogram].into_iter().flatten() {
            assert_eq!(Distribution::decode(&of.encode()), Some(of));
        }
        for wrong in [
            r#"-1"#,
            r#""5""#,
            r#"{}"#,
            r#"{"uniform": 3}"#,
            r#"{"lognormal": [1]}"#,
            r#"{"exponential": 1, "lognormal": [1, 2]}"#,
            r#"{"histogram": []}"#,
            r#"{"histogram": [[0, 1, 2]]}"#,
            r#"{"histogram": [[1, 3, 2]]}"#,
            r#"{"histogram": [[18446744073709551615, 1, 2], [1, 1, 2]]}"#,
            r#"{"mixture": [[0, 5]]}"#,
            r#"{"mixture": [[1, {"mixture": [[1, {"mixture": [[1, {"mixture": [[1, {"mixture": [[1, 5]]}]]}]]}]]}]]}"#,
        ] {
            let value = serde_json::from_str(wrong).expect("is JSON");
            assert_eq!(Distribution::decode(&value), None, "{wrong}");
        }
    }
}
