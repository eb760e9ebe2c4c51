#!/usr/bin/env python3
"""UDP programs on the kernel and with the library on both sides, in turns: sockperf, dnsmasq and unbound.

Prints a table of medians, and of ratios to the kernel with their spread over the rounds.

    results/udp_programs.py [--rounds 5] [--seconds 2] [--json FILE]

NETACC_BIN_DIR names the folder with netacc_run [target/release].
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

NAMES = 200
BIN = os.environ.get("NETACC_BIN_DIR", "target/release")
PATHS = {"kernel": [], "library": [f"{BIN}/netacc_run"]}
Row = dict[str, float]


def free_port() -> int:
    """Of UDP and TCP at all addresses: servers of DNS want both."""
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one, socket.socket() as other:
            one.bind(("", 0))
            with suppress(OSError):
                other.bind(one.getsockname())
                return int(one.getsockname()[1])


@contextmanager
def served(command: Sequence[str], port: int) -> Iterator[int]:
    """While a program has the port; its number."""
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while f":{port:04X} " not in Path("/proc/net/udp").read_text():
            if server.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{' '.join(command)}: does not serve")
            time.sleep(0.01)
        yield server.pid
    finally:
        server.terminate()
        server.wait()


def figure(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    if not found:
        sys.exit(f"no {pattern!r} in:\n{text}")
    return float(found[1])


def output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def on_rings(path: Sequence[str], server: int) -> float:
    """The share of the datagrams that a server has received from rings; 0 without the library."""
    if not path:
        return 0
    shown = json.loads(output([f"{BIN}/netacc_ss", "-p", str(server), "-s", "cnt", "--json"]))["cnt"]
    ring, kernel = (shown[f"datagrams_received_{way}"] for way in ("link", "kernel"))
    return float(ring / (ring + kernel))


def dnsmasq(folder: Path, port: int) -> list[str]:
    (folder / "hosts").write_text("".join(f"10.2.0.{i} h{i}.example\n" for i in range(NAMES)))
    command = ["dnsmasq", "--no-daemon", "--conf-file=/dev/null", f"--pid-file={folder}/pid", "--no-resolv"]
    return [*command, "--no-hosts", f"--addn-hosts={folder}/hosts", f"--port={port}", "--user=root"]


#: With SO_REUSEPORT, its default, its socket would be the kernel's alone.
UNBOUND = """server:
 interface: 127.0.0.1
 directory: "{folder}"
 chroot: ""
 username: ""
 pidfile: ""
 use-syslog: no
 do-daemonize: no
 so-reuseport: no
 port: {port}
 local-zone: "example." static
"""


def unbound(folder: Path, port: int) -> list[str]:
    data = "".join(f' local-data: "h{i}.example. A 10.2.0.{i}"\n' for i in range(NAMES))
    (folder / "conf").write_text(UNBOUND.format(folder=folder, port=port) + data)
    return ["unbound", "-d", "-c", str(folder / "conf")]


def dns(program: Callable[[Path, int], list[str]], path: Sequence[str], seconds: float) -> Row:
    """Queries a second, 50 under way from two sockets; the answers are in the server's memory."""
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "queries").write_text("".join(f"h{i}.example A\n" for i in range(NAMES)))
        with served([*path, *program(folder, port)], port) as pid:
            client = ["dnsperf", "-s", "127.0.0.1", "-p", str(port), "-d", str(folder / "queries")]
            text = output([*path, *client, "-l", str(seconds), "-c", "2", "-q", "50"])
            share = on_rings(path, pid)
    return {
        "queries_per_s": figure(r"Queries per second: *([0-9.]+)", text),
        "mean_latency_us": 1e6 * figure(r"Average Latency \(s\): *([0-9.]+)", text),
        "lost": figure(r"Queries lost: *([0-9]+)", text),
        "on_rings": share,
    }


def sockperf(path: Sequence[str], seconds: float) -> Row:
    """Half a round trip of 64 bytes, and how many messages a client sends, perhaps in vain."""
    port = free_port()
    where = ["-i", "127.0.0.1", "-p", str(port)]
    with served([*path, "sockperf", "server", *where], port) as pid:
        load = ["-t", f"{max(seconds, 1):.0f}", "-m", "64"]
        # Its own record of the messages is too short for as many as there could be.
        trips = output([*path, "sockperf", "ping-pong", *where, *load, "--mps", "100000"])
        sent = output([*path, "sockperf", "throughput", *where, *load])
        share = on_rings(path, pid)
    return {
        "half_trip_us": figure(r"Latency is ([0-9.]+) usec", trips),
        "p99_us": figure(r"percentile 99.000 = *([0-9.]+)", trips),
        "sent_per_s": figure(r"Message Rate is ([0-9]+)", sent),
        "on_rings": share,
    }


PROGRAMS: dict[str, Callable[[Sequence[str], float], Row]] = {
    "dnsmasq and dnsperf": partial(dns, dnsmasq),
    "unbound and dnsperf": partial(dns, unbound),
    "sockperf": sockperf,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="of each path [5]")
    parser.add_argument("--seconds", type=float, default=2, help="of each measurement [2]")
    parser.add_argument("--json", type=Path, help="all rounds, in a file")
    options = parser.parse_args()
    rounds: dict[str, dict[str, list[Row]]] = {}
    for program, measure in PROGRAMS.items():
        rows = rounds[program] = {path: [] for path in PATHS}
        for _ in range(options.rounds):
            for path, before in PATHS.items():
                rows[path].append(measure(before, options.seconds))
    print("| program | figure | kernel | library | to the kernel (spread) |\n| --- | --- | --- | --- | --- |")
    for program, rows in rounds.items():
        for name in rows["kernel"][0]:
            kernel, library = ([row[name] for row in rows[path]] for path in PATHS)
            ratios = sorted(ours / theirs for ours, theirs in zip(library, kernel, strict=True) if theirs)
            to_it = f"{statistics.median(ratios):.3g}x ({ratios[0]:.3g}..{ratios[-1]:.3g})" if ratios else ""
            medians = [f"{statistics.median(values):.4g}" for values in (kernel, library)]
            print(f"| {program} | {name} | {' | '.join(medians)} | {to_it} |")
    if options.json:
        machine = {"cores": os.cpu_count(), "kernel": os.uname().release, "loadavg": os.getloadavg()}
        options.json.write_text(json.dumps({"machine": machine, "rounds": rounds}, indent=1) + "\n")


if __name__ == "__main__":
    main()
