#!/usr/bin/env python3
"""Helper threads (NACC_SOR_IO_THREADS of 1, 2 and 4) under several programs, beside kernel TCP.

memcached with 1, 2 and 4 workers, redis with 2 I/O threads, nginx with 1, 2 and 4 workers, and iperf3 with
one and with eight streams of 1 MiB writes. Each round measures TCP and each number of helper threads in turn,
for all programs before the next round begins. For iperf3 the result has the part of the bytes that helper
threads have copied, of both ends.

    results/threads.py [--rounds 5] [--seconds 1] [--minutes 6] [--only NAME] [--json FILE]

No round begins that would probably end after six minutes (--minutes). NETACC_BIN_DIR names the folder with
netacc_run [target/release].
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from static_costs import BIN, CLEAN, machine
from udp_programs import free_port

HELPERS = (1, 2, 4)
#: Figures of one path in one round: a rate, a p99 in microseconds, or a share of bytes.
Row = dict[str, float]
#: The rows of a round, by path.
Round = dict[str, Row]
NGINX = """{user}daemon off;
worker_processes {workers};
pid {folder}/nginx.pid;
error_log stderr error;
events {{ worker_connections 512; }}
http {{
    access_log off;
    keepalive_requests 1000000;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{ listen 127.0.0.1:{port}; root {folder}; }}
}}
"""


def launcher(helpers: int) -> list[str]:
    """The beginning of a command; without helper threads it runs on TCP."""
    return [str(BIN / "netacc_run"), "-t", str(helpers)] if helpers else []


def path_of(helpers: int) -> str:
    return f"helpers-{helpers}" if helpers else "tcp"


def bench(seconds: float, *words: str) -> Round:
    """A load of `netacc bench`, which measures TCP beside each number of helper threads."""
    measured: Round = {}
    for helpers in HELPERS:
        run_args = ["--run-arg=-t", f"--run-arg={helpers}"]
        command = [str(BIN / "netacc"), "bench", *words, "--paths", "tcp,shm", "--pairs", "1", "--quiet"]
        command += ["--seconds", str(seconds), "--json", "-", *run_args]
        done = subprocess.run(
            command, env=CLEAN, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=120
        )
        paths = json.loads(done.stdout)["paths"]
        tcp, ours = paths["tcp"], paths["shm"]
        measured[path_of(helpers)] = {
            "per_s": ours["requests_per_s"],
            "p99_us": ours["latency_us"]["p99"],
            "to_tcp": ours["requests_per_s"] / tcp["requests_per_s"],
            "p99_to_tcp": ours["latency_us"]["p99"] / tcp["latency_us"]["p99"],
            "link_share": ours["link_share"],
        }
        measured.setdefault("tcp", {"per_s": tcp["requests_per_s"], "p99_us": tcp["latency_us"]["p99"]})
    return measured


def in_turns(measure: Callable[[int], Row]) -> Round:
    """TCP, and each number of helper threads."""
    rows = {path_of(helpers): measure(helpers) for helpers in (0, *HELPERS)}
    for path, row in rows.items():
        if path != "tcp":
            row["to_tcp"] = row["per_s"] / rows["tcp"]["per_s"]
    return rows


def memcached(workers: int, seconds: float) -> Round:
    return bench(seconds, "memcached", "--workers", str(workers), "--clients", "50")


def redis(threads: int, seconds: float) -> Round:
    with tempfile.TemporaryDirectory(prefix="threads-") as folder:
        server = Path(folder) / "redis-server"
        found = shutil.which("redis-server")
        server.write_text(f'#!/bin/sh\nexec {found} "$@" --io-threads {threads} --io-threads-do-reads yes\n')
        server.chmod(0o755)
        return bench(seconds, "redis", "--redis-server", str(server), "--threads", "2")


def await_port(port: int, server: subprocess.Popen[bytes]) -> None:
    """Until a TCP socket listens there."""
    until = time.monotonic() + 20
    while server.poll() is None and time.monotonic() < until:
        lines = (
            Path("/proc/net/tcp").read_text().splitlines() + Path("/proc/net/tcp6").read_text().splitlines()
        )
        if any(
            line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"
            for line in lines[1:]
            if ":" in line
        ):
            return
        time.sleep(0.01)
    sys.exit(f"{server.args!r} does not listen")


def nginx(workers: int, seconds: float) -> Round:
    def measure(helpers: int) -> Row:
        with tempfile.TemporaryDirectory(prefix="threads-") as folder:
            port = free_port()
            (Path(folder) / "file").write_bytes(bytes(1024))
            user = "user root;\n" if os.geteuid() == 0 else ""
            config = Path(folder) / "nginx.conf"
            config.write_text(NGINX.format(user=user, workers=workers, folder=folder, port=port))
            command = [
                *launcher(helpers),
                str(shutil.which("nginx")),
                "-p",
                folder,
                "-c",
                str(config),
                "-e",
                "stderr",
            ]
            with subprocess.Popen(command, env=CLEAN, stderr=subprocess.DEVNULL) as server:
                try:
                    await_port(port, server)
                    load = ["wrk", "-t", "2", "-c", "32", "-d", f"{max(1, round(seconds))}s", "--latency"]
                    url = f"http://127.0.0.1:{port}/file"
                    done = subprocess.run(
                        [*launcher(helpers), *load, url],
                        env=CLEAN,
                        check=True,
                        capture_output=True,
                        text=True,
                        timeout=60,
                    )
                finally:
                    server.terminate()
        words = done.stdout.split()
        return {
            "per_s": float(words[words.index("Requests/sec:") + 1]),
            "p99_us": microseconds(words[words.index("99%") + 1]),
        }

    return in_turns(measure)


def microseconds(text: str) -> float:
    """A time as wrk writes it."""
    for unit, factor in (("us", 1.0), ("ms", 1e3), ("s", 1e6)):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    sys.exit(f"{text} is no time")


def iperf(streams: int, seconds: float) -> Round:
    def measure(helpers: int) -> Row:
        with tempfile.TemporaryDirectory(prefix="threads-") as folder:
            port, counters = free_port(), Path(folder) / "counters"
            environment = CLEAN | {"NETACC_EXIT_STATS": str(counters)}
            serve = [*launcher(helpers), "iperf3", "-s", "-1", "-p", str(port)]
            with subprocess.Popen(serve, env=environment, stdout=subprocess.DEVNULL) as server:
                try:
                    await_port(port, server)
                    load = [
                        "iperf3",
                        "-c",
                        "127.0.0.1",
                        "-p",
                        str(port),
                        "-P",
                        str(streams),
                        "-l",
                        "1M",
                        "-J",
                    ]
                    done = subprocess.run(
                        [*launcher(helpers), *load, "-t", str(max(1, round(seconds)))],
                        env=environment,
                        check=True,
                        stdout=subprocess.PIPE,
                        timeout=60,
                    )
                    server.wait(timeout=20)
                finally:
                    server.kill()
            row = {"per_s": float(json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"]) / 8}
            return row | copied(counters)

    return in_turns(measure)


def copied(counters: Path) -> Row:
    """The share of bytes on links, and the part of these that helper threads have copied, of both ends."""
    if not counters.exists():
        return {}
    counts = [json.loads(line)["cnt"] for line in counters.read_text().splitlines()]
    link = sum(count["tx_bytes_link"] + count["rx_bytes_link"] for count in counts)
    tcp = sum(count["tx_bytes_tcp"] + count["rx_bytes_tcp"] for count in counts)
    by_helpers = sum(n for count in counts for name, n in count.items() if name.endswith("_copied_bytes"))
    return {"link_share": link / max(1, link + tcp), "copied_by_helpers": by_helpers / max(1, link)}


LOADS: dict[str, Callable[[float], Round]] = {
    "memcached-1": lambda seconds: memcached(1, seconds),
    "memcached-2": lambda seconds: memcached(2, seconds),
    "memcached-4": lambda seconds: memcached(4, seconds),
    "redis-io-2": lambda seconds: redis(2, seconds),
    "nginx-1": lambda seconds: nginx(1, seconds),
    "nginx-2": lambda seconds: nginx(2, seconds),
    "nginx-4": lambda seconds: nginx(4, seconds),
    "iperf3-1": lambda seconds: iperf(1, seconds),
    "iperf3-8": lambda seconds: iperf(8, seconds),
}


def summary(rounds: list[Round]) -> dict[str, dict[str, list[float]]]:
    """Of each figure: the median, the least and the largest."""

    def spread(path: str, figure: str) -> list[float]:
        found = [each[path][figure] for each in rounds if figure in each[path]]
        return [round(value, 4) for value in (statistics.median(found), min(found), max(found))]

    return {path: {figure: spread(path, figure) for figure in rows} for path, rows in rounds[0].items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="at most")
    parser.add_argument("--minutes", type=float, default=6, help="in which all rounds end")
    parser.add_argument("--seconds", type=float, default=1, help="of each measurement")
    parser.add_argument("--only", choices=LOADS, action="append", help="only this load; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    chosen = [name for name in LOADS if not arguments.only or name in arguments.only]
    rounds: dict[str, list[Round]] = {name: [] for name in chosen}
    begun = time.monotonic()
    longest = 0.0
    for number in range(arguments.rounds):
        round_begun = time.monotonic()
        if number > 0 and round_begun - begun + longest > arguments.minutes * 60:
            break
        for name in chosen:
            print(
                f"{time.monotonic() - begun:4.0f} s: round {number + 1}, {name}", file=sys.stderr, flush=True
            )
            rounds[name].append(LOADS[name](arguments.seconds))
        longest = max(longest, time.monotonic() - round_begun)
    figures = {name: summary(each) for name, each in rounds.items()}
    for name, paths in figures.items():
        for path, row in paths.items():
            shown = "  ".join(f"{figure} {low_to_high(spread)}" for figure, spread in row.items())
            print(f"{name:12} {path:10} {shown}")
    if arguments.json:
        document = {"machine": machine(), "seconds": arguments.seconds, "figures": figures, "rounds": rounds}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


def low_to_high(spread: list[float]) -> str:
    median, low, high = spread
    return f"{median:.6g} ({low:.4g} to {high:.4g})"


if __name__ == "__main__":
    main()
