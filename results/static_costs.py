#!/usr/bin/env python3
"""What it costs to run static programs and Go under the library, with nothing accelerated.

Each program runs natively and under netacc_run in turns: its start and end (ms), a system call that is the
kernel's alone (ns), and 64 bytes over a TCP connection in one thread (ns), with acceleration switched off,
and while it is on and the connection stays on TCP.

    results/static_costs.py [--rounds 15] [--json FILE]

NETACC_BIN_DIR names the folder with netacc_run [target/release].
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "static_costs"
BIN = Path(os.environ.get("NETACC_BIN_DIR", "target/release")).resolve()
PATHS: dict[str, list[str]] = {"native": [], "library": [str(BIN / "netacc_run")]}
CLEAN = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "NETACC_CONF": "/dev/null"}
OFF = {"NACC_ENABLE_RDMA_DEFAULT": "0"}
#: The connection might go onto a link after so many operations, which are more than it has.
LATER = {"NACC_PROMOTE_AFTER": "1000000"}
CALLS = 2_000_000
TRIPS = 100_000

C = ["-O2", str(SOURCES / "costs.c")]
BUILDS: dict[str, tuple[list[str], dict[str, str]]] = {
    "glibc, dynamic": (["gcc", *C], {}),
    "musl": (["musl-gcc", "-static", *C], {}),
    "glibc": (["gcc", "-static", *C], {}),
    "Go": (["go", "build"], {"CGO_ENABLED": "0"}),
    "Go, position-independent": (["go", "build", "-buildmode=pie"], {"CGO_ENABLED": "0"}),
    "Go with C": (["go", "build"], {"CGO_ENABLED": "1"}),
}


def start_ms(command: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run([*command, "nothing"], env=CLEAN, check=True)
    return (time.perf_counter() - begin) * 1000


def printed_ns(command: list[str], env: dict[str, str], *words: str) -> float:
    done = subprocess.run([*command, *words], env=CLEAN | env, check=True, capture_output=True, text=True)
    return float(done.stdout)


MEASURES: dict[str, Callable[[list[str]], float]] = {
    "start_ms": start_ms,
    "call_ns": lambda command: printed_ns(command, OFF, "calls", str(CALLS)),
    "trip_ns": lambda command: printed_ns(command, OFF, "trips", str(TRIPS)),
    "trip_on_tcp_ns": lambda command: printed_ns(command, LATER, "trips", str(TRIPS)),
}


#: The best of native and of library; what the library adds, and its rate, each as median, least and most.
Figures = dict[str, list[float]]
Rounds = list[list[float]]


def judge(pairs: Rounds) -> Figures:
    added, rates = sorted(b - a for a, b in pairs), sorted(a / b for a, b in pairs)
    return {
        "best": [round(min(values), 2) for values in zip(*pairs, strict=True)],
        "added": [round(value, 2) for value in (statistics.median(added), added[0], added[-1])],
        "rate_to_native": [round(value, 3) for value in (statistics.median(rates), rates[0], rates[-1])],
    }


def measure(program: Path, rounds: int) -> dict[str, Rounds]:
    commands = [[*path, str(program)] for path in PATHS.values()]
    return {
        name: [[round(measured(command), 3) for command in commands] for _ in range(rounds)]
        for name, measured in MEASURES.items()
    }


def machine() -> dict[str, object]:
    models = [
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")
    ]
    return {
        "processors": len(models),
        "model": models[0].split(": ")[1] if models else "",
        "kernel": os.uname().release,
        "load": os.getloadavg(),
        "date": time.strftime("%Y-%m-%d"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result: dict[str, object] = {"machine": machine()}
    with tempfile.TemporaryDirectory() as folder:
        for name, (command, env) in BUILDS.items():
            program = Path(folder) / "costs"
            subprocess.run(
                [*command, "-o", str(program)], cwd=SOURCES / "go", env=os.environ | env, check=True
            )
            measured = measure(program, options.rounds)
            figures = {key: judge(pairs) for key, pairs in measured.items()}
            result[name] = {"figures": figures, "rounds": measured}
            print(name, figures)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
