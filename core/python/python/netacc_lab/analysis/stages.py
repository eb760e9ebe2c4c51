"""Where the time of messages goes: the stages of `netacc trace`, or of a simulation with `stages = true`.

Stages are consecutive, and their sum is a message's latency: see the page "A trace of messages". Times are
nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from netacc_lab.analysis.comparison import Ratio, ratio_of
from netacc_lab.analysis.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: In the order in which a message passes them.
STAGES = ("call", "copy", "held", "post", "wire", "completion", "wake", "kernel", "ready", "read")
#: The table of a record with the stages of each message.
MESSAGES = "messages"
#: The slowest messages are those above this share.
SLOWEST = 0.01


@dataclass(frozen=True)
class Stage:
    """A stage of the messages in one direction on one path."""

    direction: str
    stage: str
    messages: int
    mean_ns: float
    p50_ns: float
    p99_ns: float
    #: The mean of the messages with the largest totals.
    slowest_ns: float


@dataclass(frozen=True)
class StageChange:
    """The mean of a stage in a second trace, divided by that in a first one."""

    direction: str
    stage: str
    first_ns: float
    second_ns: float
    ratio: Ratio


def stages(record: Record, *, slowest: float = SLOWEST) -> list[Stage]:
    """Each stage that takes any time, and `total`, by direction (`pandas.DataFrame` takes the list).

    `slowest` is the share of the messages, above 0 and at most 1, whose means are given beside those of all:
    which stages make the tail. Raises KeyError if the record is of no trace, ValueError for another share.
    """
    if not 0 < slowest <= 1:
        raise ValueError(f"a share above 0 and at most 1 is needed, not {slowest:g}")
    return [
        Stage(
            direction,
            name,
            len(totals),
            float(times.mean()),
            float(np.percentile(times, 50)),
            float(np.percentile(times, 99)),
            float(times[tail].mean()),
        )
        for direction, columns in _directions(record)
        for totals in [columns["total"]]
        for tail in [np.argsort(totals)[-max(1, round(slowest * len(totals))) :]]
        for name, times in columns.items()
        if times.any()
    ]


def decompose_tail(record: Record, direction: str, *, slowest: float = SLOWEST) -> dict[str, float]:
    """How much longer each stage is among the slowest messages than on average, in nanoseconds.

    The largest comes first.

    Raises KeyError with the directions that there are, and as `stages`.
    """
    found = [each for each in stages(record, slowest=slowest) if each.direction == direction]
    if not found:
        names = ", ".join(name for name, _ in _directions(record))
        raise KeyError(f"{record.path}: no direction {direction!r}; there are {names}")
    excess = {each.stage: each.slowest_ns - each.mean_ns for each in found if each.stage != "total"}
    return dict(sorted(excess.items(), key=lambda item: -item[1]))


def stage_changes(first: Record, second: Record) -> list[StageChange]:
    """The stages of directions that both traces have, with intervals from the differences between windows."""
    found = []
    for name, series in first.series.items():
        if name not in second.series:
            continue
        for stage in STAGES:
            key = f"{stage}_ns"
            values = [
                [run.figures[key] for run in each.runs if run.figures.get(key)]
                for each in (series, second[name])
            ]
            if all(values):
                means = [float(np.mean(each)) for each in values]
                found.append(StageChange(name, stage, means[0], means[1], ratio_of(values[0], values[1])))
    return found


def bars(record: Record) -> tuple[list[str], dict[str, np.ndarray]]:
    """For a figure: the rows (each direction, and its slowest messages), and by stage a mean for each row.

    The means are in microseconds. Raises KeyError if the record is of no trace.
    """
    found = [each for each in stages(record) if each.stage != "total"]
    rows = list(dict.fromkeys(each.direction for each in found))
    labels = [label for row in rows for label in (row, f"its slowest {SLOWEST:.0%}")]
    widths: dict[str, np.ndarray] = {}
    for name in (name for name in STAGES if any(each.stage == name for each in found)):
        widths[name] = np.zeros(len(labels))
        for each in (each for each in found if each.stage == name):
            at = 2 * rows.index(each.direction)
            widths[name][at : at + 2] = each.mean_ns / 1000, each.slowest_ns / 1000
    return labels, widths


def slowest_messages(record: Record, count: int = 20) -> list[dict[str, Any]]:
    """The rows of the messages with the largest totals, largest first; `direction` and `total` are added.

    Raises KeyError if the record is of no trace.
    """
    rows = [
        row
        | {
            "direction": "{from} to {to}, {path}".format_map(row),
            "total": sum(row[name] for name in STAGES),
        }
        for row in record.table(MESSAGES).to_pylist()
    ]
    return sorted(rows, key=lambda row: -row["total"])[:count]


def plot_stages(record: Record, axes: Axes | None = None) -> Axes:
    """The mean stages of each direction, one behind the other; below, those of its slowest messages."""
    import matplotlib.pyplot as plt

    axes = axes or plt.subplots(figsize=(8, 5))[1]
    labels, widths = bars(record)
    left = np.zeros(len(labels))
    for name, us in widths.items():
        axes.barh(range(len(labels)), us, left=left, label=name, color=f"C{STAGES.index(name)}")
        left += us
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set(xlabel="mean time (us)")
    axes.legend(fontsize="small", ncols=len(widths) // 2 + 1)
    return axes


def _directions(record: Record) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """The times of each direction by stage, and their sum."""
    table = record.table(MESSAGES)
    parts = [table.column(name).to_pylist() for name in ("from", "to", "path")]
    names = np.array(
        [f"{sender} to {receiver}, {path}" for sender, receiver, path in zip(*parts, strict=True)]
    )
    times = {name: table.column(name).to_numpy() for name in STAGES}
    for direction in np.unique(names):
        mine = names == direction
        columns = {name: values[mine] for name, values in times.items()}
        yield str(direction), {**columns, "total": np.sum(list(columns.values()), axis=0)}
