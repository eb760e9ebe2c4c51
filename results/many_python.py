#!/usr/bin/env python3
"""Thousands of connections from a Python client to a Python server, on TCP and with the library in turns.

The client sends 64 bytes on each connection, and then reads the answer from each. Times of an exchange in
microseconds, of all rounds of a run (the first ones are on TCP, before the connections have links) and of
their second half.

    results/many_python.py [--pairs 3] [--json FILE]

NETACC_BIN_DIR names the folder with netacc_run [target/release]. More descriptors than connections are needed
(`ulimit -n`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from static_costs import BIN, CLEAN, machine
from udp_programs import free_port

PROGRAMS = Path(__file__).resolve().parent / "many_python"
PATHS = {"tcp": [], "library": [str(BIN / "netacc_run")]}
#: Connections, and rounds of a run.
LOADS = ((2000, 14), (2000, 100), (3000, 300), (5000, 14), (5000, 100))


def run(path: list[str], connections: int, rounds: int) -> list[float]:
    # Services of RDMA devices have a second port 20,000 above theirs.
    port = next(port for port in iter(free_port, None) if port < 45_536)
    server = [*path, sys.executable, str(PROGRAMS / "server.py"), str(port)]
    with subprocess.Popen(server, env=CLEAN, stdout=subprocess.PIPE) as serving:
        assert serving.stdout is not None
        try:
            if serving.stdout.readline() != b"ready\n":
                sys.exit("the server does not serve")
            client = [
                *path,
                sys.executable,
                str(PROGRAMS / "client.py"),
                str(port),
                str(connections),
                str(rounds),
            ]
            done = subprocess.run(client, env=CLEAN, check=True, stdout=subprocess.PIPE, timeout=300)
        finally:
            serving.terminate()
    return [float(word) for word in done.stdout.split()]


def measure(connections: int, rounds: int, pairs: int) -> dict[str, object]:
    runs: dict[str, list[list[float]]] = {path: [] for path in PATHS}
    for _ in range(pairs):
        for path, words in PATHS.items():
            runs[path].append(run(words, connections, rounds))
    figures: dict[str, object] = {}
    for column, part in enumerate(("all rounds", "second half")):
        tcp, library = ([each[column] for each in runs[path]] for path in PATHS)
        ratios = sorted(ours / theirs for ours, theirs in zip(library, tcp, strict=True))
        figures[part] = {
            "tcp_us": statistics.median(tcp),
            "library_us": statistics.median(library),
            "to_tcp": [round(value, 3) for value in (statistics.median(ratios), ratios[0], ratios[-1])],
        }
    print(f"{connections} connections, {rounds} rounds: {figures}", flush=True)
    return {"connections": connections, "rounds": rounds, "figures": figures, "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result: dict[str, object] = {"machine": machine()}
    result["loads"] = [measure(connections, rounds, options.pairs) for connections, rounds in LOADS]
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
