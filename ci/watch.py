"""What has changed since another commit: `ci/run.sh watch BASE`.

The benchmarks of both trees run in turns, so that a slow moment of the machine hits both. Times are ratios
with intervals, by the pairs of a round; of so many ratios one in twenty leaves out 1 by chance. Instructions
of a call are counted, and system calls of a round trip whose messages are there, so any difference is real.
System calls of two sleepers vary by a tenth. How often both ends slept for each request is printed, too.
The records are kept, and `netacc report LOAD-base LOAD-new` compares them again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from netacc_lab import analysis, records
from netacc_lab.analysis import Ratio, Series
from netacc_lab.records import converting
from tqdm import tqdm

#: Benchmarks by name: arguments of `netacc bench`.
LOADS = {
    "redis-c50": ["redis", "-c", "50"],
    "redis-c1000": ["redis", "-c", "1000", "--size", "3"],
    "echo-spin": ["echo", "--mode", "spin", "--histogram"],
    "echo-epoll": ["echo", "--mode", "epoll", "--histogram"],
    "echo-sleep": ["echo", "--mode", "epoll", "--no-spin", "--histogram"],
    "stream": ["stream"],
    "connect": ["connect"],
    "many-c500": ["many", "-c", "500"],
}
TREES = ("base", "new")
CALLS = ("send", "recv")
#: By how much the system calls of a round trip vary: those of the library's own threads, and of sleepers.
VARIATION = {"awake": 0.01, "asleep": 0.5}


#: By what is counted, and by call or case.
Counts = dict[str, dict[str, float]]


class WatchError(Exception):
    """Something without which nothing can be compared."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    options = _parser().parse_args(arguments)
    folders = {"base": options.base, "new": options.new}
    loads = {name: LOADS[name] for name in options.only or LOADS}
    output: Path = options.output
    try:
        if output.exists() and any(output.iterdir()):
            raise WatchError(f"{output}: there is something already; name a new folder")
        output.mkdir(parents=True, exist_ok=True)
        kept = _measure(folders, loads, options)
        counts = {} if options.no_count else {tree: _counts(folders[tree]) for tree in TREES}
    except (WatchError, analysis.RecordError) as error:
        print(f"watch: {error}", file=sys.stderr)
        return 2
    rows = [row for name in loads for row in _rows(name, kept[name])]
    worse = [row for row in rows if row.get("worse")]
    summary = {"rows": rows, "counts": counts}
    (output / "summary.json").write_text(json.dumps(summary, indent=1))
    if options.json:
        print(json.dumps(summary))
    else:
        _show(rows, counts)
    return 1 if worse or more(counts) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ci.watch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Exit codes: 0 all is well, 1 a rate is lower (95 %), or instructions or system calls are "
        "more, 2 it could not be done.",
    )
    parser.add_argument("base", type=Path, help="the programs of the base: a folder such as target/release")
    parser.add_argument("new", type=Path, help="the programs of this tree")
    parser.add_argument("--rounds", type=_rounds, default=7, metavar="N", help="in turns; at least 2 [7]")
    parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help="of each measurement [1]")
    parser.add_argument("--only", nargs="+", choices=LOADS, metavar="LOAD", help=", ".join(LOADS))
    parser.add_argument(
        "--no-count",
        action="store_true",
        help="do not count instructions (valgrind) and system calls (strace)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("results/local/watch") / time.strftime("%Y%m%dT%H%M%S"),
        metavar="DIR",
        help="a new folder for the records [one below results/local/watch]",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    return parser


def _rounds(text: str) -> int:
    rounds = int(text)
    if rounds < 2:
        raise argparse.ArgumentTypeError("one round has no interval")
    return rounds


def _measure(
    folders: dict[str, Path], loads: dict[str, list[str]], options: argparse.Namespace
) -> dict[str, dict[str, Path]]:
    """The records, by load and tree."""
    found: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in loads}
    with tqdm(total=options.rounds * len(loads) * len(TREES), unit="run", disable=None) as bar:
        for number in range(options.rounds):
            for name, load in loads.items():
                # The first of a pair warms the machine up, so they take turns in that, too.
                for tree in TREES if number % 2 else reversed(TREES):
                    bar.set_description(f"{name}, {tree}")
                    measured = _bench(folders[tree] / "netacc", [*load, "--seconds", str(options.seconds)])
                    _add(found[name], tree, measured, number + 1)
                    bar.update()
    kept: dict[str, dict[str, Path]] = {}
    for name, trees in found.items():
        for tree, record in trees.items():
            contents = converting.of_bench(record, json.dumps(record))
            contents.header.command = ["netacc", "bench", *loads[name]]
            contents.header.versions = {"programs": str(folders[tree])}
            kept.setdefault(name, {})[tree] = options.output / f"{name}-{tree}"
            records.write(kept[name][tree], contents)
    return kept


