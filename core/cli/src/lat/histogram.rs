//! A histogram as text: a dozen lines.

use hdrhistogram::Histogram;

/// Rows up to the 99th percentile, all of the same width. Two more rows have the values above that: these may be a
/// thousand times as long, and would leave one row for all others.
const ROWS: u64 = 10;

/// Characters of the longest bar.
const BAR: u64 = 40;

/// One line for each bucket: its bounds in microseconds, its share of all values, that of all up to it, and a bar.
pub(super) fn rows(histogram: &Histogram<u64>) -> Vec<String> {
    let all = histogram.len();
    if all == 0 {
        return Vec::new();
    }
    let buckets = buckets(histogram);
    let most = buckets.iter().map(|bucket| bucket.count).max().unwrap_or(1).max(1);
    let us = |ns: u64| format!("{:.3}", ns as f64 / 1000.0);
    let percent = |count: u64| format!("{:.2} %", 100.0 * count as f64 / all as f64);
    let mut lines = vec![format!("{:>12} {:>12} {:>9} {:>10}", "from", "to", "share", "cumulative")];
    let mut below = 0;
    for Bucket { from, to, count } in buckets {
        below += count;
        let bar = "#".repeat((count * BAR).div_ceil(most) as usize);
        let line = format!("{:>12} {:>12} {:>9} {:>10}  {bar}", us(from), us(to), percent(count), percent(below));
        lines.push(line.trim_end().to_owned());
    }
    lines
}

/// Both bounds belong to it.
struct Bucket {
    from: u64,
    to: u64,
    count: u64,
}

fn buckets(histogram: &Histogram<u64>) -> Vec<Bucket> {
    let (least, most) = (histogram.min(), histogram.max());
    let knee = histogram.value_at_quantile(0.99).clamp(least, most);
    let width = (knee - least + 1).div_ceil(ROWS);
    let narrow = (1..=ROWS).map(|row| (least + row * width - 1).min(knee));
    let mut from = least;
    let mut buckets = Vec::new();
    for to in narrow.chain([histogram.value_at_quantile(0.999).min(most), most]) {
        if to >= from {
            buckets.push(Bucket { from, to, count: 0 });
            from = to + 1;
        }
    }
    for value in histogram.iter_recorded() {
        // They have three digits: the last may be recorded as a little more than it was.
        let at = buckets.partition_point(|bucket| bucket.to < value.value_iterated_to());
        let last = buckets.len() - 1;
        buckets[at.min(last)].count += value.count_at_value();
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[(u64, u64)]) -> Histogram<u64> {
        let mut histogram = Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("bounds and digits are allowed");
        values.iter().for_each(|(value, count)| histogram.record_n(*value, *count).expect("within the bounds"));
        histogram
    }

    #[test]
    fn a_histogram_is_printed_in_rows() {
        // 10,000 values: the 9,900th and the 9,990th end the rows.
        let shown = rows(&of(&[(1_100, 5000), (1_200, 2500), (2_000, 2400), (40_000, 92), (9_000_000, 8)]));
        let expected = [
            "        from           to     share cumulative",
            "       1.100        1.190   50.00 %    50.00 %  ########################################",
            "       1.191        1.281   25.00 %    75.00 %  ####################",
            "       1.282        1.372    0.00 %    75.00 %",
        ];
        assert_eq!(shown[..4], expected);
        assert_eq!(shown.len(), 1 + 12);
        assert_eq!(shown[10], "       1.919        2.000   24.00 %    99.00 %  ####################");
        assert!(shown[11].ends_with(" 0.92 %    99.92 %  #"), "{}", shown[11]);
        assert!(shown[12].ends_with(" 0.08 %   100.00 %  #"), "{}", shown[12]);
    }

    #[test]
    fn few_values_take_few_lines_and_none_take_none() {
        assert!(rows(&of(&[])).is_empty());
        let one = rows(&of(&[(5, 3)]));
        assert_eq!(
            one[1..],
            [format!("{:>12} {:>12} {:>9} {:>10}  {}", "0.005", "0.005", "100.00 %", "100.00 %", "#".repeat(40))]
        );
        for values in [&[(1, 1), (2, 1)][..], &[(1, 1), (3_600_000_000_000, 1)], &[(999, 1), (123_456_789, 7)]] {
            let shown = rows(&of(values));
            assert!(
                shown.len() <= 1 + 12 && shown.last().is_some_and(|line| line.contains(" 100.00 %  #")),
                "{shown:?}"
            );
        }
    }
}
