#!/usr/bin/env python3
"""UDPDK's two tables, throughput by packet size and latency with its deviation, for this machine.

The columns kernel and library are `netacc bench datagrams`: the same program on the kernel's sockets and
under netacc_run, in turns. The column libudpdk has the examples of core/udpdk, which are written for UDPDK's
functions.
The figures of UDPDK's authors are those of two hosts with 10 Gbit/s between them.

    results/udpdk.py [--rounds 5] [--seconds 1] [--sizes 64,128,256,512,1024,1514,65549] [--json FILE]

NETACC_BIN_DIR names the folder with the programs [target/release].
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BIN = Path(os.environ.get("NETACC_BIN_DIR", "target/release")).absolute()
FOLDER = Path(__file__).parent.parent / "core" / "udpdk"
#: Of UDP, IP and Ethernet: UDPDK's packet sizes contain them.
HEADERS = 8 + 20 + 14
#: By UDPDK's authors: mean and deviation of a latency in microseconds.
PUBLISHED = {"UDPDK": (13.92, 0.74), "sockets": (116.57, 18.49)}
#: The payload of the round trips.
ASKED = 64
#: A flow is made in much less.
LEAST_ROUND_TRIPS = 2000
#: With this many a measurement takes less than its seconds.
TRIPS_PER_SECOND = 100_000
Row = dict[str, float]


def build(folder: Path) -> None:
    """The examples."""
    for name in ("ping_pong", "packet_generator"):
        source = FOLDER / "examples" / f"{name}.c"
        flags = ["-O2", f"-I{FOLDER / 'include'}", f"-L{BIN}", f"-Wl,-rpath,{BIN}"]
        subprocess.run(["cc", *flags, "-o", folder / name, source, "-ludpdk", "-lm"], check=True)


@contextmanager
def serving(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    if server.stdout.readline() != "ready\n":
        server.kill()
        sys.exit(f"{' '.join(command)}: is not ready")
    try:
        yield server
    finally:
        server.kill()
        server.wait()


def generator(folder: Path, port: int, payload: int, seconds: float) -> Row:
    """Packets over libudpdk that arrive in a second, and the share that does not."""
    program = str(folder / "packet_generator")
    with serving([program, "sink", str(port)]) as sink:
        command = [program, "source", str(port), str(seconds), str(payload)]
        sent = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])
        sink.send_signal(signal.SIGTERM)
        received = int(sink.communicate()[0].split()[-1])
    return {"packets_per_s": received / seconds, "lost": 1 - received / max(sent, 1)}


def ping_pong(folder: Path, port: int, count: int) -> Row:
    """Round trips over libudpdk, in microseconds."""
    program = str(folder / "ping_pong")
    with serving([program, "server", str(port)]) as server:
        command = [program, "client", str(port), str(count)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        server.wait(20)
    found = re.search(r"mean ([\d.]+) us, deviation ([\d.]+) us", printed)
    if not found:
        sys.exit(f"ping_pong wrote no result: {printed}")
    return {"mean": float(found[1]), "deviation": float(found[2])}


def bench(size: int, rounds: int, seconds: float) -> dict[str, list[Row]]:
    """The rounds of `netacc bench datagrams`, by the kernel and with the library."""
    command = [str(BIN / "netacc"), "bench", "datagrams", "-q", "--json", "-", "--pairs", str(rounds)]
    command += ["--seconds", str(seconds), "-d", str(size)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    (found,) = json.loads(done.stdout)["sizes"]
    return {
        column: [
            {**one["round_trip_us"], "packets_per_s": one["packets_per_s"], "lost": one["lost"]}
            for one in found[path]["rounds"]
        ]
        for column, path in (("kernel", "udp"), ("library", "library"))
    }


def middle(rounds: list[Row], what: str) -> float:
    return statistics.median(row[what] for row in rounds)


def print_table(header: list[str], rows: list[list[str]]) -> None:
    for row in (header, ["---"] * len(header), *rows):
        print("| " + " | ".join(row) + " |")


def print_throughput(packets: dict[int, dict[str, list[Row]]]) -> None:
    print("Packets that arrive in a second, from one socket to one, by the bytes of one with its headers:\n")
    rows = []
    for packet, columns in packets.items():
        kernel = middle(columns["kernel"], "packets_per_s")
        row = [str(packet)]
        for column, rounds in columns.items():
            arrived = middle(rounds, "packets_per_s")
            ratio = "" if column == "kernel" else f" ({arrived / kernel:.1f}x)"
            row += [f"{arrived / 1000:.0f} k{ratio}", f"{100 * middle(rounds, 'lost'):.1f} %"]
        rows.append(row)
    print_table(["packet", "kernel", "lost", "library", "lost", "libudpdk", "lost"], rows)


def print_latency(trips: dict[str, list[Row]]) -> None:
    print(f"\nRound trips of {ASKED} bytes of payload, in microseconds:\n")
    names = ("mean", "deviation")
    ours = {column: tuple(middle(rounds, name) for name in names) for column, rounds in trips.items()}
    columns = {**ours, "UDPDK, its authors": PUBLISHED["UDPDK"], "sockets, its authors": PUBLISHED["sockets"]}
    rows = [[name, *(f"{column[at]:.2f}" for column in columns.values())] for at, name in enumerate(names)]
    print_table(["", *columns], rows)


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--sizes", default="64,128,256,512,1024,1514,65549")
    parser.add_argument("--port", type=int, default=5000, help="of the programs over libudpdk")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    packets = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder)
        for packet in map(int, options.sizes.split(",")):
            payload = packet - HEADERS
            columns = bench(payload, options.rounds, options.seconds)
            columns["libudpdk"] = [
                generator(folder, options.port, payload, options.seconds) for _ in range(options.rounds)
            ]
            packets[packet] = columns
        trips = bench(ASKED, options.rounds, options.seconds)
        count = max(LEAST_ROUND_TRIPS, int(options.seconds * TRIPS_PER_SECOND))
        trips["libudpdk"] = [ping_pong(folder, options.port, count) for _ in range(options.rounds)]
    print_throughput(packets)
    print_latency(trips)
    if options.json:
        found = {
            "rounds": options.rounds,
            "seconds": options.seconds,
            "packets": packets,
            "round_trips": trips,
        }
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
