"""A study as one HTML page: its question, a table with intervals, and plots."""

from __future__ import annotations

import base64
import html
import io
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from netacc_lab.sim import completion, ports, slowdown, stats, units
from netacc_lab.sim.columns import COLUMNS, cell, columns
from netacc_lab.sim.study import Point, Study

_STYLE = """
body { font: 15px/1.5 sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse }
td, th { padding: .25em .8em; text-align: right; border-bottom: 1px solid #ddd }
td:first-child, th:first-child { text-align: left }
img { max-width: 100% }
.bad { color: #b00 }
"""


def write(study: Study, path: Path) -> None:
    """Writes the page: one file, the plots inside."""
    rows, headings = [], columns(study)
    for point in study.points:
        for group in point.groups():
            metrics = point.metrics(group)
            bad = "" if point.status == "complete" else f' <span class="bad">{point.status}</span>'
            texts = (cell(point, name, metrics.get(name)) for name in headings)
            cells = "".join(f"<td>{html.escape(text)}</td>" for text in texts)
            rows.append(
                f"<tr><td>{html.escape(point.label)}{bad}</td><td>{html.escape(group)}</td>{cells}</tr>"
            )
    heads = "".join(f"<th>{head}</th>" for head in ("point", "group", *headings.values()))
    plots = "".join(f"<h2>{html.escape(title)}</h2>{_image(figure)}" for title, figure in _figures(study))
    slow = "".join(_slowdowns(point) for point in study.points) + _collectives(study)
    notes = "".join(f'<p class="bad">{html.escape(note)}.</p>' for note in study.notes())
    runs = sum(len(point.runs) for point in study.points)
    versions = sorted({run.meta["code_version"] for point in study.points for run in point.runs})
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(study.name)}</title>
<style>{_STYLE}</style></head><body><h1>{html.escape(study.question)}</h1>
<p>{html.escape(study.name)}: {runs} runs, simulated. Intervals: {stats.CONFIDENCE:.0%}, over seeds.
Code {html.escape(", ".join(versions))}.</p>
<p>Seeds: {", ".join(map(str, study.seeds()))}. Profiles: {html.escape(_profiles(study))}.</p>
{notes}<p>{html.escape(study.kinds())}</p><table><tr>{heads}</tr>{"".join(rows)}</table>{slow}{plots}
<h2>The scenario</h2><pre>{html.escape(study.text)}</pre></body></html>"""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page)


def _figures(study: Study) -> list[tuple[str, Figure]]:
    figures = [("Latency: how many requests take longer", _tails(study.points))]
    axes = list(study.points[0].values) if study.points else []
    if len(axes) == 1 and len(study.points) > 1:
        latencies = {name: COLUMNS[name] for name in ("p50_ns", "p95_ns", "p99_ns")}
        figures.append((f"Latency by {axes[0]}", _by_value(study.points, axes[0], latencies, "latency (us)")))
        rates = {"requests_per_s": "requests/s"}
        figures.append((f"Rate by {axes[0]}", _by_value(study.points, axes[0], rates, "thousands a second")))
    if any((run.folder / "samples.csv").exists() for point in study.points for run in point.runs):
        figures.append(("Rate over time, of the first seed", _over_time(study.points)))
    for point in study.points:
        table = ports.read(point.runs[0]) if point.runs else None
        if table is not None:
            figures.append((f"Ports over time, of the first seed: {point.label}", _ports(table)))
    return figures


#: Ports in a plot: those with the longest queues. Arbitrary.
PORTS = 6


def _ports(table: pa.Table) -> Figure:
    """Queues above, rates below."""
    figure, (queues, rates) = plt.subplots(2, 1, figsize=(8, 7), sharex=True)
    columns = {name: table[name].to_numpy() for name in ports.COLUMNS}
    ends = sorted(set(zip(columns["link"].tolist(), columns["node"].tolist(), strict=True)))
    chosen = []
    for link, node in ends:
        rows = (columns["link"] == link) & (columns["node"] == node)
        chosen.append((int(columns["queue_bytes"][rows].max()), link, node, rows))
    for _, _, node, rows in sorted(chosen, key=lambda each: each[:3], reverse=True)[:PORTS]:
        times = columns["at_ns"][rows] / 1e6
        label = f"{node} to {columns['peer'][rows][0]}, {columns['pauses'][rows][-1]} pauses"
        queues.plot(times, columns["queue_bytes"][rows] / 1000, label=label)
        rates.plot(times[1:], np.diff(columns["sent_bytes"][rows]) * 8e-6 / np.diff(times), label=label)
    queues.set(ylabel="waiting (kB)", ylim=(0, None))
    rates.set(xlabel="time (ms)", ylabel="Gbit/s", ylim=(0, None))
    for axes in (queues, rates):
        axes.grid(alpha=0.3)
    queues.legend(fontsize=8)
    return figure


def _slowdowns(point: Point) -> str:
    """The slowdown of the flows of a point, by size."""
    rows = "".join(
        f"<tr><td>{each.most_bytes:,}</td><td>{each.flows}</td>"
        f"<td>{each.p50:.2f}</td><td>{each.p95:.2f}</td><td>{each.p99:.2f}</td></tr>"
        for each in slowdown.slowdowns(point.runs)
    )
    if not rows:
        return ""
    names = ("bytes up to", "flows", "p50", "p95", "p99")
    heads = "".join(f"<th>{name}</th>" for name in names)
    title = f"Slowdown of flows: {point.label}"
    return f"<h2>{html.escape(title)}</h2><table><tr>{heads}</tr>{rows}</table>"


def _collectives(study: Study) -> str:
    """How long collective operations took, each seed."""
    rows = "".join(
        f"<tr><td>{html.escape(point.label)}</td><td>{html.escape(each.group)}</td><td>{each.hosts}</td>"
        f"<td>{units.describe_ns(each.nanoseconds)}</td><td>{each.bits_per_s / 1e9:.2f}</td></tr>"
        for point in study.points
        for each in completion.completions(point.runs)
    )
    heads = "".join(f"<th>{name}</th>" for name in ("point", "operation", "hosts", "took", "bus Gbit/s"))
    return f"<h2>Collective operations</h2><table><tr>{heads}</tr>{rows}</table>" if rows else ""


def _profiles(study: Study) -> str:
    """The names of profiles, by kind."""
    kinds = sorted({kind for point in study.points for kind in point.profiles})
    named = {kind: dict.fromkeys(point.profiles[kind] for point in study.points) for kind in kinds}
    return "; ".join(f"{kind} {', '.join(names)}" for kind, names in named.items())


#: Parts of the measured span, for rates over time. Arbitrary.
PARTS = 50


def _over_time(points: list[Point]) -> Figure:
    """Answers a second, from the samples of each point's first run."""
    figure, axes = plt.subplots(figsize=(8, 4.5))
    for point in points:
        run = point.runs[0]
        path = run.folder / "samples.csv"
        if not path.exists():
            continue
        measure = run.meta["scenario"]["measure"]
        first, span = measure["warmup_ns"], measure["duration_ns"]
        ends = np.loadtxt(path, delimiter=",", skiprows=1, usecols=0, ndmin=1)
        counts, edges = np.histogram(ends, PARTS, (first, first + span))
        axes.plot(edges[:-1] / 1e6, counts / (span / PARTS) * 1e6, label=point.label)
    axes.set(xlabel="time (ms)", ylabel="answers (thousands a second)", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def _tails(points: list[Point]) -> Figure:
    figure, axes = plt.subplots(figsize=(8, 4.5))
    for point in points:
        for group in point.groups():
            whole = stats.merged([run.histogram(group) for run in point.runs])
            if whole.get_total_count() == 0:
                continue
            shares = 1 - np.linspace(0, 1, 400) ** 0.3
            shares = shares[shares > 1 / (2 * whole.get_total_count())]
            values = [whole.get_value_at_percentile(100 * (1 - share)) / 1000 for share in shares]
            label = group if point.label == "-" else f"{point.label}: {group}"
            axes.plot(values, shares, label=label)
    axes.set(xscale="log", yscale="log", xlabel="latency (us)", ylabel="share of requests that take longer")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def _by_value(points: list[Point], axis: str, figures: dict[str, str], unit: str) -> Figure:
    """Figures over a swept key. Only between numbers is there anything that a line could stand for."""
    figure, axes = plt.subplots(figsize=(8, 4.5))
    numbers = [_number(point.values[axis]) for point in points]
    places = [float(place) if number is None else number for place, number in enumerate(numbers)]
    categories = None in numbers
    if categories:
        places = [float(place) for place in range(len(points))]
    for group in points[0].groups():
        for name, head in figures.items():
            estimates = [point.metrics(group)[name] for point in points]
            kept = [(x, e) for x, e in zip(places, estimates, strict=True) if e.value is not None]
            values = np.array([e.value for _, e in kept], dtype=float) / 1000
            lows = np.array([e.value if e.low is None else e.low for _, e in kept], dtype=float) / 1000
            highs = np.array([e.value if e.high is None else e.high for _, e in kept], dtype=float) / 1000
            axes.errorbar(
                [x for x, _ in kept],
                values,
                yerr=[np.maximum(values - lows, 0), np.maximum(highs - values, 0)],
                marker="o",
                capsize=3,
                linestyle="none" if categories else "-",
                label=f"{group} {head}",
            )
    axes.set(xlabel=axis, ylabel=unit, yscale="log")
    axes.set_xticks(places, [str(point.values[axis]) for point in points])
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def _number(value: object) -> float | None:
    """A value of a key as a number, without its unit; None for a word."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    for scale in units.UNITS.values():
        try:
            return float(units.parse(value, "", scale))
        except ValueError:
            continue
    return None


def _image(figure: Figure) -> str:
    out = io.BytesIO()
    figure.savefig(out, format="svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    return f'<img alt="" src="data:image/svg+xml;base64,{base64.b64encode(out.getvalue()).decode()}">'
