"""Redis on this machine, predicted from ping-pongs on it.

Calibration: on each path a ping-pong on one connection and one on 50 give the time of a call and that of a
wake-up. A Redis with 64 requests in flight on each connection gives what Redis and its client do themselves.
Processor times count, because other work on the machine changes them least. Nothing is fitted on the loads
that are predicted.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.sim.rows import Row, mean, simulate

#: The aim, for a machine on which nothing else runs. The processor time of a request has none.
AIMS: dict[str, float | None] = {"rate": 0.1, "p50": 0.1, "p99": 0.2, "p999": 0.3, "cpu": None}
#: Processors that other work keeps busy, at most, for the aims to count.
QUIET = 0.1
#: Redis' loads that are predicted.
CONNECTIONS = (1, 10, 100, 1000)
#: Calls of one request on one connection: for what is ready, to read, to write.
CALLS = 3


@dataclass(frozen=True)
class Costs:
    """Costs on a path, in nanoseconds."""

    call: int
    wake_up: int


def _bench(folder: Path, test: str, *arguments: str) -> dict[str, Any]:
    binary = Path(os.environ.get("NETACC_BIN_DIR", "target/release")) / "netacc"
    out = folder / "bench.json"
    command = [
        str(binary),
        "bench",
        test,
        "--paths",
        "tcp,shm",
        "--no-spin",
        "--pairs",
        "3",
        "--seconds",
        "0.5",
    ]
    subprocess.run([*command, *arguments, "--json", str(out)], check=True, capture_output=True)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def _costs(alone: dict[str, Any], many: dict[str, Any]) -> Costs:
    """Without waits a request is its calls; alone each side's wake-up is the rest of half a round trip."""
    busy = many["server_cpu_s_per_million"] * 1000
    call = busy / CALLS
    # After a sleep its call returns: one more.
    wake_up = alone["latency_us"]["p50"] * 1000 / 2 - busy - call
    return Costs(round(call), max(round(wake_up), 0))


def _own(piped: dict[str, Any], side: str) -> int:
    """Nanoseconds of processor time for each of many requests that a call brings."""
    return round(float(piped[f"{side}_cpu_s_per_million"]) * 1000)


def redis_here(folder: Path) -> list[Row]:
    """Redis here, predicted from ping-pongs; the bounds count only while nothing else runs here."""
    alone = _bench(folder, "echo", "--mode", "epoll", "--size", "64")
    many = _bench(folder, "echo", "--mode", "epoll", "--size", "64", "--clients", "50")
    piped = _bench(folder, "redis", "-c", "10", "--pipeline", "64")
    measured = {count: _bench(folder, "redis", "-c", str(count)) for count in CONNECTIONS}
    others = max(
        float(found["machine"]["busy_processors"]) for found in (alone, many, piped, *measured.values())
    )
    rows = [Row("processors that other work kept busy", 0, others, "", None)]
    for path, stack in (("tcp", "kernel-tcp"), ("shm", "netacc")):
        costs = _costs(alone["paths"][path], many["paths"][path])
        rows.append(Row(f"{path}: time of a call (calibrated)", costs.call, costs.call, "ns", None))
        rows.append(Row(f"{path}: time of a wake-up (calibrated)", costs.wake_up, costs.wake_up, "ns", None))
        services = [_own(piped["paths"]["tcp"], side) for side in ("server", "client")]
        for count in CONNECTIONS:
            known = measured[count]["paths"][path]
            seen = _predict(folder, stack, costs, services, count)
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
    folder: Path, stack: str, costs: Costs, services: list[int], connections: int
) -> dict[str, float]:
    call = f"{costs.call}ns"
    values = {"library-call": call, "system-call": call, "wake-up": f"{costs.wake_up}ns", "segment": "0ns"}
    point = simulate(
        folder,
        topology={"kind": "direct", "rate": "1000Gbit/s", "delay": "0ns"},
        host={"profile": "two-cores", "server-threads": 1, "client-threads": 1},
        stack={"kind": stack, "spin": "0ns", "copy-per-kib": "100ns", **values},
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
