"""Figures for notebooks: matplotlib, into given axes, so that they can be styled and combined."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt

from netacc_lab.analysis.intervals import USUAL, ccdf, percentiles
from netacc_lab.analysis.record import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_ccdf(series: Iterable[Series], axes: Axes | None = None, *, bands: bool = True) -> Axes:
    """The share of requests that take longer, both scales logarithmic: tails are what one sees."""
    axes = axes or plt.subplots(figsize=(8, 5))[1]
    for each in series:
        values, share, low, high = ccdf(each)
        (line,) = axes.plot(values / 1000, share, drawstyle="steps-post", label=each.label)
        if bands:
            axes.fill_between(values / 1000, low, high, step="post", alpha=0.2, color=line.get_color())
    axes.set(xscale="log", yscale="log", xlabel="latency (us)", ylabel="share of requests that take longer")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return axes


def points(series: Series) -> tuple[list[float], list[float], list[float], list[float]]:
    """For a figure: the known percentiles, their values, and the intervals' parts below and above, in us."""
    tails = [tail for tail in percentiles(series) if tail.value is not None]
    values = [tail.value or 0.0 for tail in tails]
    lows = [value if tail.low is None else tail.low for value, tail in zip(values, tails, strict=True)]
    highs = [value if tail.high is None else tail.high for value, tail in zip(values, tails, strict=True)]
    below = [max(value - low, 0) / 1000 for value, low in zip(values, lows, strict=True)]
    above = [max(high - value, 0) / 1000 for value, high in zip(values, highs, strict=True)]
    return [tail.percent for tail in tails], [value / 1000 for value in values], below, above


def plot_percentiles(series: Iterable[Series], axes: Axes | None = None) -> Axes:
    """Percentiles of each series with their intervals, beside one another."""
    axes = axes or plt.subplots(figsize=(8, 5))[1]
    shown = list(series)
    for number, each in enumerate(shown):
        at, values, below, above = points(each)
        places = [USUAL.index(percent) + 0.8 * ((number + 0.5) / len(shown) - 0.5) for percent in at]
        axes.errorbar(
            places, values, yerr=[below, above], marker="o", capsize=3, linestyle="none", label=each.label
        )
    axes.set_xticks(range(len(USUAL)), [f"p{percent:g}" for percent in USUAL])
    axes.set(yscale="log", ylabel="latency (us)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return axes
