"""Redis on this machine, predicted from ping-pongs on it.

Calibration: that of `netacc calibrate`, on TCP and shared memory. A Redis with 64 requests in flight on each
connection gives what Redis and its client do themselves, and loads of 8 and 64 on 1,000 connections what they
do more when a connection's state is not in the caches. Without a pipeline the client also watches each
connection for room, and for the answer, anew for each request: the calls are counted, and what one costs is
calibrated. Nothing is fitted on the loads that are predicted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from netacc_lab.calibration import measuring, writing

from tests.sim.rows import Row, mean, simulate

#: The aim, for a machine on which nothing else runs. The processor time of a request has none.
AIMS: dict[str, float | None] = {"rate": 0.1, "p50": 0.1, "p99": 0.2, "p999": 0.3, "cpu": None}
#: Processors that other work keeps busy, at most, for the aims to count.
QUIET = 0.1
#: Redis' loads that are predicted, and the seconds of each measurement, for most of which all are connected.
CONNECTIONS = {1: 1.0, 10: 1.0, 100: 2.0, 1000: 6.0}
#: The calls of epoll_ctl that redis-benchmark 7.0 makes for each request without a pipeline, by `strace -c`.
INTEREST_CHANGES = 5
#: The pipelined loads that show Redis' own work: connections, and requests in flight on each.
FEW, MANY, PIPELINES = 10, 1000, (8, 64)


def _redis(*arguments: str) -> dict[str, Any]:
    common = ["--paths", "tcp,shm", "--no-spin", "--pairs", "3"]
    return measuring.bench("redis", *common, *arguments)


def _own_cold(piped: dict[tuple[int, int], dict[str, Any]], side: str, stack: float) -> float:
    """Nanoseconds more of a turn with one request whose connection's state is displaced, less the stack's.

    By the request, and by the turn: two lengths of the pipeline tell them apart.
    """
    few, many = (
        length
        * (_own(piped[MANY, length]["paths"]["tcp"], side) - _own(piped[FEW, length]["paths"]["tcp"], side))
        for length in PIPELINES
    )
    by_request = (many - few) / (PIPELINES[1] - PIPELINES[0])
    return max(few - PIPELINES[0] * by_request + by_request - stack, 0.0)


def _own(piped: dict[str, Any], side: str) -> int:
    """Nanoseconds of processor time for each of many requests that a call brings."""
    return round(float(piped[f"{side}_cpu_s_per_million"]) * 1000)


def redis_here(folder: Path) -> list[Row]:
    """Redis here, predicted from ping-pongs; the bounds count only while nothing else runs here."""
    here = measuring.measure(["tcp", "shm"], seconds=0.5, rounds=3, progress=lambda _: None)
    piped = {
        (count, length): _redis("-c", str(count), "--pipeline", str(length), "--seconds", seconds)
        for count, seconds in ((FEW, "0.5"), (MANY, "3"))
        for length in PIPELINES
    }
    measured = {count: _redis("-c", str(count), "--seconds", str(s)) for count, s in CONNECTIONS.items()}
    others = max(
        float(found["machine"]["busy_processors"]) for found in (here, *piped.values(), *measured.values())
    )
    (folder / "host.toml").write_text(writing.host(here))
    rows = [Row("processors that other work kept busy", 0, others, "", None)]
    tcp = writing.calibrated(here, "tcp").fit
    warm = tcp.warm[0] if tcp.warm else MANY
    displaced = 1 - warm / MANY
    stack_cold = tcp.values["cold"] * displaced
    colds = [round(_own_cold(piped, side, stack_cold) / displaced) for side in ("server", "client")]
    for side, cold in zip(("server", "client"), colds, strict=True):
        rows.append(Row(f"{side}'s own for a displaced state (calibrated)", cold, cold, "ns", None))
    for path, stack in (("tcp", "kernel-tcp"), ("shm", "netacc")):
        found = writing.calibrated(here, path)
        (folder / f"{path}.toml").write_text(writing.stack(here, found, writing.noise(here)))
        for name, value in found.fit.values.items():
            rows.append(Row(f"{path}: {name} (calibrated)", value, value, "ns", None))
        change = writing.interest_change_ns(here, path)
        rows.append(Row(f"{path}: an epoll_ctl (calibrated)", change, change, "ns", None))
        server, client = (
            _own(piped[FEW, PIPELINES[1]]["paths"]["tcp"], side) for side in ("server", "client")
        )
        services = {
            "service": server,
            "client-service": client + round(INTEREST_CHANGES * change),
            **dict(zip(("cold-service", "client-cold-service"), colds, strict=True)),
        }
        for count in CONNECTIONS:
            known = measured[count]["paths"][path]
            seen = _predict(folder, path, stack, services, (count, warm))
            for figure, value in (
                ("rate", known["requests_per_s"]),
                ("cpu", known["server_cpu_s_per_million"]),
                *((name, known["latency_us"][name]) for name in ("p50", "p99", "p999")),
            ):
                aim = AIMS[figure] if others <= QUIET else None
                unit = "/s" if figure == "rate" else "us"
                rows.append(Row(f"{path}, {count} connections: {figure}", value, seen[figure], unit, aim))
    return rows


def _predict(
    folder: Path, path: str, stack: str, services: dict[str, int], counts: tuple[int, int]
) -> dict[str, float]:
    connections, warm = counts
    point = simulate(
        folder,
        topology={"kind": "direct", "rate": "1000Gbit/s", "delay": "0ns"},
        host={"profile": "host.toml", "server-threads": 1, "client-threads": 1},
        # How many states the caches keep is seen on TCP: the library's are so small that a link shows none.
        stack={"kind": stack, "profile": f"{path}.toml", "warm-connections": warm},
        workload=[
            {
                "name": "set",
                "kind": "redis-like",
                "clients": 1,
                "connections": connections,
                **{name: f"{value}ns" for name, value in services.items()},
            }
        ],
        # Connections that last are on their links by then.
        measure={"warmup": "50ms", "duration": "100ms", "seeds": [1]},
    )
    found = {name: mean(point, "set", f"{name}_ns") / 1000 for name in ("p50", "p99", "p999")}
    meta = point.runs[0].meta
    found["cpu"] = meta["servers"]["busy_ns"] / meta["answered"] / 1000
    return {"rate": mean(point, "set", "answered_per_s"), **found}
