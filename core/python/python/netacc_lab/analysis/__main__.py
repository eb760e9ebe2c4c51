"""`netacc report`: prints and draws a record, or compares two."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from netacc_lab.analysis.comparison import Comparison, Ratio, compare, compare_records, differences
from netacc_lab.analysis.intervals import USUAL, percentiles
from netacc_lab.analysis.reading import RecordError, load
from netacc_lab.analysis.record import Record
from netacc_lab.sim.units import describe_ns

EPILOG = """\
A record is a file of `netacc bench ... --json` or `netacc lat --json`, or the folder of a run of `netacc sim`
or of the kit for two machines.

Exit codes: 0 printed, 1 the two have no series in common, 2 no record, or wrong arguments.

examples:
  netacc report results/redis-c100.json                  its series, and each compared with the first
  netacc report before.json after.json --plot both.svg   the series that both have, compared
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    options = _parser().parse_args(arguments)
    try:
        records = [load(path) for path in options.record]
        if len(records) > 2:
            raise RecordError("more than two records")
        different = differences(*records) if len(records) == 2 else []
        comparisons = _compared(records)
        if options.plot:
            _draw(records, options.plot)
    except (RecordError, ValueError) as error:
        print(f"netacc report: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({**_plain(records, comparisons), "differences": different}))
    else:
        _show(records, comparisons, different)
    if len(records) == 2 and not comparisons:
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
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the tails (.svg, .png, .pdf)")
    parser.add_argument("--json", action="store_true", help="one JSON object: nanoseconds, and per second")
    return parser


def _compared(records: Sequence[Record]) -> list[Comparison]:
    """Two records by the names of their series; of one the others with the first."""
    if len(records) == 2:
        return compare_records(*records)
    series = list(records[0])
    return [compare(series[0], other) for other in series[1:]]


def _draw(records: Sequence[Record], file: Path) -> None:
    # It takes a second to load.
    import matplotlib as mpl

    mpl.use("agg")
    from netacc_lab.analysis.figures import plot_ccdf, plot_percentiles

    series = [each for record in records for each in record]
    whole = [each for each in series if each.histograms()]
    axes = plot_ccdf(whole) if whole else plot_percentiles(series)
    figure = axes.get_figure(root=True)
    if figure is not None:
        figure.savefig(file, bbox_inches="tight")


def _show(records: Sequence[Record], comparisons: Sequence[Comparison], different: Sequence[str]) -> None:
    for record in records:
        print(f"{record.title}  ({record.path})")
        print(f"{record.machine}{', ' if record.date else ''}{record.date}")
        lines = [["series", "runs", "a second", *(f"p{percent:g}" for percent in USUAL), "on links"]]
        for series in record:
            rates = sorted(run.rate_per_s for run in series.runs if run.rate_per_s is not None)
            share = "" if series.link_share is None else f"{series.link_share:.1%}"
            tails = [
                "" if tail.value is None else _interval(tail.value, tail.low, tail.high)
                for tail in percentiles(series)
            ]
            rate = f"{rates[len(rates) // 2]:,.0f}" if rates else ""
            lines.append([series.name, str(len(series.runs)), rate, *tails, share])
        _print(lines)
        for warning in record.warnings:
            red = ("\033[31m", "\033[0m") if sys.stderr.isatty() else ("", "")
            print(f"{red[0]}note: {warning}{red[1]}", file=sys.stderr)
        print()
    for difference in different:
        print(f"note: {difference}", file=sys.stderr)
    if comparisons:
        print("ratios to the first, with intervals (95 %); * where that leaves out 1")
        heads = ["compared", "a second", *(f"p{percent:g}" for percent in USUAL), "largest gap", "moved"]
        _print([heads, *(_line(each) for each in comparisons)])


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
