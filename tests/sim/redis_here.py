"""Redis on this machine, predicted from ping-pongs on it.

Calibration: that of `netacc calibrate`, on TCP and shared memory. A Redis with 64 requests in flight on each
connection gives what Redis and its client do themselves. Without a pipeline the client also watches each
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


def _redis(*arguments: str) -> dict[str, Any]:
    common = ["--paths", "tcp,shm", "--no-spin", "--pairs", "3"]
    return measuring.bench("redis", *common, *arguments)


def _own(piped: dict[str, Any], side: str) -> int:
    """Nanoseconds of processor time for each of many requests that a call brings."""
    return round(float(piped[f"{side}_cpu_s_per_million"]) * 1000)


def redis_here(folder: Path) -> list[Row]:
    """Redis here, predicted from ping-pongs; the bounds count only while nothing else runs here."""
    here = measuring.measure(["tcp", "shm"], seconds=0.5, rounds=3, progress=lambda _: None)
    piped = _redis("-c", "10", "--pipeline", "64", "--seconds", "0.5")
    measured = {count: _redis("-c", str(count), "--seconds", str(s)) for count, s in CONNECTIONS.items()}
    others = max(float(found["machine"]["busy_processors"]) for found in (here, piped, *measured.values()))
    (folder / "host.toml").write_text(writing.host(here))
    rows = [Row("processors that other work kept busy", 0, others, "", None)]
    for path, stack in (("tcp", "kernel-tcp"), ("shm", "netacc")):
        found = writing.calibrated(here, path)
        (folder / f"{path}.toml").write_text(writing.stack(here, found, writing.noise(here)))
        for name, value in found.fit.values.items():
            rows.append(Row(f"{path}: {name} (calibrated)", value, value, "ns", None))
        change = writing.interest_change_ns(here, path)
        rows.append(Row(f"{path}: an epoll_ctl (calibrated)", change, change, "ns", None))
        server, client = (_own(piped["paths"]["tcp"], side) for side in ("server", "client"))
        services = [server, client + round(INTEREST_CHANGES * change)]
        for count in CONNECTIONS:
            known = measured[count]["paths"][path]
            seen = _predict(folder, path, stack, services, count)
            for figure, value in (
                ("rate", known["requests_per_s"]),
                ("cpu", known["server_cpu_s_per_million"]),
                *((name, known["latency_us"][name]) for name in ("p50", "p99", "p999")),
            ):
                aim = AIMS[figure] if others <= QUIET else None
                unit = "/s" if figure == "rate" else "us"
                rows.append(Row(f"{path}, {count} connections: {figure}", value, seen[figure], unit, aim))
    return rows


def _predict(folder: Path, path: str, stack: str, services: list[int], connections: int) -> dict[str, float]:
    point = simulate(
        folder,
        topology={"kind": "direct", "rate": "1000Gbit/s", "delay": "0ns"},
        host={"profile": "host.toml", "server-threads": 1, "client-threads": 1},
        stack={"kind": stack, "profile": f"{path}.toml"},
        workload=[
            {
                "name": "set",
                "kind": "redis-like",
                "clients": 1,
                "connections": connections,
                "service": f"{services[0]}ns",
                "client-service": f"{services[1]}ns",
            }
        ],
        # Connections that last are on their links by then.
        measure={"warmup": "50ms", "duration": "100ms", "seeds": [1]},
    )
    found = {name: mean(point, "set", f"{name}_ns") / 1000 for name in ("p50", "p99", "p999")}
    meta = point.runs[0].meta
    found["cpu"] = meta["servers"]["busy_ns"] / meta["answered"] / 1000
    return {"rate": mean(point, "set", "answered_per_s"), **found}
