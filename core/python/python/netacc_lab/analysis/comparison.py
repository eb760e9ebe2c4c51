"""Compares two series: ratios with intervals, percentiles, and how far the distributions are apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import stats as scipy_stats

from netacc_lab.analysis.intervals import USUAL, Floats, ccdf
from netacc_lab.analysis.record import Record, Run, Series
from netacc_lab.sim.stats import CONFIDENCE


@dataclass(frozen=True)
class Ratio:
    """A figure of the second series divided by that of the first, and its interval (95 %)."""

    value: float
    low: float | None = None
    high: float | None = None
    #: `pairs`: by the ratios of runs of the same round. `welch`: of independent runs. Empty: no interval.
    method: str = ""

    @property
    def differs(self) -> bool:
        """Whether the interval is on one side of 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


@dataclass(frozen=True)
class Comparison:
    """The second series, compared with the first."""

    first: Series
    second: Series
    #: None if a series has no rates.
    rate: Ratio | None
    #: By percentile; those that both have.
    percentiles: dict[float, Ratio]
    #: The largest difference of the shares of requests below any latency (Kolmogorov and Smirnov); None
    #: without histograms. Requests of a run are not independent, so no probability is derived from it.
    largest_gap: float | None
    #: The mean distance, in nanoseconds, by which latencies would have to move (Wasserstein).
    moved_ns: float | None


def compare(first: Series, second: Series) -> Comparison:
    """Ratios are of `second` to `first`: above 1 the second has more requests a second, or is slower."""
    paired = (
        first.paired
        and second.paired
        and first.record == second.record
        and len(first.runs) == len(second.runs)
    )

    def ratio(of: Callable[[Run], float | None]) -> Ratio | None:
        values = [[value for run in series.runs if (value := of(run))] for series in (first, second)]
        return _ratio(*values, paired=paired) if all(values) else None

    found = {percent: ratio(partial(Run.percentile, percent=percent)) for percent in USUAL}
    gap = moved = None
    if first.histograms() and second.histograms():
        gap, moved = _apart(first, second)
    return Comparison(
        first,
        second,
        ratio(lambda run: run.rate_per_s),
        {percent: each for percent, each in found.items() if each is not None},
        gap,
        moved,
    )


def compare_records(first: Record, second: Record) -> list[Comparison]:
    """The series that both have, compared by name."""
    return [compare(first[name], second[name]) for name in first.series if name in second.series]


def differences(first: Record, second: Record) -> list[str]:
    """Why the two cannot be compared as they are: other parameters, or another machine.

    Raises ValueError where nothing of them can be: what was done differs.
    """
    if not first.simulated and not second.simulated:
        if (first.kind, first.title) != (second.kind, second.title):
            raise ValueError(f"{first.title} and {second.title} cannot be compared")
        names = sorted(first.parameters.keys() | second.parameters.keys())
        pairs = [(name, first.parameters.get(name), second.parameters.get(name)) for name in names]
        found = [f"{name} differs: {one}, {other}" for name, one, other in pairs if one != other]
        found += _settings(first, second)
        if first.machine != second.machine:
            found.append(f"the machines differ: {first.machine}; {second.machine}")
        return found
    return ["one is a measurement and one a simulation"] if first.simulated != second.simulated else []


def _settings(first: Record, second: Record) -> list[str]:
    """Keys of NetACC's configuration that differ, where both records have them."""
    one, other = (each.contents.header.configuration if each.contents else {} for each in (first, second))
    if not one or not other:
        return []
    names = sorted(one.keys() | other.keys())
    pairs = [(name, one.get(name), other.get(name)) for name in names]
    return [f"{name} differs: {before}, {after}" for name, before, after in pairs if before != after]


def ratio_of(first: Sequence[float], second: Sequence[float]) -> Ratio:
    """Of figures above 0 of independent runs."""
    return _ratio(first, second, paired=False)


def _ratio(first: Sequence[float], second: Sequence[float], *, paired: bool) -> Ratio:
    """Geometric means, because ratios of 2 and of a half are equally far from 1."""
    logs = [np.log(np.asarray(values, dtype=float)) for values in (first, second)]
    centre = float(logs[1].mean() - logs[0].mean())
    value = float(np.exp(centre))
    # A round that has not got the figure leaves no pairs.
    if paired and len(first) == len(second):
        half, method = _half([logs[1] - logs[0]]), "pairs"
    else:
        half, method = _half(logs), "welch"
    if half is None:
        return Ratio(value)
    return Ratio(value, float(np.exp(centre - half)), float(np.exp(centre + half)), method)


def _half(samples: Sequence[Floats]) -> float | None:
    """Half of the t-interval of the difference of means, or of one mean; None with a single value.

    Degrees of freedom by Welch (Biometrika, 1947).
    """
    if min(sample.size for sample in samples) < 2:
        return None
    squares = [float(sample.var(ddof=1)) / sample.size for sample in samples]
    if sum(squares) == 0:
        return 0.0
    freedom = sum(squares) ** 2 / sum(
        square**2 / (sample.size - 1) for square, sample in zip(squares, samples, strict=True)
    )
    return float(scipy_stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * np.sqrt(sum(squares)))


def _apart(first: Series, second: Series) -> tuple[float, float]:
    (xs, longer, _, _), (ys, longer_second, _, _) = ccdf(first), ccdf(second)
    at = np.union1d(xs, ys)
    shares = []
    for values, beyond in ((xs, longer), (ys, longer_second)):
        below = np.concatenate([[0.0], 1 - beyond])
        shares.append(below[np.searchsorted(values, at, side="right")])
    weights = [-np.diff(np.concatenate([[1.0], beyond])) for beyond in (longer, longer_second)]
    moved = scipy_stats.wasserstein_distance(xs, ys, weights[0], weights[1])
    return float(np.abs(shares[0] - shares[1]).max()), float(moved)
