"""Studies: a scenario, its runs made or found, and their results.

The same from Python, a notebook and `netacc sim`.

>>> from netacc_lab.sim import study
>>> result = study("sim/scenarios/connections-per-qp.toml")  # doctest: +SKIP
>>> result.table()  # doctest: +SKIP
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from netacc_lab.sim import fits, paths, profiles, resolve, stats
from netacc_lab.sim.engine import DaskEngine, Engine, SerialEngine
from netacc_lab.sim.errors import refuse
from netacc_lab.sim.runner import Done, Task
from netacc_lab.sim.store import Code, Recorded, Store

#: The note about a key of a sweep that has no effect.
CHANGES_NOTHING = "changes nothing here: with each of its values the runs are the same to the last packet"
#: The percentiles that are reported.
PERCENTILES = {"p50_ns": 50.0, "p90_ns": 90.0, "p95_ns": 95.0, "p99_ns": 99.0, "p999_ns": 99.9}
#: The figures of a point of a study, by group: estimates in nanoseconds and per second.
Metrics = dict[str, stats.Estimate]


@dataclass(frozen=True)
class Progress:
    """How far a study is."""

    done: int
    total: int
    hits: int
    failed: int
    elapsed_s: float

    @property
    def remaining_s(self) -> float | None:
        """By the times of the runs that were made; None before the first."""
        made = self.done - self.hits
        return (self.total - self.done) * self.elapsed_s / made if made else None


@dataclass
class Point:
    """One point of a sweep: its runs, one for each seed."""

    values: Mapping[str, Any]
    runs: list[Recorded] = field(default_factory=list)
    #: The names of its profiles, by kind.
    profiles: Mapping[str, str] = field(default_factory=dict)
    #: The kinds of those of its figures that are no predictions, by name: see `fits`.
    kinds: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The values, for people."""
        return ", ".join(f"{key.rsplit('.', 1)[-1]}={value}" for key, value in self.values.items()) or "-"

    def takes_time(self) -> bool:
        """Whether calls take time, so that its stack's costs are in its figures."""
        return any(run.meta["scenario"]["processors"] for run in self.runs)

    @property
    def status(self) -> str:
        """`complete`, or the status of its worst run."""
        order = ("complete", "unfinished", "stalled", "broken")
        return max((run.status for run in self.runs), key=order.index, default="missing")

    def groups(self) -> list[str]:
        """Names of the workload's groups."""
        return [group["name"] for group in self.runs[0].meta["groups"]] if self.runs else []

    def metrics(self, group: str) -> Metrics:
        """The figures of a group: rates of one run are averaged, latencies put together."""
        metas = [next(g for g in run.meta["groups"] if g["name"] == group) for run in self.runs]
        histograms = [run.histogram(group) for run in self.runs]
        found = {
            "requests_per_s": stats.mean([meta["answered_per_s"] for meta in metas]),
            "bytes_per_s": stats.mean([meta["bytes_per_s"] for meta in metas]),
            "mean_ns": stats.mean([meta["mean_ns"] for meta in metas if meta["samples"]]),
        }
        for name, percent in PERCENTILES.items():
            found[name] = stats.percentile(histograms, percent)
        for name in ("dropped", "marked", "pauses"):
            found[name] = stats.mean([float(run.meta["network"][name]) for run in self.runs])
        if any(_is_of_datagrams(run.meta, group) for run in self.runs):
            found["datagrams_lost"] = stats.mean([float(meta["lost"]) for meta in metas])
        found["link_share"] = stats.mean([meta["link_share"] for meta in metas])
        shorts = [meta["short"] for meta in metas if meta["short"]]
        if shorts:
            found["connections_per_s"] = stats.mean([short["made_per_s"] for short in shorts])
            for what in ("connect", "whole"):
                means = [short[what]["mean_ns"] for short in shorts if short["made"]]
                found[f"{what}_mean_ns"] = stats.mean(means)
                kept = [run.histogram(group, what) for run in self.runs]
                found[f"{what}_p99_ns"] = stats.percentile(kept, 99.0)
        return found


