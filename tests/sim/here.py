"""Redis and memcached on this machine, predicted from ping-pongs on it.

Calibration: that of `netacc calibrate`, on TCP and shared memory. The program with 4, 8 and 16 requests in
flight on each of a few connections gives what it and its client do themselves on a path, for a request and
for a turn of a connection; with short values on a few and on a thousand, what a turn takes more where the
connections' states are not in the caches. Nothing is fitted on the loads that are predicted, with one request
in flight on each.

Calibrations and loads are made in rounds, one after the other, and the fastest round of each counts: what
other virtual machines do on the same cores makes everything here slower, for seconds. All that counts was
measured while the processors were as far apart (`netacc bench noise`). Each figure has the least and most of
the rounds at that speed: a prediction between them cannot be told from a measurement.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from netacc_lab.calibration import measuring, writing
from netacc_lab.calibration.fitting import Fit

from tests.sim.rows import Row, mean, simulate

#: The aim, for a machine on which nothing else runs. The processor time of a request has none.
AIMS = {"rate": 0.1, "p50": 0.1, "p95": 0.15, "p99": 0.2, "p999": 0.3}
LATENCIES = ("p50", "p95", "p99", "p999")
#: Of each end for each request, as `netacc bench` and the simulation count them: how often it sleeps, how
#: often it asks for what is ready, and nanoseconds of polling. On TCP sleeps alone are counted. Without an
#: aim, too: they show why the others differ.
COUNTS = {
    f"{end}_{what}": (f"{end}s", counted)
    for end in ("server", "client")
    for what, counted in (("sleeps", "wake_ups"), ("asks", "asks"), ("spun_ns", "polling_ns"))
}
#: Of figures that are not microseconds.
UNITS = {"rate": "/s"} | {name: "ns" if name.endswith("_ns") else "" for name in COUNTS}
#: Processors that other work keeps busy, at most, for the aims to count.
QUIET = 0.1
#: The loads that are predicted, and the seconds of each measurement, for most of which all are connected.
CONNECTIONS = {1: 1.0, 10: 1.0, 100: 2.0, 1000: 6.0}
#: The pipelined loads that show the program's own work: connections, requests in flight on each, and seconds.
#: With so many connections all states are in the caches, and no end sleeps often; on shared memory both
#: poll, and say how long. Each turn reads and writes once: Redis reads at most 16 KiB at a time, and
#: memcached turns to the next connection after 20 requests.
FEW, PIPELINES, PIPED_SECONDS = 50, (4, 8, 16), 0.5
#: The same load on one connection, whose ends poll and work in turn.
ALONE = "one connection"
#: Two loads with short values and one request in flight on each connection: many connections, whose states,
#: the program's own included, are in no cache, and as few as with pipelines. Connections and seconds.
CROWD, CROWDS_SECONDS, SHORT = 1000, 2.5, 64
CROWDED, UNCROWDED = "a crowd", "no crowd"
ENDS = ("server", "client")
#: The part of the fastest round's rate from which on a round is as fast. Arbitrary: rounds in which another
#: machine has the cores, too, have less than 0.85 of it.
ALIKE = 0.95
#: How long each seed simulates a load. Stalls of milliseconds come once or twice a second, and make p99.9: a
#: fifth of this has none in most seeds, and many in some.
SIMULATED = "1s"
#: Rounds of everything, at least.
ROUNDS = 3
PATHS = ("tcp", "shm")
#: What was measured, in the folder of a check. One that has it already measures nothing.
KEPT = "measured.json"
#: Bytes of a value.
VALUE = 512


@dataclass(frozen=True)
class Program:
    """A server and its client, as they are measured and simulated."""

    #: `netacc bench ...`.
    bench: tuple[str, ...]
    #: Of the simulated workload.
    workload: dict[str, str]
    #: Of the simulated host.
    loops: dict[str, str] = field(default_factory=dict)
    #: The client's calls of epoll_ctl for each request that follow its write.
    changes_after_write: int = 0
    #: Microseconds that its client's latencies are steps of.
    resolution_us: float = 0.0


#: redis-benchmark 7.0 makes five calls of epoll_ctl for each request, by strace, two of them after the write.
#: It defers its writes.
#: Its histogram begins at 10 us, so HdrHistogram has steps of 8 us.
REDIS = Program(("redis",), {"kind": "redis-like"}, changes_after_write=2, resolution_us=8.0)
#: memcached makes no call but one to read and one to write for each request, by strace, and its client is the
#: ping-pong's. Both ask once for all that is ready.
MEMCACHED = Program(
    ("memcached", "--workers", "1"),
    {"kind": "request-response", "request": f"{VALUE + 21}B", "response": "8B"},
    {"server-loop": "rounds", "client-loop": "rounds"},
)


@dataclass(frozen=True)
class Piped:
    """A pipelined load, for each request: nanoseconds, and by end of processor time, sleeps, and asks."""

    #: Requests of a turn.
    length: int
    elapsed_ns: float
    cpu_ns: dict[str, float]
    sleeps: dict[str, float]
    #: How often an end asks for what is ready. One that is not counted asks once for each turn.
    asks: dict[str, float]
    #: Nanoseconds of the processor time in which the library polls.
    polled_ns: dict[str, float]


#: What a sleep of some length takes of the sleeper's and the waker's processor time.
Sleeps = Callable[[float], tuple[float, float]]


def redis_here(folder: Path) -> list[Row]:
    """Redis here, predicted from ping-pongs; the bounds count only while nothing else runs here."""
    return _program_here(folder, REDIS)


def memcached_here(folder: Path) -> list[Row]:
    """memcached with one worker here, predicted as Redis is."""
    return _program_here(folder, MEMCACHED)


def _program_here(folder: Path, program: Program) -> list[Row]:
    kept = folder / KEPT
    if not kept.exists():
        kept.write_text(json.dumps(_measured(program)))
    return _rows(folder, program, json.loads(kept.read_text()))


def _measured(program: Program) -> dict[str, Any]:
    """Everything that is measured at one distance: for the calibration, and to compare predictions with."""
    pace = measuring.Pace()
    calibration: dict[str, Any] = {}
    piped: dict[str, list[dict[str, Any]]] = {}
    loads: dict[str, list[dict[str, Any]]] = {}
    distance = None
    for number in range(measuring.LONGER * ROUNDS):
        more = measuring.measure_once(
            PATHS, seconds=0.5, number=number + 1, progress=lambda _: None, pace=pace
        )
        measuring.merge(calibration, more)
        for length in PIPELINES:
            arguments = ["-c", str(FEW), "--pipeline", str(length)]
            found = _load(program, pace, *arguments, "--seconds", str(PIPED_SECONDS))
            piped.setdefault(f"{length} in flight", []).append(found)
        arguments = ["-c", "1", "--pipeline", str(PIPELINES[0]), "--seconds", str(PIPED_SECONDS)]
        piped.setdefault(ALONE, []).append(_load(program, pace, *arguments))
        for name, count, seconds in ((CROWDED, CROWD, CROWDS_SECONDS), (UNCROWDED, FEW, PIPED_SECONDS)):
            arguments = ["-c", str(count), "--seconds", str(seconds)]
            piped.setdefault(name, []).append(_load(program, pace, *arguments, size=SHORT))
        for count, seconds in CONNECTIONS.items():
            found = _load(program, pace, "-c", str(count), "--seconds", str(seconds))
            loads.setdefault(f"{count} connections", []).append(found)
        rounds = [*piped.values(), *loads.values()]
        each = [_runs(of, path) for of in rounds for path in PATHS]
        distance = measuring.at_one_distance(measuring.loads_of(calibration) + each)
        if number + 1 >= ROUNDS and distance is not None:
            break
    if distance is None:
        raise measuring.MeasuringError("the processors moved too often: measure again")
    here = [found["paths"][path]["runs"] for of in rounds for found in of for path in PATHS]
    measuring.keep_near(measuring.loads_of(calibration) + here, distance)
    calibration["transfer_ns"] = distance
    return {"calibration": calibration, "piped": piped, "loads": loads}


def _load(program: Program, pace: measuring.Pace, *arguments: str, size: int = VALUE) -> dict[str, Any]:
    common = ["--paths", ",".join(PATHS), "--pairs", "1", "--size", str(size), "-q"]
    return pace.hold(lambda: measuring.bench(*program.bench, *common, *arguments))


def _rows(folder: Path, program: Program, found: dict[str, Any]) -> list[Row]:
    here = found["calibration"]
    loads = [load for rounds in found["loads"].values() for load in rounds]
    pipelined = [load for rounds in found["piped"].values() for load in rounds]
    others = max(float(each["machine"]["busy_processors"]) for each in (here, *loads))
    paces = [float(each["pace_ns"]) for each in (*loads, *pipelined)]
    paces += [float(pace) for echo in here["echoes"] for pace in echo["pace_ns"]]
    counts = others <= QUIET
    (folder / "host.toml").write_text(writing.host(here))
    rows = [
        Row("processors that other work kept busy", 0, others, "", None),
        Row("time of a copy, slowest to fastest measurement", 1, max(paces) / min(paces), "", None),
        Row("round trip of a cache line", here["transfer_ns"], here["transfer_ns"], "ns", None),
    ]
    calibrated = {path: writing.calibrated(here, path) for path in PATHS}
    # How many states the caches keep is seen on TCP: the library's are so small that a link shows none.
    tcp = calibrated["tcp"].fit.warm
    warm = tcp[0] if tcp else max(CONNECTIONS)
    own = {}
    for path, of in calibrated.items():
        by_length = [
            together(_alike(found["piped"][f"{length} in flight"], path), length) for length in PIPELINES
        ]
        own[path] = own_work(by_length, of.fit, of.sleep_costs)
    # On TCP nobody polls, and the programs are the same.
    alone, shm = together(_alike(found["piped"][ALONE], "shm"), PIPELINES[0]), calibrated["shm"]
    rounds = {end: own_round(alone, end, own["shm"][end], shm.fit, shm.sleep_costs) for end in ENDS}
    for path, stack in (("tcp", "kernel-tcp"), ("shm", "netacc")):
        of = calibrated[path]
        (folder / f"{path}.toml").write_text(writing.stack(here, of))
        change = writing.interest_change_ns(here, path)
        services = {
            f"{prefix}{kind}": value
            for end, prefix in (("server", ""), ("client", "client-"))
            for kind, value in (
                # A turn of the loads that are predicted has one request.
                ("service", round(own[path][end].service)),
                ("round-service", round(rounds[end])),
            )
        }
        known = {name: round(value) for name, value in of.fit.values.items()}
        known |= {
            "waker": round(of.waker.mean_ns) if of.waker else 0,
            "an epoll_ctl": round(change),
            **services,
        }
        rows += [
            Row(f"{path}: {name} (calibrated)", value, value, "ns", None) for name, value in known.items()
        ]
        after = min(round(program.changes_after_write * change), services["client-service"])
        services |= {"client-after-write": after, "client-service": services["client-service"] - after}
        crowd, few = (together(_alike(found["piped"][name], path), 1) for name in (CROWDED, UNCROWDED))
        displaced = {end: round(displaced_work(crowd, few, end, of.fit, of.sleep_costs)) for end in ENDS}
        rows += [
            Row(f"{path}: {end}'s displaced states (calibrated)", value, value, "ns", None)
            for end, value in displaced.items()
        ]
        for count in CONNECTIONS:
            rounds_of_load = found["loads"][f"{count} connections"]
            work = dict(services)
            if count == CROWD:
                work["service"] += displaced["server"]
                work["client-service"] += displaced["client"]
            seen = _predict(folder, (path, stack), program, work, (count, warm))
            resolution_us = program.resolution_us if counts else None
            rows += compared(f"{path}, {count} connections", rounds_of_load, path, seen, resolution_us)
    return rows


def _runs(rounds: list[dict[str, Any]], path: str) -> list[measuring.Run]:
    return [run for load in rounds for run in load["paths"][path]["runs"]]


def _alike(rounds: list[dict[str, Any]], path: str) -> list[measuring.Run]:
    """The rounds of a load in which the machine was at its fastest."""
    runs = _runs(rounds, path)
    least = ALIKE * measuring.counted(runs)["requests_per_s"]
    return [run for run in runs if run["requests_per_s"] >= least]


@dataclass(frozen=True)
class Own:
    """What an end does for the program: nanoseconds for a request, and for a turn of a connection.

    A turn's are negative if the stack's calls are dearer in ping-pongs than they are here.
    """

    request: float
    turn: float

    @property
    def service(self) -> float:
        """Of a turn with one request."""
        return max(self.request + self.turn, 0.0)


def own_work(loads: Sequence[Piped], fit: Fit, sleeps: Sleeps) -> dict[str, Own]:
    """By end, from loads by their pipelines: a turn with more requests has its own costs once."""
    found = {}
    for end in ENDS:
        rest = [awake(load, end, sleeps) - _stack(load, end, fit) for load in loads]
        turn, request = np.polyfit([1 / load.length for load in loads], rest, 1)
        found[end] = Own(max(float(request), 0.0), float(turn))
    return found


def _stack(load: Piped, end: str, fit: Fit) -> float:
    """Nanoseconds that an end spends in the stack for a request: a turn reads and writes once."""
    turn = 2 * fit.values["system-call"] + 2 * fit.values.get("segment", 0.0)
    copies = VALUE / 1024 * fit.values["copy-per-kib"]
    return turn / load.length + load.asks[end] * fit.values["system-call"] + copies


def own_round(alone: Piped, end: str, own: Own, fit: Fit, sleeps: Sleeps) -> float:
    """Nanoseconds of a program's own work each time that it asks for what is ready.

    On one connection both ends poll, and work in turn: each asks for every turn.
    """
    rest = awake(alone, end, sleeps) - _stack(alone, end, fit) - own.request
    return max(rest * alone.length - own.turn, 0.0)


def displaced_work(crowd: Piped, few: Piped, end: str, fit: Fit, sleeps: Sleeps) -> float:
    """Nanoseconds of a turn that the program's own states take which are in no cache.

    From two loads that differ in their connections alone, with a request in each turn.
    """
    turns = [awake(each, end, sleeps) - each.asks[end] * fit.values["system-call"] for each in (crowd, few)]
    # The stack's own are a part of its profile.
    warm = fit.warm[0] if fit.warm else CROWD
    stacks = fit.values.get("cold", 0.0) * (1 - warm / CROWD)
    return max(turns[0] - turns[1] - stacks, 0.0)


def awake(load: Piped, side: str, sleeps: Sleeps) -> float:
    """Nanoseconds of processor time for a request, without polling, and what sleeping and waking took."""
    cpu = load.cpu_ns[side] - load.polled_ns[side]
    for end in ENDS:
        if load.sleeps[end] > 0:
            sleeper, waker = sleeps(max(load.elapsed_ns - load.cpu_ns[end], 0.0) / load.sleeps[end])
            cpu -= load.sleeps[end] * (sleeper if end == side else waker)
    return cpu


def together(runs: Sequence[measuring.Run], length: int) -> Piped:
    """The means of rounds: what an end works is a difference of them, for which one round is too few."""
    found = [piped(run, length) for run in runs]

    def means(values: Callable[[Piped], dict[str, float]]) -> dict[str, float]:
        return {end: fmean(values(each)[end] for each in found) for end in ENDS}

    return Piped(
        length,
        fmean(each.elapsed_ns for each in found),
        means(lambda each: each.cpu_ns),
        means(lambda each: each.sleeps),
        means(lambda each: each.asks),
        means(lambda each: each.polled_ns),
    )


def piped(run: measuring.Run, length: int) -> Piped:
    """The figures of a load with so many requests in flight on each connection."""
    each = 1e9 / run["requests"]
    waits = run["waits"]
    return Piped(
        length,
        run["seconds"] * each,
        {end: run[f"{end}_cpu_s"] * each for end in ENDS},
        {end: waits[f"{end}_sleeps"] for end in ENDS},
        {end: waits.get(f"{end}_asks") or 1 / length for end in ENDS},
        {end: waits.get(f"{end}_spun_ns") or 0.0 for end in ENDS},
    )


def compared(
    what: str,
    rounds: list[dict[str, Any]],
    path: str,
    seen: dict[str, float],
    resolution_us: float | None,
) -> list[Row]:
    """The figures of a load's fastest round, their spread in rounds as fast, and the predicted ones.

    Without a resolution of the latencies the bounds do not count.
    """
    expected = _figures(measuring.counted(_runs(rounds, path)))
    alike = [_figures(run) for run in _alike(rounds, path)]

    def allowed(figure: str) -> float | None:
        if resolution_us is None or figure not in AIMS:
            return None
        coarse = resolution_us / expected[figure] if figure in LATENCIES else 0.0
        return max(AIMS[figure], coarse)

    def row(name: str, value: float) -> Row:
        values = [figures[name] for figures in alike]
        spread = (min(values), max(values))
        unit = UNITS.get(name, "us")
        return Row(f"{what}: {name} (predicted)", value, seen[name], unit, allowed(name), spread=spread)

    return [row(name, value) for name, value in expected.items()]


def _figures(run: measuring.Run) -> dict[str, float]:
    """What is predicted of a load."""
    figures = {"rate": run["requests_per_s"], "cpu": run["server_cpu_s"] * 1e6 / run["requests"]}
    figures |= {name: float(run["latency_us"][name]) for name in LATENCIES}
    waits = run["waits"]
    return figures | {name: waits[name] for name in COUNTS if waits.get(name) is not None}


def _predict(
    folder: Path, on: tuple[str, str], program: Program, services: dict[str, int], counts: tuple[int, int]
) -> dict[str, float]:
    (path, stack), (connections, warm) = on, counts
    workload = {"name": "set", "clients": 1, "connections": connections, **program.workload}
    point = simulate(
        folder,
        topology={"kind": "direct", "rate": "1000Gbit/s", "delay": "0ns"},
        host={"profile": "host.toml", "server-threads": 1, "client-threads": 1, **program.loops},
        stack={"kind": stack, "profile": f"{path}.toml", "warm-connections": warm},
        workload=[workload | {name: f"{value}ns" for name, value in services.items()}],
        # Connections that last are on their links by then.
        measure={"warmup": "50ms", "duration": SIMULATED, "seeds": [1, 2, 3], "samples": False},
    )
    found = {name: mean(point, "set", f"{name}_ns") / 1000 for name in LATENCIES}
    meta = point.runs[0].meta
    found["cpu"] = (meta["servers"]["busy_ns"] + meta["servers"]["polling_ns"]) / meta["answered"] / 1000
    found |= {name: meta[end][counted] / meta["answered"] for name, (end, counted) in COUNTS.items()}
    return {"rate": mean(point, "set", "answered_per_s"), **found}
