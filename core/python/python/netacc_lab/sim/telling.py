"""Figures for people: with units, and their intervals."""

from __future__ import annotations

from netacc_lab.sim.stats import Estimate
from netacc_lab.sim.study import Study
from netacc_lab.sim.units import describe_ns

#: What a table tells, and what it calls it.
COLUMNS = {
    "requests_per_s": "requests/s",
    "bytes_per_s": "MB/s",
    "mean_ns": "mean",
    "p50_ns": "p50",
    "p99_ns": "p99",
    "p999_ns": "p99.9",
}


def say(name: str, estimate: Estimate) -> str:
    """A figure for people, with its interval."""
    if estimate.value is None:
        return "too few"
    if estimate.low is None or estimate.high is None:
        return _show(name, estimate.value)
    shown = [_show(name, value) for value in (estimate.value, max(estimate.low, 0), estimate.high)]
    return f"{shown[0]} [{shown[1]} to {shown[2]}]"


def _show(name: str, value: float) -> str:
    if name == "bytes_per_s":
        return f"{value / 1e6:,.1f}"
    return f"{value:,.0f}" if name == "requests_per_s" else describe_ns(value)


def table(study: Study) -> str:
    """The table, for a terminal."""
    heads = ["point", "group", *COLUMNS.values()]
    lines = [heads]
    for point in study.points:
        for group in point.groups():
            metrics = point.metrics(group)
            state = "" if point.status == "complete" else f" ({point.status})"
            lines.append([point.label + state, group, *(say(name, metrics[name]) for name in COLUMNS)])
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join("  ".join(line).rstrip() for line in padded)
