"""Time series of a record: what counters did, and how fast.

A table is a time series if it has a column `at_ns`, the time since the record began.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from netacc_lab.analysis.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The column that makes a table a time series.
TIME = "at_ns"


@dataclass(frozen=True)
class Change:
    """A counter over the time of a record."""

    name: str
    first: float
    last: float
    seconds: float

    @property
    def per_s(self) -> float | None:
        """Its mean rate; None if no time has passed."""
        return (self.last - self.first) / self.seconds if self.seconds else None


def timeline(record: Record, table: str = "counters") -> dict[str, list[float]]:
    """The columns of a time series that are numbers, `at_ns` first. A counter that is not there yet is 0.

    Raises KeyError if there is no such table, and ValueError if it is no time series.
    """
    found = record.table(table)
    if found.num_rows and TIME not in found.column_names:
        raise ValueError(f"{record.path}: table {table!r} has no column {TIME}: it is no time series")
    names = sorted(found.column_names, key=lambda name: name != TIME)
    columns = {name: found.column(name).to_pylist() for name in names}
    return {
        name: [float(value or 0) for value in values]
        for name, values in columns.items()
        if all(value is None or isinstance(value, int | float) for value in values)
    }


def changes(record: Record, table: str = "counters") -> list[Change]:
    """The counters of a time series that have changed; none of a table with several rows for a time."""
    columns = timeline(record, table)
    times = columns.pop(TIME, [])
    if len(set(times)) < len(times):
        return []
    seconds = (times[-1] - times[0]) / 1e9 if times else 0.0
    return [
        Change(name, values[0], values[-1], seconds)
        for name, values in columns.items()
        if values and min(values) != max(values)
    ]


def rates(record: Record, *names: str, table: str = "counters") -> dict[str, tuple[list[float], list[float]]]:
    """Of counters, or of all that have changed: times in seconds, and the rate a second until each.

    Raises KeyError if there is no such table or counter, and ValueError if it is no time series.
    """
    columns = timeline(record, table)
    times = columns.pop(TIME, [])
    unknown = [name for name in names if name not in columns]
    if unknown:
        raise KeyError(f"{record.path}: no column {unknown[0]!r}; there are {', '.join(columns)}")
    return {
        name: (
            [time / 1e9 for time in times[1:]],
            [
                (after - before) * 1e9 / (until - since)
                for (before, after), (since, until) in zip(
                    pairwise(columns[name]), pairwise(times), strict=True
                )
            ],
        )
        for name in names or [change.name for change in changes(record, table)]
    }


def plot_timeline(record: Record, *names: str, table: str = "counters", axes: Axes | None = None) -> Axes:
    """The rates of counters over time; without names, of all that have changed."""
    import matplotlib.pyplot as plt

    axes = axes or plt.subplots(figsize=(8, 5))[1]
    for name, (times, per_s) in rates(record, *names, table=table).items():
        axes.plot(times, per_s, drawstyle="steps-pre", label=name)
    axes.set(xlabel="time (s)", ylabel="a second", yscale="symlog")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return axes
