"""Tails with intervals, and the correction for coordinated omission."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hdrh.histogram import HdrHistogram
from scipy import stats as scipy_stats

from netacc_lab.analysis.record import Series
from netacc_lab.sim import stats

Floats = npt.NDArray[np.float64]
#: The percentiles that are reported.
USUAL = (50.0, 95.0, 99.0, 99.9)


@dataclass(frozen=True)
class Tail:
    """A percentile of a series, in nanoseconds, and its interval (95 %)."""

    percent: float
    #: None where there are too few requests beyond it.
    value: float | None
    low: float | None = None
    high: float | None = None
    #: `runs`: a t-interval over the runs' own percentiles. `ranks`: by order statistics of one run, as if its
    #: requests were independent. They are not, so that interval is too narrow. Empty: no interval.
    method: str = ""


def percentiles(series: Series, at: Sequence[float] = USUAL) -> list[Tail]:
    """Percentiles with intervals.

    Of several runs as `netacc_lab.sim.stats` has them; without histograms the mean of the runs' own. Of one
    run: the ranks of order statistics between which the percentile lies, by the binomial distribution
    (Le Boudec, Performance Evaluation, theorem 2.1).
    """
    return [_tail(series, percent) for percent in at]


def _tail(series: Series, percent: float) -> Tail:
    histograms = series.histograms()
    if not histograms:
        known = [value for run in series.runs if (value := run.summary.get(percent)) is not None]
        if not known:
            return Tail(percent, None)
        of_runs = stats.mean(known)
        return Tail(percent, of_runs.value, of_runs.low, of_runs.high, "runs" if len(known) > 1 else "")
    found = stats.percentile(histograms, percent)
    if found.value is None or len(histograms) > 1:
        return Tail(percent, found.value, found.low, found.high, "runs" if found.low is not None else "")
    count = histograms[0].get_total_count()
    alpha = (1 - stats.CONFIDENCE) / 2
    low, high = (
        float(histograms[0].get_value_at_percentile(100 * float(rank) / count))
        for rank in np.asarray(scipy_stats.binom.ppf([alpha, 1 - alpha], count, percent / 100))
    )
    return Tail(percent, found.value, low, high, "ranks")


def ccdf(series: Series) -> tuple[Floats, Floats, Floats, Floats]:
    """Latencies, the share of requests that take longer than each, and a band of that share.

    The band is pointwise, 95 %, by Clopper and Pearson (Biometrika, 1934), as if requests were independent.
    Raises ValueError for a series without histograms.
    """
    histograms = series.histograms()
    if not histograms:
        raise ValueError(f"{series.label}: only percentiles were recorded (netacc bench echo --histogram)")
    whole = stats.merged(histograms)
    items = [
        (each.value_iterated_to, each.count_at_value_iterated_to) for each in whole.get_recorded_iterator()
    ]
    values = np.array([value for value, _ in items], dtype=np.float64)
    counts = np.array([count for _, count in items], dtype=np.float64)
    total = counts.sum()
    longer = total - np.cumsum(counts)
    alpha = (1 - stats.CONFIDENCE) / 2
    low = np.where(longer > 0, scipy_stats.beta.ppf(alpha, longer, total - longer + 1), 0.0)
    high = np.where(longer < total, scipy_stats.beta.ppf(1 - alpha, longer + 1, total - longer), 1.0)
    return values, longer / total, low, high


#: More requests than this for one answer are taken for a wrong interval.
MOST_MISSING = 1_000_000


def corrected(histogram: HdrHistogram, expected_ns: int) -> HdrHistogram:
    """The histogram with the requests that a stall has kept from being sent, one for each `expected_ns`.

    For a client that should send every `expected_ns` and waits for each answer first: the correction of
    HdrHistogram for coordinated omission, as its Java library has it. (The Python library's adds a request
    that would have waited for less than the interval.) It assumes that requests which were not sent would
    have waited for the end of the stall. Raises ValueError for an interval that cannot be meant.
    """
    if expected_ns <= 0 or histogram.get_max_value() > MOST_MISSING * expected_ns:
        raise ValueError(f"an expected interval of {expected_ns} ns")
    found = HdrHistogram(1, 3_600_000_000_000, 3)
    for each in histogram.get_recorded_iterator():
        value, count = each.value_iterated_to, each.count_at_value_iterated_to
        found.record_value(value, count)
        for missing in range(value - expected_ns, expected_ns - 1, -expected_ns):
            found.record_value(missing, count)
    return found
