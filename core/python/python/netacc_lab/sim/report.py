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
from matplotlib.figure import Figure

from netacc_lab.sim import stats
from netacc_lab.sim.columns import CHANGES_NOTHING, COLUMNS, columns, say
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
    rows, told = [], columns(study)
    for point in study.points:
        for group in point.groups():
            metrics = point.metrics(group)
            bad = "" if point.status == "complete" else f' <span class="bad">{point.status}</span>'
            cells = "".join(f"<td>{html.escape(say(name, metrics.get(name)))}</td>" for name in told)
            rows.append(
                f"<tr><td>{html.escape(point.label)}{bad}</td><td>{html.escape(group)}</td>{cells}</tr>"
            )
    heads = "".join(f"<th>{head}</th>" for head in ("point", "group", *told.values()))
    plots = "".join(f"<h2>{html.escape(title)}</h2>{_image(figure)}" for title, figure in _figures(study))
    notes = "".join(
        f'<p class="bad">{html.escape(key)} {CHANGES_NOTHING}.</p>' for key in study.without_effect()
    )
    runs = sum(len(point.runs) for point in study.points)
    versions = sorted({run.meta["code_version"] for point in study.points for run in point.runs})
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(study.name)}</title>
<style>{_STYLE}</style></head><body><h1>{html.escape(study.question)}</h1>
<p>{html.escape(study.name)}: {runs} runs, simulated. Intervals: {stats.CONFIDENCE:.0%}, over seeds.
Code {html.escape(", ".join(versions))}.</p>
{notes}<table><tr>{heads}</tr>{"".join(rows)}</table>{plots}</body></html>"""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page)


def _figures(study: Study) -> list[tuple[str, Figure]]:
    figures = [("Latency: how many requests take longer", _tails(study.points))]
    axes = list(study.points[0].values) if study.points else []
    # One axis of numbers makes a line.
    if len(axes) == 1 and len(study.points) > 1:
        figures.append((f"Latency by {axes[0]}", _lines(study.points, axes[0])))
    return figures


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


def _lines(points: list[Point], axis: str) -> Figure:
    figure, axes = plt.subplots(figsize=(8, 4.5))
    labels = [str(point.values[axis]) for point in points]
    for group in points[0].groups():
        for name in ("p50_ns", "p99_ns"):
            estimates = [point.metrics(group)[name] for point in points]
            kept = [(x, e) for x, e in enumerate(estimates) if e.value is not None]
            values = np.array([e.value for _, e in kept], dtype=float) / 1000
            lows = np.array([e.value if e.low is None else e.low for _, e in kept], dtype=float) / 1000
            highs = np.array([e.value if e.high is None else e.high for _, e in kept], dtype=float) / 1000
            at = [x for x, _ in kept]
            axes.plot(at, values, marker="o", label=f"{group} {COLUMNS[name]}")
            axes.fill_between(at, lows, highs, alpha=0.2)
    axes.set(xlabel=axis, ylabel="latency (us)", yscale="log")
    axes.set_xticks(range(len(labels)), labels)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def _image(figure: Figure) -> str:
    out = io.BytesIO()
    figure.savefig(out, format="svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    return f'<img alt="" src="data:image/svg+xml;base64,{base64.b64encode(out.getvalue()).decode()}">'