@dataclass
class Study:
    """The results of a scenario's runs."""

    name: str
    question: str
    points: list[Point]
    failures: list[Done]
    #: The scenario's file, and what it says.
    file: Path = Path()
    text: str = ""

    def seeds(self) -> list[int]:
        """The seeds of its runs."""
        return sorted({run.meta["scenario"]["seed"] for point in self.points for run in point.runs})

    def table(self) -> list[dict[str, Any]]:
        """A row for each point and group: plain values, for pandas, JSON or a printout."""
        rows = []
        for point in self.points:
            for group in point.groups():
                row: dict[str, Any] = {
                    **point.values,
                    "group": group,
                    "status": point.status,
                    "runs": len(point.runs),
                }
                for kind in (fits.FITTED, fits.FOLLOWS):
                    row[kind] = [name for name, of in point.kinds.items() if of == kind]
                for name, estimate in point.metrics(group).items():
                    row[name] = estimate.value
                    row[f"{name}_low"], row[f"{name}_high"] = estimate.low, estimate.high
                rows.append(row)
        return rows

    def notes(self) -> list[str]:
        """Facts without which a reader could take the figures for others than they are."""
        return [
            *(f"{key} {CHANGES_NOTHING}" for key in self.without_effect()),
            *self._machines(),
            *(note for point in self.points for note in _notes(point)),
        ]

    def kinds(self) -> str:
        """Which of its figures are predictions; nothing where no call takes time."""
        if not any(point.takes_time() for point in self.points):
            return ""
        if any(point.kinds for point in self.points):
            return (
                "fitted: a profile was fitted on this figure; follows: from such a figure; others: predicted"
            )
        return "all figures are predicted: no profile was fitted on such a workload"

    def _machines(self) -> list[str]:
        """Stacks whose costs are of different machines cannot be ranked."""
        stacks = sorted({p.profiles["stack"] for p in self.points if p.takes_time()})
        machines = {name: profiles.load("stack", name, self.file).machine for name in stacks}
        if len(set(machines.values())) < 2:
            return []
        names = ", ".join(f"{name} ({machine or 'unknown'})" for name, machine in machines.items())
        return [f"the costs of these stacks are of different machines, so their order means nothing: {names}"]

    def without_effect(self) -> list[str]:
        """Keys of the sweep that change nothing: with all else equal, runs with different values are equal.

        A reader could take a parameter that was never used for one that does not matter.
        """
        keys = list(self.points[0].values) if self.points else []
        return [key for key in keys if self._changes_nothing(key)]

    def _changes_nothing(self, key: str) -> bool:
        compared: dict[str, list[str]] = {}
        for point in self.points:
            others = {name: value for name, value in point.values.items() if name != key}
            for run in point.runs:
                alike = repr((others, run.meta["scenario"]["seed"]))
                compared.setdefault(alike, []).append(run.outcome())
        return bool(compared) and all(len(each) > 1 and len(set(each)) == 1 for each in compared.values())


def _notes(point: Point) -> list[str]:
    """Of one point: what happened in its runs that a question about them would not expect."""
    found = []
    for run in point.runs:
        meta = run.meta
        seed = f"{point.label}, seed {meta['scenario']['seed']}"
        late = meta["links"]["promoted_late"]
        if late and not any(group["short"] for group in meta["groups"]):
            text = "connections went onto links after the warm-up: the figures are of TCP and links"
            found.append(f"{seed}: {late} {text}")
        dropped = meta["network"]["dropped"]
        if dropped and meta["scenario"]["network"]["switch"]["pfc"]:
            found.append(f"{seed}: {dropped} frames were dropped, although pfc should lose none")
    return found


def _is_of_datagrams(meta: Mapping[str, Any], group: str) -> bool:
    return any(each["datagrams"] for each in meta["scenario"]["groups"] if each["name"] == group)


def find(scenario: str | Path) -> Path:
    """The file of a scenario: a path, or the name of a ready one."""
    path = Path(scenario)
    if path.suffix == ".toml" or path.exists():
        return path
    ready = paths.scenarios_folder() / f"{scenario}.toml"
    if not ready.exists():
        names = ", ".join(sorted(p.stem for p in paths.scenarios_folder().glob("*.toml")))
        raise refuse(str(scenario), "", f"there is no such scenario; ready ones: {names}")
    return ready


def study(
    scenario: str | Path,
    *,
    sweep: Mapping[str, list[Any]] | None = None,
    seeds: list[int] | None = None,
    unset: Sequence[str] = (),
    engine: Engine | None = None,
    folder: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Study:
    """Makes the runs of a scenario that are not there yet, and reads all of them.

    Keys of `unset` are left out of the file.
    Without `sweep` the file's own is done; `{}` is none. Interrupted, it goes on when
    asked again.
    """
    file = find(scenario)
    runs = resolve.runs(file, sweep=sweep, seeds=seeds, unset=unset)
    question = str(resolve.read(file)["question"])
    # Workers may have another working folder.
    store = Store((folder or paths.runs_folder()).resolve())
    code = Code(paths.simulator().resolve())
    keys = [store.key(run.resolved, code) for run in runs]
    tasks = {
        key: Task(key, run.resolved, code.program, code.version, store.folder)
        for key, run in zip(keys, runs, strict=True)
    }
    begun = time.monotonic()
    failures, hits = [], 0
    with engine or (SerialEngine() if len(tasks) == 1 else DaskEngine()) as opened:
        for count, done in enumerate(opened.run(tasks.values()), 1):
            hits += done.hit
            if not done.failed and store.find(done.key) is None:
                error = (
                    f"its folder is not in {store.folder}: workers and this process must share that folder"
                )
                done = replace(done, status="error", error=error)
            if done.failed:
                failures.append(done)
            if progress:
                progress(Progress(count, len(tasks), hits, len(failures), time.monotonic() - begun))
    points: dict[str, Point] = {}
    for key, run in zip(keys, runs, strict=True):
        point = points.setdefault(repr(run.point), Point(run.point, profiles=run.profiles, kinds=run.kinds))
        recorded = store.find(key)
        if recorded:
            point.runs.append(recorded)
    text = "".join(f"# without {key}\n" for key in unset) + file.read_text()
    return Study(file.stem, question, list(points.values()), failures, file, text)
