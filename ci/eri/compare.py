"""Who is faster on two hosts of the lab: kernel TCP, rsockets, and ours, in turns.

    .venv/bin/python -m ci.eri.compare --json results/erdma/compare.json

Boots a lab, and measures in each round each stack: the original's comparison with Redis, round trips of 64
bytes with blocking calls and with polling ones, a stream; and perftest's `ib_send_lat`. `--accel counted`
makes a host's clock count its instructions: then processor times do not depend on the load of this machine,
and rates mean little.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ci.eri import micro
from ci.eri.pair import ON_LINKS, Failed, Host, Pair, Stack
from ci.eri.programs import Comparison, Run, Size, paths

REPO = Path(__file__).resolve().parents[2]
PORT = "6500"
#: The time limit of an operation. Far above any honest run.
SECONDS = 300
STACKS = ("tcp", "rsockets", "netacc")
#: Messages of each case of `exchange`, after the seconds in which its connection may get onto a link.
COUNTS = {"trips": 2000, "polled": 2000, "stream": 400}


@dataclass
class Turns:
    """The figures of each case under each stack, by round, and the failures."""

    pair: Pair
    exchange: str
    comparison: Comparison
    binaries: Path
    #: Names of stacks.
    chosen: tuple[str, ...] = STACKS
    #: Settings of the library.
    settings: dict[str, str] = field(default_factory=dict)
    figures: dict[str, dict[str, list[dict[str, float]]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def stacks(self) -> list[Stack]:
        every = [Stack.tcp(), Stack.rsockets(), Stack.netacc(self.binaries, **self.settings)]
        return [stack for stack in every if stack.name in self.chosen]

    def take(self, case: str, stack: str, measure: Callable[[], dict[str, float]]) -> None:
        """Measures a case once."""
        load = os.getloadavg()[0]
        try:
            found = measure() | {"load": round(load, 1)}
        except Failed as failure:
            self.failures.append(f"{case}, {stack}: {failure}")
            print(f"{case}, {stack}: {failure}"[:300], file=sys.stderr)
            return
        finally:
            self.pair.end()
        self.figures.setdefault(case, {}).setdefault(stack, []).append(found)
        print(case, stack, found, file=sys.stderr)

    def round(self, cases: list[str]) -> None:
        for case in cases:
            if case == "ib_send_lat":
                self.take(case, "verbs", self.send_lat)
                self.take(case, "verbs, sleeping", lambda: self.send_lat("-e"))
                continue
            for stack in self.stacks():
                self.take(case, stack.name, partial(self.program, case, stack))

    def program(self, case: str, stack: Stack) -> dict[str, float]:
        """The figures of a program with sockets."""
        if case == "redis":
            return self.comparison.run(Run(self.pair, stack, Size.small()))
        return self.messages(case, stack) | paths({}, self.pair.counters(1))

    def messages(self, case: str, stack: Stack) -> dict[str, float]:
        server = self.pair.start(1, *stack.of(self.exchange, "serve", self.pair.address(1), PORT))
        self.pair.wait_for(1, f"ss -ltnH | grep -q :{PORT} || sleep 2", "the server listens", server)
        client = stack.of(self.exchange, case, self.pair.address(1), PORT, str(COUNTS[case]))
        figures: dict[str, float] = json.loads(self.pair.out(2, *client))
        return figures

    def send_lat(self, *more: str) -> dict[str, float]:
        """There and back; perftest prints half of it. With `-e` its ends sleep until a completion."""
        row = micro.perftest(self.pair, "ib_send_lat", ("-s", "64", "-n", str(COUNTS["trips"]), *more))
        return {"us": 2 * row[3], "p50_us": 2 * row[2]}

    def ratios(self) -> dict[str, dict[str, Any]]:
        """Of each figure to TCP's of the same round: median, least and most."""
        found: dict[str, dict[str, Any]] = {}
        for case, stacks in self.figures.items():
            for stack, turns in stacks.items():
                base = stacks.get("tcp", [])
                if stack == "tcp" or len(base) != len(turns):
                    continue
                for name in turns[0].keys() & base[0].keys() - {"load"}:
                    each = sorted(
                        ours[name] / tcp[name] for ours, tcp in zip(turns, base, strict=True) if tcp[name]
                    )
                    if each:
                        of = [round(value, 3) for value in (statistics.median(each), each[0], each[-1])]
                        found.setdefault(case, {}).setdefault(stack, {})[name] = of
        return found


@contextmanager
def lab(binaries: Path, *arguments: str) -> Iterator[Pair]:
    """Two hosts with emulated eRDMA functions."""
    netacc, name = str(binaries / "netacc"), f"compare-{os.getpid()}"
    subprocess.run(
        [netacc, "lab", "up", "--name", name, "--hosts", "2", "--rdma", "erdma", *arguments],
        check=True,
        stdout=sys.stderr,
    )
    reach = (netacc, "lab", "exec", "--name", name, "--timeout", str(2 * SECONDS))
    hosts = (Host((*reach, "1"), "10.99.0.1"), Host((*reach, "2"), "10.99.0.2"))
    try:
        yield Pair(hosts, binaries, seconds=SECONDS)
    finally:
        subprocess.run([netacc, "lab", "down", "--name", name], check=True, stdout=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=10_000, help="of Redis, in each run")
    parser.add_argument("--accel", default="tcg", help="of the lab")
    parser.add_argument("--cases", nargs="+", default=["redis", *COUNTS, "ib_send_lat"])
    parser.add_argument("--stacks", nargs="+", default=STACKS, choices=STACKS)
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="a setting of the library"
    )
    parser.add_argument("--json", type=Path, required=True, help="the record")
    arguments = parser.parse_args()
    binaries = Path(os.environ.get("NETACC_BIN_DIR", REPO / "target/release")).resolve()
    began = time.strftime("%Y-%m-%d")
    with tempfile.TemporaryDirectory() as folder, lab(binaries, "--accel", arguments.accel) as pair:
        exchange = f"{folder}/exchange"
        subprocess.run(["gcc", "-O2", "-o", exchange, Path(__file__).with_name("exchange.c")], check=True)
        comparison = Comparison(requests=arguments.requests, seconds=SECONDS)
        settings = dict(text.split("=", 1) for text in arguments.env)
        turns = Turns(pair, exchange, comparison, binaries, tuple(arguments.stacks), settings)
        for _ in range(arguments.rounds):
            turns.round(arguments.cases)
            record = {
                "date": began,
                "accel": arguments.accel,
                "requests": arguments.requests,
                "settings": {**ON_LINKS, **settings},
                "counts": COUNTS,
                "processors": os.cpu_count(),
                "ratio_to_tcp": turns.ratios(),
                "rounds": turns.figures,
                "failures": turns.failures,
            }
            arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
