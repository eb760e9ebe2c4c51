"""Interactive figures, for notebooks and pages, by plotly: of the same data as the matplotlib figures.

They show values under the pointer, zoom, and hide a series at a click on its name. `figure.write_html(file)`
makes a page of one, which needs no network with `include_plotlyjs=True`, the default. Needs the extra
`interactive` (`pip install netacc-lab[interactive]`).
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path

import plotly.colors
import plotly.graph_objects as go

from netacc_lab.analysis.figures import points
from netacc_lab.analysis.intervals import USUAL, ccdf
from netacc_lab.analysis.record import Record, Series
from netacc_lab.analysis.stages import MESSAGES, STAGES, bars, slowest_messages
from netacc_lab.analysis.timeline import TIME, rates

COLOURS = plotly.colors.qualitative.D3


def plot_ccdf(series: Iterable[Series], *, bands: bool = True) -> go.Figure:
    """The share of requests that take longer, with a band of 95 %; both scales are logarithmic.

    Raises ValueError for a series without histograms.
    """
    figure = go.Figure()
    for number, each in enumerate(series):
        values, share, low, high = ccdf(each)
        colour = COLOURS[number % len(COLOURS)]
        shape = {"shape": "hv", "color": colour}
        # A logarithmic axis has no place for 0, the share above the largest value.
        shown = share > 0
        us = values[shown] / 1000
        name = {"name": each.label, "legendgroup": each.label}
        figure.add_scatter(x=us, y=share[shown], line=shape, mode="lines", **name)
        for edge, fill in ((high, None), (low, "tonexty")) if bands else ():
            figure.add_scatter(
                x=us,
                y=edge[shown],
                line={"shape": "hv", "width": 0, "color": colour},
                fill=fill,
                mode="lines",
                showlegend=False,
                hoverinfo="skip",
                **name,
            )
    figure.update_xaxes(type="log", title="latency (us)")
    figure.update_yaxes(type="log", title="share of requests that take longer")
    return figure


def plot_percentiles(series: Iterable[Series]) -> go.Figure:
    """Percentiles of each series with their intervals, beside one another."""
    figure = go.Figure()
    for each in series:
        at, values, below, above = points(each)
        errors = {"type": "data", "array": above, "arrayminus": below}
        figure.add_scatter(
            x=[f"p{percent:g}" for percent in at], y=values, error_y=errors, mode="markers", name=each.label
        )
    names = [f"p{percent:g}" for percent in USUAL]
    figure.update_xaxes(categoryorder="array", categoryarray=names)
    figure.update_yaxes(type="log", title="latency (us)")
    figure.update_layout(scattermode="group")
    return figure


def plot_timeline(record: Record, *names: str, table: str = "counters") -> go.Figure:
    """The rates of counters over time; without names, of all that have changed. Raises as `rates`."""
    figure = go.Figure()
    for name, (times, per_s) in rates(record, *names, table=table).items():
        figure.add_scatter(x=times, y=per_s, line={"shape": "vh"}, mode="lines", name=name)
    figure.update_xaxes(title="time (s)")
    figure.update_yaxes(title="a second")
    return figure


def plot_stages(record: Record) -> go.Figure:
    """The mean stages of each direction, one behind the other; below, those of its slowest messages.

    Raises KeyError if the record is of no trace.
    """
    labels, widths = bars(record)
    figure = go.Figure()
    for name, us in widths.items():
        figure.add_bar(x=us, y=_rows(labels), orientation="h", name=name, marker_color=_colour(name))
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title="mean time (us)")
    figure.update_yaxes(autorange="reversed")
    return figure


def _rows(labels: Sequence[str]) -> list[str]:
    """Rows of the same name would be one row: the second of each pair names its direction as well."""
    return [
        label if number % 2 == 0 else f"{labels[number - 1]}: {label}" for number, label in enumerate(labels)
    ]


def plot_messages(record: Record, count: int = 20) -> go.Figure:
    """The slowest messages of a trace, one in a row, with their stages one behind the other.

    Raises KeyError if the record is of no trace.
    """
    found = slowest_messages(record, count)
    rows = [f"{number + 1}: {each['direction']}" for number, each in enumerate(found)]
    known = {*STAGES, "total", "direction", "from", "to", "path"}
    about = [", ".join(f"{name} {each[name]}" for name in each if name not in known) for each in found]
    figure = go.Figure()
    for name in STAGES:
        us = [each[name] / 1000 for each in found]
        if any(us):
            figure.add_bar(
                x=us, y=rows, orientation="h", name=name, marker_color=_colour(name), hovertext=about
            )
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title="time since the sender's call (us)")
    figure.update_yaxes(autorange="reversed")
    return figure


def write_page(records: Sequence[Record], file: Path) -> None:
    """One page with all figures that the records have; it needs no network. Raises OSError."""
    series = [each for record in records for each in record]
    whole = [each for each in series if each.histograms()]
    figures = [plot_ccdf(whole)] if whole else []
    figures += [plot_percentiles(series)] if series else []
    for record in records:
        for name in record.tables:
            if name == MESSAGES:
                figures += [plot_stages(record), plot_messages(record)]
            elif TIME in record.table(name).column_names:
                figures.append(plot_timeline(record, table=name))
    title = "; ".join(dict.fromkeys(record.title for record in records))
    parts = [
        figure.to_html(full_html=False, include_plotlyjs=number == 0) for number, figure in enumerate(figures)
    ]
    head = f'<!doctype html><html><head><meta charset="utf-8"><title>{html.escape(title)}</title></head>'
    file.write_text(
        f"{head}<body><h1>{html.escape(title)}</h1>{''.join(parts)}</body></html>", encoding="utf-8"
    )


def _colour(stage: str) -> str:
    """The same in each figure."""
    return str(COLOURS[STAGES.index(stage) % len(COLOURS)])
