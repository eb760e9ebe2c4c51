"""`netacc sim`: run, sweep, report, list, schema.

Ends with 0 when all is well, 1 if a run failed, 2 for a scenario or arguments that make no sense, 4 if
requests were left unanswered, 130 when interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from netacc_lab.sim import estimate, paths, resolve
from netacc_lab.sim.columns import table
from netacc_lab.sim.completion import completions
from netacc_lab.sim.engine import DaskEngine, Engine, EngineError, SerialEngine
from netacc_lab.sim.errors import ScenarioError, refuse
from netacc_lab.sim.model import Scenario
from netacc_lab.sim.slowdown import slowdowns
from netacc_lab.sim.store import Store
from netacc_lab.sim.study import Progress, Study, find, study

#: Why one simulation is one process.
NO_RANKS = (
    "a simulation is one process: Debian's ns-3 has no MPI, and the bytes of messages are in one memory, not "
    "in packets (models/ns3/doc/rnic.rst). Runs of a sweep are made side by side: --jobs, --cluster"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.do(options))
    except (ScenarioError, EngineError, paths.NotFoundError) as error:
        print(f"netacc sim: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("netacc sim: interrupted; finished runs are kept, the same command goes on", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="netacc sim", description="What-if studies in simulation.")
    commands = parser.add_subparsers(required=True)

    def add(name: str, do: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(do=do)
        command.add_argument("--json", action="store_true", help="print JSON")
        command.add_argument(
            "--runs", type=Path, metavar="FOLDER", help="where runs are kept; else NETACC_RUNS"
        )
        return command

    for name, text in (
        ("run", "one point of a scenario, with its seeds; its sweep is left out"),
        ("sweep", "all points of a scenario's sweep, with all seeds"),
        ("report", "as sweep, and an HTML page and a Parquet file of it"),
    ):
        command = add(name, {"run": _run, "sweep": _sweep, "report": _report}[name], text)
        command.add_argument("scenario", help="a TOML file, or the name of a ready one (netacc sim list)")
        command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE[,VALUE...]")
        command.add_argument(
            "--unset", action="append", default=[], metavar="KEY", help="leave out a key that the file sets"
        )
        command.add_argument("--seeds", help="FROM..TO or A,B,C; else the scenario's")
        command.add_argument(
            "--dry-run", action="store_true", help="check, count runs and events, and run nothing"
        )
        command.add_argument("--jobs", type=int, help="runs at a time; else one for each processor")
        command.add_argument(
            "--cluster",
            metavar="ADDRESS",
            help="of the scheduler of a Dask cluster, as tcp://HOST:PORT; else runs are made here",
        )
        command.add_argument(
            "--ranks", type=int, default=1, help="processes (MPI) of one simulation: 1, others are refused"
        )
        if name == "report":
            command.add_argument("--out", type=Path, default=Path("report"), metavar="FOLDER")
    listing = add("list", _list, "ready scenarios, and with --made the runs that there are")
    listing.add_argument("--made", action="store_true")
    add("schema", _schema, "the JSON schema of scenario files")
    return parser


def _values(text: str) -> list[Any]:
    """Values of a key: JSON each, or else plain strings.

    A table, as of a distribution, is one value. A list in JSON has all of them.
    """
    if text.startswith(("{", "[")):
        try:
            value = json.loads(text)
        except json.JSONDecodeError as error:
            raise refuse("--set", text, f"is no table or list in JSON: {error}") from None
        return value if isinstance(value, list) else [value]
    found: list[Any] = []
    for part in text.split(","):
        try:
            found.append(json.loads(part))
        except json.JSONDecodeError:
            found.append(part)
    return found


def _settings(options: argparse.Namespace) -> dict[str, list[Any]]:
    settings = {}
    for each in options.set:
        key, equals, text = each.partition("=")
        if not equals or not key:
            raise refuse("--set", each, "is not KEY=VALUE")
        values = _values(text)
        if key.endswith(".profile"):
            # A file is named from the working folder here, and from the scenario in a scenario.
            values = [str(Path(v).resolve()) if str(v).endswith(".toml") else v for v in values]
        settings[key] = values
    return settings


def _seeds(options: argparse.Namespace) -> list[int] | None:
    text = options.seeds
    if text is None:
        return None
    try:
        if ".." in text:
            first, last = text.split("..")
            seeds = list(range(int(first), int(last) + 1))
        else:
            seeds = [int(part) for part in text.split(",")]
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0:
        raise refuse("--seeds", "", f"{text!r} is not FROM..TO or A,B,C")
    return seeds


def _run(options: argparse.Namespace) -> int:
    return _print_summary(options, _study(options, {}))


def _sweep(options: argparse.Namespace) -> int:
    return _print_summary(options, _study(options, None))


def _report(options: argparse.Namespace) -> int:
    found = _study(options, None)
    if found is not None:
        # Drawing takes a second to load, which others need not wait for.
        from netacc_lab.sim import ports, report, tables

        report.write(found, options.out / f"{found.name}.html")
        tables.write_points(found.points, options.out / f"{found.name}.parquet")
        more = ports.write_points(found.points, options.out / f"{found.name}-ports.parquet")
        names = ".html, .parquet" + (", -ports.parquet" if more else "")
        print(f"{options.out / found.name}{names}", file=sys.stderr)
    return _print_summary(options, found)


def _study(options: argparse.Namespace, sweep: dict[str, list[Any]] | None) -> Study | None:
    """The study; None for a dry run, which is printed here."""
    file = find(options.scenario)
    unset = options.unset
    scenario = resolve.check(resolve.without(resolve.read(file), unset, file), file)
    settings = _settings(options)
    for key in unset:
        if key in settings:
            raise refuse("--unset", key, "is given to --set, too")
    axes = {**(scenario.sweep if sweep is None else sweep), **settings}
    seeds = _seeds(options)
    if options.ranks != 1:
        raise refuse("--ranks", "", NO_RANKS)
    if options.jobs is not None and options.jobs < 1:
        raise refuse("--jobs", "", f"{options.jobs} runs at a time: at least 1")
    if options.dry_run:
        runs = resolve.runs(file, sweep=axes, seeds=seeds, unset=unset)
        events = sum(estimate.events(run.resolved) for run in runs)
        seconds = sum(estimate.seconds(run.resolved) for run in runs)
        if options.json:
            print(json.dumps({"runs": len(runs), "events": events, "processor_seconds": seconds}))
        else:
            print(f"{len(runs)} runs, about {events:,} events, about {seconds:,.0f} s of one processor")
        return None
    one = len(resolve.runs(file, sweep=axes, seeds=seeds, unset=unset)) == 1
    shown = _Shown()
    engine: Engine
    if one and not options.cluster:
        engine = SerialEngine(shown.simulated)
    else:
        engine = DaskEngine(jobs=options.jobs, address=options.cluster)
    try:
        return study(
            file,
            sweep=axes,
            seeds=seeds,
            unset=unset,
            engine=engine,
            folder=options.runs,
            progress=shown.runs,
        )
    finally:
        shown.close()


class _Shown:
    """A bar with the time that is left, of runs or of one run's simulated time; none without a terminal."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None
        self._ran = False

    def runs(self, progress: Progress) -> None:
        """A study has come so far."""
        if self._ran:
            return
        bar = self._open(progress.total, "run")
        bar.set_postfix(found=progress.hits, failed=progress.failed, refresh=False)
        bar.update(progress.done - bar.n)

    def simulated(self, line: dict[str, Any]) -> None:
        """One run has come so far."""
        self._ran = True
        bar = self._open(line["end_ns"] / 1e6, "simulated ms")
        bar.set_postfix(events=line["events"], answered=line["answered"], refresh=False)
        bar.update(min(line["simulated_ns"] / 1e6, bar.total) - bar.n)

    def _open(self, total: float, unit: str) -> tqdm[Any]:
        if self._bar is None:
            self._bar = tqdm(total=total, unit=unit, disable=None, file=sys.stderr)
        return self._bar

    def close(self) -> None:
        """The end of the bar."""
        if self._bar is not None:
            self._bar.close()


