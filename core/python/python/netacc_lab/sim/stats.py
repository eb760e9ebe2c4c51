"""Figures with intervals: from several seeds of one point of a sweep.

A mean has a t-interval over its runs. A percentile is read off the merged histogram. Its interval is the
t-interval of the runs' own percentiles, moved to that value, as requests of one run are not independent.
(Resampling three runs has only ten outcomes: such "95 %" intervals covered 71 %.)
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
    half = _half(data)
    return Estimate(centre, centre - half, centre + half)


def _half(data: npt.NDArray[np.float64]) -> float:
    """Half of the length of a t-interval of the mean."""
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, data.size - 1) * stats.sem(data))


def percentile(histograms: Sequence[HdrHistogram], percent: float) -> Estimate:
    """A percentile of all runs together, with an interval. p99.9 needs 10,000 samples, p99 a thousand."""
    total = sum(h.get_total_count() for h in histograms)
    # In thousandths of a percent, as 100 - 99.9 is a little less than 0.1.
    if total * round((100 - percent) * 1000) < TAIL_SAMPLES * 100_000:
        return Estimate(None)
    value = float(merged(histograms).get_value_at_percentile(percent))
    # A run without samples has no percentile.
    each = [float(h.get_value_at_percentile(percent)) for h in histograms if h.get_total_count()]
    if len(each) < 2:
        return Estimate(value)
    half = _half(np.asarray(each))
    return Estimate(value, max(value - half, 0.0), value + half)


def merged(histograms: Sequence[HdrHistogram]) -> HdrHistogram:
    """One histogram of all."""
    whole = HdrHistogram(1, 3_600_000_000_000, 3)
    for each in histograms:
        whole.add(each)
    return whole
