"""Figures with intervals: from several seeds of one point of a sweep.

A mean has a t-interval over its runs. A percentile is read off the merged histogram; its interval is from
resampling the runs (bootstrap over seeds), as requests of one run are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hdrh.histogram import HdrHistogram
from scipy import stats

#: Of all intervals.
CONFIDENCE = 0.95
#: With fewer samples than this many beyond it, a percentile is not reported.
TAIL_SAMPLES = 10
#: Resamplings of a bootstrap. Arbitrary: the interval's own error is then about a percent of its width.
RESAMPLINGS = 2000


@dataclass(frozen=True)
class Estimate:
    """A figure and its interval; none with one run. `value` is None where there are too few samples."""

    value: float | None
    low: float | None = None
    high: float | None = None


def mean(values: Sequence[float]) -> Estimate:
    """The mean of runs, with a t-interval."""
    data = np.asarray(values, dtype=float)
    if data.size == 0:
        return Estimate(None)
    centre = float(data.mean())
    if data.size < 2:
        return Estimate(centre)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, data.size - 1) * stats.sem(data))
    return Estimate(centre, centre - half, centre + half)


def percentile(histograms: Sequence[HdrHistogram], percent: float) -> Estimate:
    """A percentile of all runs together, with an interval. p99.9 needs 10,000 samples, p99 a thousand."""
    total = sum(h.get_total_count() for h in histograms)
    # In thousandths of a percent, as 100 - 99.9 is a little less than 0.1.
    if total * round((100 - percent) * 1000) < TAIL_SAMPLES * 100_000:
        return Estimate(None)
    value = float(merged(histograms).get_value_at_percentile(percent))
    if len(histograms) < 2:
        return Estimate(value)
    # Resamples runs, not requests; seeded, so that a report is the same again.
    values, counts = _counts(histograms)
    runs = len(histograms)
    weights = np.random.default_rng(0).multinomial(runs, np.full(runs, 1 / runs), size=RESAMPLINGS)
    sums = np.cumsum(weights @ counts, axis=1)
    wanted = np.maximum(np.ceil(sums[:, -1:] * percent / 100), 1)
    drawn = values[np.argmax(sums >= wanted, axis=1)]
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(value, float(low), float(high))


def _counts(histograms: Sequence[HdrHistogram]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """The values that occur in any of them, in order; and by histogram, how often each does."""
    found = [
        {item.value_iterated_to: item.count_at_value_iterated_to for item in h.get_recorded_iterator()}
        for h in histograms
    ]
    values = sorted(set().union(*found))
    counts = np.array([[each.get(value, 0) for value in values] for each in found], dtype=np.int64)
    return np.array(values, dtype=np.float64), counts


def merged(histograms: Sequence[HdrHistogram]) -> HdrHistogram:
    """One histogram of all."""
    whole = HdrHistogram(1, 3_600_000_000_000, 3)
    for each in histograms:
        whole.add(each)
    return whole
