"""The figures that are drawn from records, readable in black and white: hatches, line styles, markers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from hdrh.histogram import HdrHistogram
from matplotlib import pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from paper.reading import Reader
from paper.tables import NAMES
from paper.values import LOADS, MANY, SIMULATION, STAGES, stages

#: Inches of a column, and of both.
COLUMN, BOTH = 3.33, 7.0
WHISKERS = {"elinewidth": 0.7, "capsize": 1.5}
STYLE: dict[Any, Any] = {
    "font.size": 7,
    "axes.titlesize": 7,
    "axes.labelsize": 7,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "axes.linewidth": 0.6,
    "grid.linewidth": 0.3,
    "hatch.linewidth": 0.5,
    "lines.linewidth": 1.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "netacc",
}


def loads(reader: Reader) -> Figure:
    """Rates of Unix sockets and of shared memory to TCP's, with the range of rounds."""
    figure, axes = plt.subplots(figsize=(COLUMN, 2.3))
    names = list(NAMES)[::-1]
    for shift, path, colour, hatch, label in (
        (0.2, "unix", "0.85", "....", "Unix socket"),
        (-0.2, "shm", "0.45", "", "shared memory"),
    ):
        found = [
            [reader.number(LOADS[n][0], f"{LOADS[n][1]}.{path}.ratio_to_tcp.{part}") for n in names]
            for part in ("median", "min", "max")
        ]
        middle, low, high = (np.array(each) for each in found)
        axes.barh(
            np.arange(len(names)) + shift, middle, 0.38, color=colour, hatch=hatch, edgecolor="black",
            linewidth=0.5, label=label, xerr=[middle - low, high - middle], error_kw=WHISKERS,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xticks([0.5, 1, 2, 5, 10, 20, 50], ["0.5", "1", "2", "5", "10", "20", "50"])
    axes.set_xlim(0.5, 80)
    axes.minorticks_off()
    axes.axvline(1, color="black", linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(names)), [NAMES[n].replace("ping-pong 64 B", "ping-pong") for n in names])
    axes.set_xlabel("rate, kernel TCP = 1 (log scale)")
    figure.legend(loc="outside upper right", ncols=2, frameon=False)
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    return figure


def busy(reader: Reader) -> Figure:
    """Share of round trips that take longer, beside threads that compute."""
    figure, panels = plt.subplots(1, 4, figsize=(BOTH, 1.75), sharex=True, sharey=True)
    for threads, axes in zip((0, 1, 2, 4), panels, strict=True):
        for path, style, label in (("tcp", "--", "kernel TCP"), ("shm", "-", "shared memory")):
            total = None
            for run in range(1, 6):
                found = reader.histogram(f"results/busy/{threads}/latency-{path}-{run}.hdr")
                if total is None:
                    total = found
                else:
                    total.add(found)
            _ccdf(axes, total, style, label)
        axes.set_title(f"{threads} computing threads")
        axes.set_xlabel("round trip, µs")
        axes.grid()
    panels[0].set_ylabel("share that take longer")
    panels[0].set_ylim(1e-4, 1.2)
    panels[0].set_xlim(0.8, 30_000)
    panels[0].legend(loc="lower left", frameon=False)
    return figure


