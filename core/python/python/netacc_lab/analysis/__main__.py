"""`netacc report`: prints and draws a record, or compares two."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from netacc_lab.analysis.comparison import Comparison, Ratio, compare, compare_records, differences
from netacc_lab.analysis.intervals import USUAL, percentiles
from netacc_lab.analysis.reading import below, load
from netacc_lab.analysis.record import Record, Series
from netacc_lab.analysis.stages import MESSAGES, SLOWEST, stage_changes, stages
from netacc_lab.analysis.timeline import TIME, changes, plot_timeline
from netacc_lab.records import RecordError
from netacc_lab.records.model import Kind
from netacc_lab.sim.units import describe_ns

EPILOG = """\
A record is a folder that a tool wrote with --record, a run of `netacc sim`, or a step of the kit for two
machines. Older results, and what the tools print with --json, are read, too. Of a folder of records all are
printed, and those of the same title compared with the first one.

Exit codes: 0 printed, 1 the two have no series in common, 2 no record, or wrong arguments.

examples:
  netacc bench redis --record redis; netacc report redis   its series, and each compared with the first
  netacc report before after --plot both.svg               the series that both have, compared
  netacc report trace --plot trace.html                    a page of interactive figures
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    options = _parser().parse_args(arguments)
    try:
        if len(options.record) > 2:
            raise RecordError("more than two records")
        records = [load(path) for path in _found(options.record)]
        different = differences(*records) if len(options.record) == 2 else []
        comparisons = _compared(records) if len(records) == len(options.record) else _grouped(records)
        if options.plot:
            _draw(records, options.plot)
    except (RecordError, ValueError) as error:
        print(f"netacc report: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({**_plain(records, comparisons), "differences": different}))
    else:
        _show(records, comparisons, different)
    if len(options.record) == 2 and not comparisons:
        print("netacc report: the two have no series in common", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="netacc report",
        description="Prints and draws a record of a measurement or a simulation, or compares two.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("record", nargs="+", type=Path, help="one, or two to compare", metavar="RECORD")
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw the tails (.svg, .png, .pdf), or write a page of all interactive figures (.html)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object: nanoseconds, and per second")
    return parser


def _found(paths: Sequence[Path]) -> list[Path]:
    """One folder may be of many records."""
    if len(paths) == 1 and paths[0].is_dir() and not (paths[0] / "meta.json").exists():
        return below(paths[0]) or list(paths)
    return list(paths)


def _compared(records: Sequence[Record]) -> list[Comparison]:
    """Two records by the names of their series; of one the others with the first of the same test or size."""
    if len(records) == 2:
        return compare_records(*records)
    firsts: dict[str, Series] = {}
    found = []
    for series in records[0]:
        first = firsts.setdefault(series.of, series)
        if first is not series:
            found.append(compare(first, series))
    return found


def _grouped(records: Sequence[Record]) -> list[Comparison]:
    """Each measurement with the first one of the same title."""
    firsts: dict[str, Record] = {}
    found = []
    for record in (record for record in records if not record.simulated):
        first = firsts.setdefault(record.title, record)
        if first is not record:
            found += compare_records(first, record)
    return found


def _draw(records: Sequence[Record], file: Path) -> None:
    if file.suffix == ".html":
        try:
            from netacc_lab.analysis import interactive
        except ModuleNotFoundError:
            raise ValueError("a page needs plotly: pip install netacc-lab[interactive]") from None
        interactive.write_page(records, file)
        return
    # It takes a second to load.
    import matplotlib as mpl

    mpl.use("agg")
    from netacc_lab.analysis.figures import plot_ccdf, plot_percentiles

    series = [each for record in records for each in record]
    whole = [each for each in series if each.histograms()]
    if not series:
        axes = plot_timeline(records[0])
    else:
        axes = plot_ccdf(whole) if whole else plot_percentiles(series)
    figure = axes.get_figure(root=True)
    if figure is not None:
        figure.savefig(file, bbox_inches="tight")


def _show(records: Sequence[Record], comparisons: Sequence[Comparison], different: Sequence[str]) -> None:
    for record in records:
        print(f"{record.title}  ({record.path})")
        for line in _about(record):
            print(line)
        if record.series:
            _print(_table(record))
        for name in record.tables:
            if name == MESSAGES:
                _print_stages(record)
            else:
                _print_changes(record, name)
        for warning in record.warnings:
            _warn(warning)
        print()
    for difference in different:
        _warn(difference)
    if comparisons:
        print("ratios to the first, with intervals (95 %); * where that leaves out 1")
        heads = ["compared", "a second", *(f"p{percent:g}" for percent in USUAL), "largest gap", "moved"]
        _print([heads, *(_line(each) for each in comparisons)])
    if len(records) == 2 and all(record.kind == Kind.TRACE for record in records):
        _print_stage_changes(*records)


def _warn(text: str) -> None:
    red = ("\033[31m", "\033[0m") if sys.stderr.isatty() else ("", "")
    sys.stdout.flush()
    print(f"{red[0]}note: {text}{red[1]}", file=sys.stderr)


def _about(record: Record) -> list[str]:
    """The machine, the date, the load by other work and the command."""
    lines = [", ".join(part for part in (record.machine, record.date) if part)]
    if record.contents:
        header = record.contents.header
        loads = []
        if header.load.before.busy_processors is not None:
            loads.append(f"{header.load.before.busy_processors:.1f} before")
        if header.load.during:
            loads.append(f"{header.load.during.busy_processors:.1f} meanwhile")
            loads.append(f"at most {header.load.during.most_busy_processors:.1f} in a run")
        if loads:
            lines.append(f"processors busy with other work: {', '.join(loads)}")
        if header.command:
            lines.append(f"command: {shlex.join(header.command)}")
    return [line for line in lines if line]


def _table(record: Record) -> list[list[str]]:
    lines = [
        ["series", "runs", "a second", *(f"p{percent:g}" for percent in USUAL), "server CPU", "on links"]
    ]
    for series in record:
        rates = sorted(run.rate_per_s for run in series.runs if run.rate_per_s is not None)
        costs = sorted(
            run.figures["server_cpu_per_request_ns"]
            for run in series.runs
            if "server_cpu_per_request_ns" in run.figures
        )
        tails = [
            "" if tail.value is None else _interval(tail.value, tail.low, tail.high)
            for tail in percentiles(series)
        ]
        lines.append(
            [
                series.name,
                str(len(series.runs)),
                f"{rates[len(rates) // 2]:,.0f}" if rates else "",
                *tails,
                describe_ns(costs[len(costs) // 2]) if costs else "",
                "" if series.link_share is None else f"{series.link_share:.1%}",
            ]
        )
    # Columns without any cell only take room.
    kept = [at for at in range(len(lines[0])) if any(line[at] for line in lines[1:])]
    return [[line[at] for at in kept] for line in lines]


def _print_changes(record: Record, name: str) -> None:
    """A time series' counters that have changed; of other tables the size."""
    table = record.table(name)
    if TIME not in table.column_names:
        print(f"table {name}: {table.num_rows} rows of {', '.join(table.column_names)}")
        return
    print(f"time series {name}: {table.num_rows} rows")
    lines = [["counter", "first", "last", "a second"]]
    for change in changes(record, name):
        rate = "" if change.per_s is None else f"{change.per_s:,.1f}"
        lines.append([change.name, f"{change.first:,.0f}", f"{change.last:,.0f}", rate])
    if len(lines) > 1:
        _print(lines)


def _print_stages(record: Record) -> None:
    """Where the time of the messages goes, in each direction."""
    slowest = f"slowest {SLOWEST:.0%}"
    lines = [["direction", "stage", "mean", "p50", "p99", slowest]]
    for each in stages(record):
        times = (each.mean_ns, each.p50_ns, each.p99_ns, each.slowest_ns)
        lines.append([each.direction, each.stage, *(describe_ns(time) for time in times)])
    _print(lines)


def _print_stage_changes(first: Record, second: Record) -> None:
    lines = [["direction", "stage", "first", "second", "ratio"]]
    for each in stage_changes(first, second):
        times = (describe_ns(each.first_ns), describe_ns(each.second_ns))
        lines.append([each.direction, each.stage, *times, _ratio(each.ratio)])
    _print(lines)


def _line(found: Comparison) -> list[str]:
    gap = "" if found.largest_gap is None else f"{found.largest_gap:.1%}"
    moved = "" if found.moved_ns is None else describe_ns(found.moved_ns)
    names = f"{found.second.label} / {found.first.label}"
    return [names, _ratio(found.rate), *(_ratio(found.percentiles.get(at)) for at in USUAL), gap, moved]


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return ""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}"
    return f"{ratio.value:.2f} [{ratio.low:.2f} to {ratio.high:.2f}]{'*' if ratio.differs else ''}"


def _interval(value: float, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return describe_ns(value)
    return f"{describe_ns(value)} [{describe_ns(low)} to {describe_ns(high)}]"


def _print(lines: Sequence[Sequence[str]]) -> None:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _plain(records: Sequence[Record], comparisons: Sequence[Comparison]) -> dict[str, Any]:
    return {
        "records": [
            {
                "path": str(record.path),
                "kind": record.kind,
                "title": record.title,
                "machine": record.machine,
                "date": record.date,
                "simulated": record.simulated,
                "warnings": list(record.warnings),
                "series": [
                    {
                        "name": series.name,
                        "rates_per_s": [run.rate_per_s for run in series.runs],
                        "link_share": series.link_share,
                        "percentiles_ns": [vars(tail) for tail in percentiles(series)],
                    }
                    for series in record
                ],
            }
            for record in records
        ],
        "comparisons": [
            {
                "first": each.first.label,
                "second": each.second.label,
                "rate": each.rate and vars(each.rate),
                "percentiles": {f"{at:g}": vars(ratio) for at, ratio in each.percentiles.items()},
                "largest_gap": each.largest_gap,
                "moved_ns": each.moved_ns,
            }
            for each in comparisons
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
