"""Tables of the steps `figures` and `redis`, then `netacc report`: `python -m ci.eri.report RESULTS`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from netacc_lab.analysis.__main__ import main as show
from netacc_lab.sim.store import Recorded

EMULATED = (
    "Machines in software emulation: only ratios within this run mean anything, and a software device that "
    "sleeps is slower than TCP."
)


def cell(outcome: dict[str, Any]) -> str:
    if not outcome["works"]:
        failure = str(outcome["failure"])
        return "fails: " + failure.replace("\n", " ").replace("|", "/")[:70]
    rates = {name: value for name, value in outcome["figures"].items() if name.endswith("_per_s")}
    cells = ", ".join(f"{value:.0f} {name.removesuffix('_per_s')}/s" for name, value in rates.items())
    share = outcome.get("link_share")
    return cells if share is None else f"{cells}; {share:.0%} on links"


def rows(head: list[str], body: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in body)])


def spread(of: Mapping[str, Any], name: str) -> str:
    """The median of the turns of rstream, and their range."""
    # Runs before November 2026 have one turn, and do not record it.
    turns = [turn[name] for turn in of.get("rstream_turns", [of["rstream"]] if of["rstream"] else [])]
    if not turns:
        return "fails"
    number = ",.0f" if max(turns) >= 1000 else ".3g"
    median, least, most = (f"{value:{number}}" for value in (of["rstream"][name], min(turns), max(turns)))
    return f"{median} ({least} to {most})" if len(turns) > 1 else median


def table(measured: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    """The table of the step `figures`: a line for each program, a column for each stack."""
    stacks = [name for name in ("tcp", "rsockets", "netacc") if name in figures]
    body = []
    for name in ("round_trip_us", "messages_per_s", "gbit_per_s"):
        alone = figures.get("verbs", {}).get("rstream", {}).get(name)
        cells = [spread(figures[stack], name) for stack in stacks]
        body.append([name, *cells, "" if alone is None else f"{alone:.4g}"])
    for name in figures[stacks[0]]["programs"] if stacks else ():
        of = [figures[stack]["programs"].get(name) for stack in stacks]
        body.append([name, *(cell(outcome) if outcome else "" for outcome in of), ""])
    report = rows(["", *stacks, "verbs alone"], body)
    return f"{EMULATED}\n\n{report}" if measured["emulated"] else report


def comparison(figures: Mapping[str, Any]) -> str:
    """The table of the step `redis`: a line for each round in which both stacks were measured."""
    body = []
    for number, of in enumerate(figures["rounds"], 1):
        if {"tcp", "netacc"} <= of.keys():
            tcp, ours = of["tcp"], of["netacc"]
            rates = [tcp["set_per_s"], ours["set_per_s"], tcp["set_p99_ms"], ours["set_p99_ms"]]
            ratio = f"{ours['set_per_s'] / tcp['set_per_s']:.2f}"
            body.append([f"{number}", *(f"{rate:g}" for rate in rates), ratio])
    return rows(["round", "tcp SET/s", "netacc SET/s", "tcp p99 ms", "netacc p99 ms", "ratio"], body)


def recorded(folder: Path) -> list[Recorded]:
    """All runs of two machines below a folder, by placement and step."""
    found = [
        Recorded(path.parent) for path in folder.rglob("meta.json") if not path.parent.name.startswith(".")
    ]
    measured = [run for run in found if "measured" in run.meta]
    return sorted(measured, key=lambda run: (run.meta["measured"]["placement"], run.meta["measured"]["step"]))


def report(runs: list[Recorded]) -> str:
    """The tables that are of this kit alone."""
    parts = []
    for run in runs:
        measured, figures = run.meta["measured"], run.meta["figures"]
        where = f"{measured['step']}, {measured['placement']}, {measured['date']}"
        if measured["step"] == "figures" and figures:
            parts.append(f"## {where}\n\n{table(measured, figures)}")
        elif measured["step"] == "redis" and figures:
            parts.append(f"## {where}\n\n{comparison(figures)}")
        for what, how in (run.meta["failures"] | run.meta["remarks"]).items():
            parts.append(f"{where}: {what}: {how}")
    return "\n\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ci.eri.report", description=__doc__)
    parser.add_argument("results", type=Path, help="the results of `python -m ci.eri`, or a part of them")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the latencies, as .svg or .png")
    arguments = parser.parse_args()
    runs = recorded(arguments.results)
    if not runs:
        print(f"{arguments.results}: no recorded runs of two machines", file=sys.stderr)
        return 1
    print(report(runs), flush=True)
    plot = ["--plot", str(arguments.plot)] if arguments.plot else []
    return show([str(arguments.results), *plot])


if __name__ == "__main__":
    sys.exit(main())