def _ccdf(axes: Axes, histogram: HdrHistogram, style: str, label: str) -> None:
    steps = [
        (each.value_iterated_to, each.total_count_to_this_value) for each in histogram.get_recorded_iterator()
    ]
    times, counts = np.array(steps, dtype=float).T
    axes.step(times / 1000, 1 - counts / counts[-1], style, where="post", color="black", label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")


def many(reader: Reader) -> Figure:
    """Many connections: rate, p50 and p99 to TCP's."""
    figure, axes = plt.subplots(figsize=(COLUMN, 1.75))
    labels = []
    for index, record in enumerate(MANY.values()):
        clients = int(reader.number(record, "params.clients"))
        processes = int(reader.number(record, "params.processes"))
        labels.append(f"{clients:,}\n{processes} client\nprocess{'es' if processes > 1 else ''}")
        for place, (key, colour, hatch) in enumerate((
            ("ratio_to_tcp", "0.45", ""), ("ratio_p50_to_tcp", "1", ""), ("ratio_p99_to_tcp", "0.85", "////"),
        )):  # fmt: skip
            middle, low, high = (
                reader.number(record, f"paths.shm.{key}.{part}") for part in ("median", "min", "max")
            )
            axes.bar(
                index + (place - 1) * 0.26, middle, 0.25, color=colour, hatch=hatch, edgecolor="black",
                linewidth=0.5, yerr=[[middle - low], [high - middle]], error_kw=WHISKERS,
                label=("rate", "p50", "p99")[place] if index == 0 else None,
            )  # fmt: skip
    axes.set_yscale("log")
    axes.set_yticks([0.1, 0.2, 0.5, 1, 2, 5, 10], ["0.1", "0.2", "0.5", "1", "2", "5", "10"])
    axes.minorticks_off()
    axes.axhline(1, color="black", linewidth=0.8, linestyle="--")
    axes.set_xticks(range(len(labels)), labels)
    axes.set_ylabel("kernel TCP = 1 (log)")
    axes.set_ylim(0.05, 40)
    axes.legend(loc="upper center", frameon=False, ncols=3)
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    return figure


def trace(reader: Reader) -> Figure:
    """The stages of a Redis request and of its answer, on a link and on TCP."""
    figure, panels = plt.subplots(2, 1, figsize=(COLUMN, 2.35))
    looks = {
        "call": ("0.25", ""), "copy": ("1", "..."), "held": ("1", "OO"), "post": ("0.6", ""),
        "completion": ("1", "////"), "wire": ("0.8", "xxxx"), "wake": ("1", "\\\\\\\\"),
        "kernel": ("0.8", "||||"), "ready": ("0.9", "...."), "read": ("0", ""),
    }  # fmt: skip
    seen: dict[str, Artist] = {}
    for axes, path, title in zip(panels, ("link", "anchor"), ("on a link", "on kernel TCP"), strict=True):
        for place, sender in enumerate(("redis-server", "redis-benchmark")):
            left = 0.0
            for stage, time in stages(reader, path, sender).items():
                colour, hatch = looks[stage]
                if time > 0:
                    seen[stage] = axes.barh(
                        place,
                        time,
                        0.7,
                        left=left,
                        color=colour,
                        hatch=hatch,
                        edgecolor="black",
                        linewidth=0.5,
                    )
                left += time
            axes.set_yticks([0, 1], ["answer", "request"])
        axes.set_title(title, loc="left", pad=2)
    panels[1].set_xlabel("µs from the sender's call to the receiver's last byte, mean")
    order = [stage for stage in STAGES if stage in seen]
    figure.legend(
        [seen[stage] for stage in order],
        order,
        loc="outside upper center",
        ncols=5,
        frameon=False,
        handlelength=1.6,
    )
    return figure


def polled(reader: Reader) -> Figure:
    """Share of polled round trips between two emulated hosts that take longer."""
    figure, axes = plt.subplots(figsize=(COLUMN, 1.7))
    lines = {
        "message": (":", "device alone, WRITE"),
        "send": ("-.", "device alone, SEND"),
        "tcp": ("--", "kernel TCP"),
        "stack": ("-", "through the library"),
    }
    for path, (style, label) in lines.items():
        _ccdf(axes, reader.histogram(f"results/rxe/polled/latency-{path}.hdr"), style, label)
    axes.set_xlim(200, 20_000)
    axes.set_ylim(1e-4, 1.2)
    axes.set_xlabel("round trip, µs")
    axes.set_ylabel("share that take longer")
    axes.grid()
    axes.legend(loc="upper right", frameon=False)
    return figure


#: How a simulated figure came about, and its marker.
KINDS = {"predicted": "o", "follows": "^", "fitted": "s"}


def simulated(reader: Reader) -> Figure:
    """Simulated figures over published ones."""
    figure, panels = plt.subplots(1, 3, figsize=(BOTH, 1.95), width_ratios=(1, 1, 1.05))
    panes = (
        ("NetACC guide, 100 connections", "redis", (("kernel-tcp: ", "kernel TCP"), ("netacc: ", "NetACC"))),
        ("Gazelle guide, SET, 1,000 connections", "gazelle",
         (("kernel-tcp set: ", "kernel TCP"), ("gazelle-like set: ", "Gazelle"))),
        ("UDPDK README, 10 Gbit/s", "udpdk", (("kernel ", "kernel UDP"), ("udpdk-like ", "UDPDK"))),
    )  # fmt: skip
    for axes, (title, check, series) in zip(panels, panes, strict=True):
        rows = [r for r in reader.any(SIMULATION, f"checks.{check}") if "deviation" not in r["what"]]
        for (prefix, label), colour, shift in zip(series, ("white", "black"), (-0.12, 0.12), strict=True):
            of = [row for row in rows if row["what"].startswith(prefix)]
            names = [row["what"].removeprefix(prefix).removeprefix("mean ") or "mean" for row in of]
            for place, row in enumerate(of):
                axes.plot(
                    place + shift, row["simulated"] / row["expected"], KINDS[row["kind"]], markersize=4.5,
                    color=colour, markeredgecolor="black", markeredgewidth=0.7, linestyle="none",
                )  # fmt: skip
            axes.plot([], [], "o", color=colour, markeredgecolor="black", markersize=4.5, label=label)
        axes.set_xticks(
            range(len(names)), [name.replace(" B", "").replace("latency", "lat.") for name in names]
        )
        axes.axhline(1, color="black", linewidth=0.8)
        axes.axhspan(0.9, 1.1, color="0.9", zorder=0)
        axes.set_ylim(0.35, 1.4)
        axes.set_title(title)
        axes.grid(axis="y")
        axes.legend(loc="lower left", frameon=False)
    panels[0].set_ylabel("simulated / published")
    panels[2].set_xlabel("throughput by packet length (B); latency")
    handles = [
        Line2D([], [], marker=marker, linestyle="none", color="0.6", markeredgecolor="black", markersize=4.5)
        for marker in KINDS.values()
    ]
    labels = ["predicted", "follows from a fitted figure", "fitted"]
    figure.legend(handles, labels, loc="outside lower left", ncols=3, frameon=False)
    return figure


FIGURES: dict[str, Callable[[Reader], Figure]] = {
    each.__name__: each for each in (loads, busy, many, trace, polled, simulated)
}


def draw(reader: Reader, folder: Path) -> dict[str, list[str]]:
    """Writes NAME.svg for each; what each was drawn from."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = {}
    with mpl.rc_context(STYLE):
        for name, make in FIGURES.items():
            reader.readings.clear()
            figure = make(reader)
            figure.set_layout_engine("constrained", w_pad=0.02, h_pad=0.02)
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
            plt.close(figure)
            sources[name] = reader.records()
    return sources
