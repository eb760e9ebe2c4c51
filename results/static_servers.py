#!/usr/bin/env python3
"""Servers in Go, and single connections of static programs, natively and under netacc_run in turns.

The loads are an HTTP server (net/http) with wrk, and a server like Redis with redis-benchmark, each with 50
connections, in requests a second; and round trips of 64 bytes on one connection to an echo server in Go, by
clients of each kind, in ns: mean and percentiles. `server` has the library at the server only: all bytes stay
on TCP.

    results/static_servers.py [--rounds 9] [--seconds 1] [--json FILE] [NAME ...]

NETACC_BIN_DIR names the folder with netacc_run [target/release].
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from static_costs import BIN, CLEAN, machine
from udp_programs import free_port

SOURCES = Path(__file__).resolve().parent / "static_servers"
RUN = [str(BIN / "netacc_run")]
#: What comes before the server and before the client.
PATHS: dict[str, tuple[list[str], list[str]]] = {
    "native": ([], []),
    "library": (RUN, RUN),
    "server": (RUN, []),
}
CONNECTIONS = 50
PINGS = 20_000

PING_CLIENTS = {
    "musl": ["musl-gcc", "-static", "-O2", str(SOURCES / "pings.c")],
    "glibc": ["gcc", "-static", "-O2", str(SOURCES / "pings.c")],
    "glibc, dynamic": ["gcc", "-O2", str(SOURCES / "pings.c")],
}

#: Figures of one run; the first of them is compared.
Row = list[float]


@contextmanager
def served(path: list[str], folder: Path, kind: str) -> Iterator[int]:
    """While a Go server runs; its port. Services of RDMA devices have a second one 20,000 above it."""
    port = next(port for port in iter(free_port, None) if port < 45_536)
    server = subprocess.Popen([*path, str(folder / "servers"), kind, str(port)], env=CLEAN)
    try:
        deadline = time.monotonic() + 20
        while f":{port:04X} 00000000:0000 0A" not in Path("/proc/net/tcp").read_text():
            if server.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the server {kind} does not serve")
            time.sleep(0.01)
        yield port
    finally:
        server.terminate()
        server.wait()


def output(command: list[str]) -> str:
    return subprocess.run(command, env=CLEAN, check=True, capture_output=True, text=True, timeout=120).stdout


def found(pattern: str, text: str) -> float:
    match = re.search(pattern, text)
    if not match:
        sys.exit(f"no {pattern!r} in:\n{text}")
    return float(match[1])


def http(path: tuple[list[str], list[str]], folder: Path, seconds: float) -> Row:
    with served(path[0], folder, "http") as port:
        load = ["-t", "1", "-c", str(CONNECTIONS), "-d", f"{seconds:.0f}", f"http://127.0.0.1:{port}/"]
        return [found(r"Requests/sec: *([0-9.]+)", output([*path[1], "wrk", *load]))]


def redis(path: tuple[list[str], list[str]], folder: Path, seconds: float) -> Row:
    with served(path[0], folder, "redis") as port:
        load = ["-p", str(port), "-c", str(CONNECTIONS), "-n", f"{100_000 * seconds:.0f}", "-t", "get", "-q"]
        return [found(r"GET: ([0-9.]+) requests", output([*path[1], "redis-benchmark", *load]))]


def pings(client: str, path: tuple[list[str], list[str]], folder: Path, _seconds: float) -> Row:
    with served(path[0], folder, "echo") as port:
        words = output([*path[1], str(folder / client), "pings", str(port), str(PINGS)]).split()
        return [float(word) for word in words]


LOADS: dict[str, tuple[Callable[[tuple[list[str], list[str]], Path, float], Row], bool]] = {
    "HTTP": (http, True),
    "Redis": (redis, True),
    **{f"pings, {client}": (partial(pings, client), False) for client in [*PING_CLIENTS, "servers"]},
}


def build(folder: Path) -> None:
    clean = os.environ | {"CGO_ENABLED": "0"}
    words = ["go", "build", "-o", str(folder / "servers"), "."]
    subprocess.run(words, cwd=SOURCES / "go", env=clean, check=True)
    for client, command in PING_CLIENTS.items():
        subprocess.run([*command, "-o", str(folder / client)], check=True)


def ratios(rows: dict[str, list[Row]], path: str, column: int) -> list[float]:
    """Of a figure to the native one of the same round: the median, the least and the most."""
    pairs = zip(rows["native"], rows[path], strict=True)
    each = sorted(row[column] / native[column] for native, row in pairs)
    return [round(value, 3) for value in (statistics.median(each), each[0], each[-1])]


def measure(name: str, folder: Path, options: argparse.Namespace) -> dict[str, object]:
    load, is_rate = LOADS[name]
    rows: dict[str, list[Row]] = {path: [] for path in PATHS}
    for _ in range(options.rounds):
        for path, words in PATHS.items():
            rows[path].append([round(figure, 1) for figure in load(words, folder, options.seconds)])
    medians = {
        path: [statistics.median(column) for column in zip(*each, strict=True)] for path, each in rows.items()
    }
    figures: dict[str, object] = {
        "unit": "requests/s" if is_rate else "ns: mean, p10, p50, p90, p99",
        "medians": medians,
    }
    for path in ("library", "server"):
        figures[f"{path}_to_native"] = [ratios(rows, path, column) for column in range(len(rows[path][0]))]
    print(name, figures, flush=True)
    return {"figures": figures, "rounds": rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", choices=[[], *LOADS], help=f"some of {list(LOADS)}"
    )
    options = parser.parse_args()
    result: dict[str, object] = {"machine": machine()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder)
        for load in options.names or LOADS:
            result[load] = measure(load, folder, options)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