def _bench(program: Path, load: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        command = [
            str(program),
            "bench",
            *load,
            "--paths",
            "tcp,shm",
            "--pairs",
            "1",
            "-q",
            "--json",
            str(out),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise WatchError(f"{program}: {error.strerror}") from None
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise WatchError(f"{program} bench {load[0]}: {lines[-1]}")
        measured: dict[str, Any] = json.loads(out.read_text())
        return measured


def _add(trees: dict[str, dict[str, Any]], tree: str, measured: dict[str, Any], number: int) -> None:
    """Adds the round to the record of a tree."""
    record = trees.setdefault(tree, measured)
    for path, of in measured["paths"].items():
        of["runs"][0]["round"] = number
        if record is not measured:
            record["paths"][path]["runs"] += of["runs"]
    if record is not measured:
        record["warnings"] = sorted({*record.get("warnings", []), *measured.get("warnings", [])})


def _rows(name: str, kept: dict[str, Path]) -> list[dict[str, Any]]:
    """The ratios of the new tree to the base on each path: kernel TCP's show what the machine did."""
    base, new = (analysis.load(kept[tree]) for tree in TREES)
    rows: list[dict[str, Any]] = []
    for path in base.series:
        for end in ("client", "server"):
            slept = [_mean(tree[path], f"{end}_sleeps") for tree in (base, new)]
            if None not in slept:
                rows.append({"load": name, "path": path, "figure": f"{end} sleeps", "means": slept})
        found = analysis.compare(_of(base[path], name), _of(new[path], name))
        for figure, ratio in (
            ("rate", found.rate),
            *((f"p{at:g}", r) for at, r in found.percentiles.items()),
        ):
            if ratio is not None:
                worse = path != "tcp" and figure == "rate" and ratio.value < 1 and ratio.differs
                rows.append({"load": name, "path": path, "figure": figure, **vars(ratio), "worse": worse})
    return rows


def _mean(series: Series, figure: str) -> float | None:
    """Over its runs; None if one has not got the figure."""
    found = [run.figures.get(figure) for run in series.runs]
    known = [value for value in found if value is not None]
    return sum(known) / len(known) if known and len(known) == len(found) else None


def _of(series: Series, name: str) -> Series:
    """Of one record, as the rounds of both trees were made in turns."""
    return dataclasses.replace(series, record=name, paired=True)


def _counts(folder: Path) -> Counts:
    """Of calls that send or receive 64 bytes on a link, instructions; of a round trip, system calls."""
    environment = os.environ | {"NETACC_BIN_DIR": str(folder.resolve())}
    found: Counts = {}
    for name in ("instructions", "system_calls"):
        command = [sys.executable, "-m", f"tests.apps.{name}"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise WatchError(f"{name} of {folder}: {lines[-1]}")
        found[name] = json.loads(done.stdout)
    return found


def more(counts: dict[str, Counts]) -> bool:
    """Whether a call takes more instructions, or a round trip more system calls, than their counts vary."""
    if not counts:
        return False
    base, new = (counts[tree] for tree in TREES)
    return any(new["instructions"][call] > base["instructions"][call] * 1.001 for call in CALLS) or any(
        new["system_calls"][case] > base["system_calls"][case] + most for case, most in VARIATION.items()
    )


def _show(rows: list[dict[str, Any]], counts: dict[str, Counts]) -> None:
    print("new to base, with intervals (95 %): * leaves out 1. On tcp both trees are the same kernel's.")
    for row in rows:
        if "means" in row:
            before, now = row["means"]
            what = f"{row['load']:12} {row['path']:5} {row['figure']} a request"
            print(f"{what}: {before:.3f} before, {now:.3f} now")
            continue
        ratio = Ratio(row["value"], row["low"], row["high"], row["method"])
        interval = "" if ratio.low is None else f" [{ratio.low:.2f} to {ratio.high:.2f}]"
        worse = "  worse" if row["worse"] else ""
        mark = "*" if ratio.differs else " "
        print(f"{row['load']:12} {row['path']:5} {row['figure']:6} {ratio.value:.2f}{interval}{mark}{worse}")
    if not counts:
        return
    base, new = (counts[tree] for tree in TREES)
    for call in CALLS:
        before, now = (of["instructions"][call] for of in (base, new))
        print(
            f"instructions of a {call} of 64 bytes: {before:.1f} before, {now:.1f} now "
            f"({now / before - 1:+.1%})"
        )
    for case in VARIATION:
        before, now = (of["system_calls"][case] for of in (base, new))
        print(f"system calls of a round trip, both ends {case}: {before:.3f} before, {now:.3f} now")


if __name__ == "__main__":
    sys.exit(main())
