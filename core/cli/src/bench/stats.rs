//! Medians over rounds, and ratios between paths within a round.

use serde::{Deserialize, Serialize};

/// A ratio to the reference path over interleaved rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Median of the rounds' ratios.
    pub median: f64,
    /// The lowest round.
    pub min: f64,
    /// The highest round.
    pub max: f64,
}

/// The median of the finite values; of an even number, the mean of the middle two. `None` when
/// there is none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        len if len % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// `values[i] / reference[i]` for each round, summarised. Rounds where the reference is zero or one
/// side is missing do not count; `None` when no round is left.
pub(crate) fn ratio(values: &[f64], reference: &[f64]) -> Option<Ratio> {
    let ratios: Vec<f64> = values
        .iter()
        .zip(reference)
        .filter(|(_, reference)| **reference > 0.0)
        .map(|(value, reference)| value / reference)
        .filter(|ratio| ratio.is_finite())
        .collect();
    Some(Ratio {
        median: tidy(median(ratios.iter().copied())?),
        min: tidy(ratios.iter().copied().fold(f64::INFINITY, f64::min)),
        max: tidy(ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
    })
}

/// Six digits after the point: more than any measurement here has, and no rounding errors in the JSON.
pub(crate) fn tidy(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_even_and_nothing() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median([]), None);
        assert_eq!(median([f64::NAN, 5.0]), Some(5.0));
    }

    /// Breaks if medians are divided instead of rounds: here the medians' ratio is 2, the rounds' is 3.
    #[test]
    fn ratios_are_taken_within_a_round() {
        let tcp = [10.0, 20.0, 100.0];
        let shm = [30.0, 40.0, 300.0];
        assert_eq!(ratio(&shm, &tcp), Some(Ratio { median: 3.0, min: 2.0, max: 3.0 }));
    }

    #[test]
    fn rounds_without_reference_do_not_count() {
        assert_eq!(ratio(&[1.0, 4.0], &[0.0, 2.0]), Some(Ratio { median: 2.0, min: 2.0, max: 2.0 }));
        assert_eq!(ratio(&[1.0], &[0.0]), None);
        assert_eq!(ratio(&[], &[]), None);
    }
}
