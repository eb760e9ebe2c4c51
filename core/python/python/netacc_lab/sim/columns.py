"""Figures for people: with units, and their intervals."""

from __future__ import annotations

from collections.abc import Sequence

from netacc_lab.sim.completion import completions
from netacc_lab.sim.slowdown import slowdowns
from netacc_lab.sim.stats import Estimate
from netacc_lab.sim.study import Point, Study
from netacc_lab.sim.units import describe_ns

#: The figures of a table, and their headings.
COLUMNS = {
    "requests_per_s": "requests/s",
    "bytes_per_s": "MB/s",
    "mean_ns": "mean",
    "p50_ns": "p50",
    "p95_ns": "p95",
    "p99_ns": "p99",
    "p999_ns": "p99.9",
    "link_share": "on links",
}
#: Of a run's whole network: shown where one of them is not 0.
NETWORK_COLUMNS = {"dropped": "drops", "marked": "marks", "pauses": "pauses"}
#: For groups of datagrams: those that were lost, on the network or before their program.
DATAGRAM_COLUMNS = {"datagrams_lost": "datagrams lost"}
#: For short connections: until they could be used, and until the last answer.
SHORT_COLUMNS = {
    "connections_per_s": "connections/s",
    "connect_mean_ns": "connect",
    "connect_p99_ns": "connect p99",
    "whole_mean_ns": "whole",
    "whole_p99_ns": "whole p99",
}


def columns(study: Study) -> dict[str, str]:
    """The columns of a study: those of short connections and of datagrams only where there are some."""
    groups = (run.meta["groups"] for point in study.points for run in point.runs)
    short = any(group["short"] for each in groups for group in each)
    datagrams = any(
        group["datagrams"]
        for point in study.points
        for run in point.runs
        for group in run.meta["scenario"]["groups"]
    )
    networks = [run.meta["network"] for point in study.points for run in point.runs]
    happened = {name: head for name, head in NETWORK_COLUMNS.items() if any(n[name] for n in networks)}
    return COLUMNS | (SHORT_COLUMNS if short else {}) | (DATAGRAM_COLUMNS if datagrams else {}) | happened


def cell(point: Point, name: str, estimate: Estimate | None) -> str:
    """A figure of a point for people, with its interval, and its kind where it is no prediction."""
    kind = point.kinds.get(name)
    return f"{text_of(name, estimate)} ({kind})" if kind else text_of(name, estimate)


def text_of(name: str, estimate: Estimate | None) -> str:
    """A figure for people, with its interval; nothing where there is no such figure."""
    if estimate is None:
        return ""
    if estimate.value is None:
        return "too few"
    if estimate.low is None or estimate.high is None:
        return _show(name, estimate.value)
    shown = [_show(name, value) for value in (estimate.value, max(estimate.low, 0), estimate.high)]
    return f"{shown[0]} [{shown[1]} to {shown[2]}]"


def _show(name: str, value: float) -> str:
    if name == "bytes_per_s":
        return f"{value / 1e6:,.1f}"
    if name in NETWORK_COLUMNS or name in DATAGRAM_COLUMNS:
        return f"{value:,.0f}"
    if name == "link_share":
        return f"{value:.1%}"
    return f"{value:,.0f}" if name.endswith("_per_s") else describe_ns(value)


def table(study: Study) -> str:
    """The table, for a terminal; and those of slowdowns of flows and of collective operations."""
    headings = columns(study)
    heads = ["point", "group", *headings.values()]
    lines = [heads]
    for point in study.points:
        for group in point.groups():
            metrics = point.metrics(group)
            state = "" if point.status == "complete" else f" ({point.status})"
            cells = (cell(point, name, metrics.get(name)) for name in headings)
            lines.append([point.label + state, group, *cells])
    slow = [["point", "flows up to", "flows", "slowdown p50", "p95", "p99"]]
    for point in study.points:
        for each in slowdowns(point.runs):
            tail = (f"{value:.2f}" for value in (each.p50, each.p95, each.p99))
            slow.append([point.label, f"{each.most_bytes:,} B", f"{each.flows:,}", *tail])
    took = [["point", "operation", "hosts", "took", "bus Gbit/s"]]
    for point in study.points:
        for one in completions(point.runs):
            bus = f"{one.bits_per_s / 1e9:.2f}"
            took.append([point.label, one.group, str(one.hosts), describe_ns(one.nanoseconds), bus])
    return "\n\n".join([_padded(lines), *(_padded(more) for more in (slow, took) if len(more) > 1)])


def _padded(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join("  ".join(line).rstrip() for line in padded)
