"""Redis and memcached on this machine, predicted from ping-pongs on it.

Calibration: that of `netacc calibrate`, on TCP and shared memory. The program with 64 requests in flight on
each connection gives what it and its client do themselves on a path, and loads of 8 and 64 on 1,000
connections what they do more when a connection's state is not in the caches. The latter is of a path: the
kernel's states of connections are larger than the library's, and the program's own displace more of them,
which no ping-pong shows. Without a pipeline redis-benchmark also watches each connection for room, and for
the answer, anew for each request: the calls are counted, and what one costs is calibrated. Nothing is fitted
on the loads that are predicted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from netacc_lab.calibration import measuring, writing
from netacc_lab.calibration.fitting import Fit

from tests.sim.rows import Row, mean, simulate

#: The aim, for a machine on which nothing else runs. The processor time of a request has none.
AIMS = {"rate": 0.1, "p50": 0.1, "p95": 0.15, "p99": 0.2, "p999": 0.3}
#: Sleeps for each request, by the end of the simulation; without an aim, too.
SLEEPS = {"servers": "server_sleeps", "clients": "client_sleeps"}
#: Of figures that are no times.
UNITS = {"rate": "/s", **dict.fromkeys(SLEEPS.values(), "")}
#: Processors that other work keeps busy, at most, for the aims to count.
QUIET = 0.1
#: The loads that are predicted, and the seconds of each measurement, for most of which all are connected.
CONNECTIONS = {1: 1.0, 10: 1.0, 100: 2.0, 1000: 6.0}
#: The pipelined loads that show the program's own work: connections, and requests in flight on each.
FEW, MANY, PIPELINES = 10, 1000, (8, 64)
#: Seconds of a measurement of them, and of a short one that is subtracted.
PIPED_SECONDS = {FEW: ("0.5",), MANY: ("4", "1")}
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
    #: The client's calls of epoll_ctl for each request without a pipeline: between the answer and the
    #: write, and after the write.
    interest_changes: tuple[int, int] = (0, 0)


#: redis-benchmark 7.0 makes five calls of epoll_ctl for each request, by strace, and defers its writes.
REDIS = Program(("redis",), {"kind": "redis-like"}, interest_changes=(3, 2))
#: memcached makes no call but one to read and one to write for each request, by strace, and its client is the
#: ping-pong's. Both ask once for all that is ready.
MEMCACHED = Program(
    ("memcached", "--workers", "1"),
    {"kind": "request-response", "request": f"{VALUE + 21}B", "response": "8B"},
    {"server-loop": "rounds", "client-loop": "rounds"},
)

#: By connections and length of the pipeline: by path and end, nanoseconds of processor time for each request.
Piped = dict[tuple[int, int], dict[str, dict[str, float]]]


def redis_here(folder: Path) -> list[Row]:
    """Redis here, predicted from ping-pongs; the bounds count only while nothing else runs here."""
    return _program_here(folder, REDIS)


def memcached_here(folder: Path) -> list[Row]:
    """memcached with one worker here, predicted as Redis is."""
    return _program_here(folder, MEMCACHED)


def _program_here(folder: Path, program: Program) -> list[Row]:
    here = measuring.measure(["tcp", "shm"], seconds=0.5, rounds=3, progress=lambda _: None)
    piped = {
        (count, length): steady(
            *(
                _measure(program, "-c", str(count), "--pipeline", str(length), "--seconds", seconds)
                for seconds in spans
            )
        )
        for count, spans in PIPED_SECONDS.items()
        for length in PIPELINES
    }
    measured = {
        count: _measure(program, "-c", str(count), "--seconds", str(seconds))
        for count, seconds in CONNECTIONS.items()
    }
    others = max(float(found["machine"]["busy_processors"]) for found in (here, *measured.values()))
    (folder / "host.toml").write_text(writing.host(here))
    rows = [Row("processors that other work kept busy", 0, others, "", None)]
    tcp = writing.calibrated(here, "tcp").fit
    # How many states the caches keep is seen on TCP: the library's are so small that a link shows none.
    warm = tcp.warm[0] if tcp.warm else MANY
    for path, stack in (("tcp", "kernel-tcp"), ("shm", "netacc")):
        found = writing.calibrated(here, path)
        (folder / f"{path}.toml").write_text(writing.stack(here, found, writing.noise(here)))
        known = {name: round(value) for name, value in found.fit.values.items()}
        change = writing.interest_change_ns(here, path)
        services = _services(piped, path, found.fit, warm)
        known |= {"an epoll_ctl": round(change), **services}
        rows += [
            Row(f"{path}: {name} (calibrated)", value, value, "ns", None) for name, value in known.items()
        ]
        before, after = program.interest_changes
        services["client-service"] += round(before * change)
        services["client-after-write"] = round(after * change)
        for count in CONNECTIONS:
            seen = _predict(folder, (path, stack), program, services, (count, warm))
            rows += _compared(f"{path}, {count} connections", measured[count]["paths"][path], seen, others)
    return rows


def _measure(program: Program, *arguments: str) -> dict[str, Any]:
    common = ["--paths", "tcp,shm", "--no-spin", "--pairs", "3", "--size", str(VALUE)]
    return measuring.bench(*program.bench, *common, *arguments)


def _services(piped: Piped, path: str, fit: Fit, warm: int) -> dict[str, int]:
    """Nanoseconds that server and client need themselves for a request, and more for a displaced state."""
    displaced = 1 - warm / MANY
    found: dict[str, int] = {}
    for side, prefix in (("server", ""), ("client", "client-")):
        length = PIPELINES[1]
        costs = fit.values
        # A turn asks, reads and writes once.
        turn = 3 * costs["system-call"] + 2 * costs.get("segment", 0.0)
        stack = turn / length + VALUE / 1024 * costs["copy-per-kib"]
        own = max(piped[FEW, length][path][side] - stack, 0.0)
        cold = max(own_cold(piped, path, side) / displaced - costs["cold"], 0.0)
        found |= {f"{prefix}service": round(own), f"{prefix}cold-service": round(cold)}
    return found


def steady(long: dict[str, Any], short: dict[str, Any] | None = None) -> dict[str, dict[str, float]]:
    """By path and end: the processor time of a request on connections that exist.

    redis-benchmark makes its connections within the measurement, and 1,000 links take as long as many
    requests. In the difference of two measurements they are not. Few connections need no short one.
    """

    def more(path: str, figure: str) -> float:
        totals = [
            float(sum(run[figure] for run in found["paths"][path]["runs"])) if found else 0.0
            for found in (long, short)
        ]
        return totals[0] - totals[1]

    times: dict[str, dict[str, float]] = {}
    for path in long["paths"]:
        requests = more(path, "requests")
        if requests <= 0:
            raise measuring.MeasuringError(
                f"{path}: the long measurement has no more requests than the short"
            )
        times[path] = {side: more(path, f"{side}_cpu_s") * 1e9 / requests for side in ("server", "client")}
    return times


def own_cold(piped: Piped, path: str, side: str) -> float:
    """Nanoseconds more of a turn with one request, on many connections than on few.

    By the request, and by the turn: two lengths of the pipeline tell them apart.
    """
    few, many = (
        length * (piped[MANY, length][path][side] - piped[FEW, length][path][side]) for length in PIPELINES
    )
    by_request = (many - few) / (PIPELINES[1] - PIPELINES[0])
    return few - PIPELINES[0] * by_request + by_request


def _compared(what: str, known: dict[str, Any], seen: dict[str, float], others: float) -> list[Row]:
    figures = {"rate": known["requests_per_s"], "cpu": known["server_cpu_s_per_million"]}
    figures |= {name: known["latency_us"][name] for name in ("p50", "p95", "p99", "p999")}
    # Counts show why the others differ: they depend on the order of events more than on costs.
    figures |= {name: median(run["waits"][name] for run in known["runs"]) for name in SLEEPS.values()}
    return [
        Row(
            f"{what}: {figure} (predicted)",
            value,
            seen[figure],
            UNITS.get(figure, "us"),
            AIMS.get(figure) if others <= QUIET else None,
        )
        for figure, value in figures.items()
    ]


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
        measure={"warmup": "50ms", "duration": "100ms", "seeds": [1]},
    )
    found = {name: mean(point, "set", f"{name}_ns") / 1000 for name in ("p50", "p95", "p99", "p999")}
    meta = point.runs[0].meta
    found["cpu"] = meta["servers"]["busy_ns"] / meta["answered"] / 1000
    found |= {name: meta[end]["wake_ups"] / meta["answered"] for end, name in SLEEPS.items()}
    return {"rate": mean(point, "set", "answered_per_s"), **found}