def _print_summary(options: argparse.Namespace, found: Study | None) -> int:
    if found is None:
        return 0
    failures = [{"run": done.key, "status": done.status, "error": done.error} for done in found.failures]
    if options.json:
        unused = found.without_effect()
        summary = {
            "scenario": found.name,
            "points": found.table(),
            "slowdowns": [
                {**point.values, **vars(each)} for point in found.points for each in slowdowns(point.runs)
            ],
            "collectives": [
                {**point.values, **vars(each)} for point in found.points for each in completions(point.runs)
            ],
            "failures": failures,
            "without_effect": unused,
            "notes": found.notes(),
        }
        print(json.dumps(summary))
    else:
        print(f"{found.question}\n\n{table(found)}")
        if found.kinds():
            print(f"({found.kinds()})")
        for note in found.notes():
            print(f"note: {note}", file=sys.stderr)
        for failure in failures:
            print(f"failed: {failure['run']}: {failure['status']} {failure['error']}", file=sys.stderr)
    if failures:
        return 1
    return 4 if any(point.status == "unfinished" for point in found.points) else 0


def _list(options: argparse.Namespace) -> int:
    if options.made:
        runs = Store(options.runs or paths.runs_folder()).all()
        lines = [
            {
                "run": run.folder.name,
                "scenario": run.meta["scenario"]["name"],
                "seed": run.meta["scenario"]["seed"],
                "status": run.status,
                "wall_s": run.meta["wall_s"],
            }
            for run in runs
        ]
    else:
        files = sorted(paths.scenarios_folder().glob("*.toml"))
        lines = [
            {"scenario": file.stem, "question": resolve.check(resolve.read(file), file).question}
            for file in files
        ]
    if options.json:
        print(json.dumps(lines))
    else:
        for line in lines:
            print("  ".join(str(value) for value in line.values()))
    return 0


def _schema(_: argparse.Namespace) -> int:
    print(json.dumps(Scenario.model_json_schema(by_alias=True), indent=1))
    return 0
