"""Measurements of bare transfers: rstream of librdmacm under every stack, and verbs alone."""

from __future__ import annotations

import json
import re
import statistics
import time
from dataclasses import dataclass
from typing import Any

from ci.eri.pair import Failed, Pair, Stack

Figures = dict[str, float]

#: Messages of 64 bytes, a round trip at a time and one after the other, and a stream of large ones: size,
#: transfers in one direction before it turns round, and how often it does. The first lacks the last figure.
ROUND_TRIP = ("-S", "64", "-C", "1", "-I")
MESSAGES = ("-S", "64", "-C", "500", "-I", "20")
STREAM = ("-S", "65536", "-C", "50", "-I", "10")

PORT = "7471"

#: All paths of `netacc lat`.
PATHS = ("write", "message", "send", "stack", "tcp")


def both(pair: Pair, server: list[str], client: list[str], seconds: float | None = None) -> str:
    """The output of a client that is started again until its server listens: only a client can show that."""
    started = pair.start(1, *server)
    deadline = time.monotonic() + pair.seconds
    try:
        while True:
            try:
                return pair.out(2, *client, seconds=seconds)
            except Failed as failure:
                if ending := started.ending():
                    raise Failed(ending) from failure
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
    finally:
        pair.end()


def rstream(pair: Pair, stack: Stack, shape: tuple[str, ...]) -> float:
    """Microseconds for a transfer in one direction. Both ends poll."""
    command = stack.of("rstream", "-p", PORT, "-T", "s", *shape)
    printed = both(pair, [*command, "-b", pair.address(1)], [*command, "-s", pair.address(1)])
    row = re.search(r"\s([0-9.]+)s?\s+([0-9.]+)\s+([0-9.]+)\s*$", printed)
    if not row:
        raise Failed(f"rstream printed no figures: {printed.strip()[-300:]}")
    return float(row[3])


def sockets(pair: Pair, stack: Stack, round_trips: int) -> Figures:
    """The latency, of so many round trips, and the throughput of a program with sockets."""
    one_way = rstream(pair, stack, (*ROUND_TRIP, str(round_trips)))
    each = rstream(pair, stack, MESSAGES)
    # rstream's own figure has two digits after the point.
    speed = 8 * int(STREAM[1]) / rstream(pair, stack, STREAM) / 1000
    return {
        "round_trip_us": 2 * one_way,
        "messages_per_s": round(1e6 / each),
        "gbit_per_s": round(speed, 4),
    }


def medians(turns: list[Figures]) -> Figures:
    """The median of each figure."""
    return {name: statistics.median(turn[name] for turn in turns) for name in turns[0]} if turns else {}


@dataclass(frozen=True)
class PathLatency:
    """The results of `netacc lat` of a path. `pairs`: nanoseconds there and back, and how often each came."""

    name: str
    pairs: list[tuple[int, int]]
    figures: Figures
    more: Figures


def netacc_lat(pair: Pair, paths: tuple[str, ...], round_trips: int) -> list[PathLatency]:
    """Latencies of 64 bytes, both ends polling, on each path. Fails if one could not be measured."""
    netacc = ("env", "NACC_POLL_MS=1000", str(pair.binaries / "netacc"), "lat")
    wanted = [word for path in paths for word in ("--path", path)]
    client = [*netacc, pair.address(1), *wanted, "-n", str(round_trips), "--json"]
    # Emulated machines take up to tens of milliseconds for a round trip: polling keeps their one processor.
    report = json.loads(both(pair, [*netacc, "--serve", pair.address(1)], client, seconds=300))
    found = []
    for path in report["paths"]:
        # It measures there and back, and reports half of it, as perftest does.
        halves = path["latency_ns"]
        figures = {f"{name}_us": 2 * halves[name] / 1000 for name in ("min", "p50", "p90", "p99")}
        more = {"link_share": path["link_share"]} if path.get("link_share") is not None else {}
        pairs = [(2 * value, count) for value, count in path["histogram"]]
        found.append(PathLatency(path["path"], pairs, figures | more, more))
    return found


class Polled:
    """Round trips of 64 bytes, both ends polling, in turns: `ib_send_lat`, and `netacc lat` on four paths.

    Through the stack it is measured once its connection is on a link; rstream has the way there in it.
    """

    def __init__(self, round_trips: int) -> None:
        """`round_trips`: of each turn."""
        self.round_trips = round_trips
        self.turns: dict[str, list[Figures]] = {}
        #: The values of all turns, by path.
        self.pairs: dict[str, list[tuple[int, int]]] = {}

    def perftest(self, pair: Pair) -> None:
        # One way: least, most, typical, average, deviation, 99th percentile.
        row = perftest(pair, "ib_send_lat", ("-s", "64", "-n", str(self.round_trips)))
        least, _, typical, _, _, late, *_ = row
        turn = {"min_us": 2 * least, "p50_us": 2 * typical, "p99_us": 2 * late}
        self.turns.setdefault("ib_send_lat", []).append(turn)

    def netacc(self, pair: Pair) -> None:
        for path in netacc_lat(pair, ("send", "message", "stack", "tcp"), self.round_trips):
            self.turns.setdefault(path.name, []).append(path.figures)
            self.pairs.setdefault(path.name, []).extend(path.pairs)

    def figures(self) -> dict[str, Any]:
        summary = {path: summed_up(each) for path, each in self.turns.items()}
        base = summary.get("ib_send_lat")
        ratios = {
            path: {name: round(figures[name] / base[name], 3) for name in base}
            for path, figures in summary.items()
            if base and path != "ib_send_lat"
        }
        return {"turns": self.turns, "summary": summary, "ratio_to_ib_send_lat": ratios}


def summed_up(turns: list[Figures]) -> Figures:
    """The least of all, and the medians of each turn's least, median and 99th percentile."""
    return {
        "min_us": min(turn["min_us"] for turn in turns),
        **{
            f"median_{name}_us": statistics.median(turn[f"{name}_us"] for turn in turns)
            for name in ("min", "p50", "p99")
        },
    }


#: Tools of perftest, their arguments, and the figure that each gives.
Tools = tuple[tuple[str, tuple[str, ...], str], ...]
BANDWIDTH: Tools = (("ib_send_bw", ("-s", "65536", "-n", "500"), "gbit_per_s"),)


def latency(round_trips: int) -> Tools:
    """The tools that measure 64 bytes there and back."""
    each = ("-s", "64", "-n", str(round_trips))
    return (("ib_send_lat", each, "round_trip_us"), ("ib_write_lat", each, "write_round_trip_us"))


def verbs(pair: Pair, tools: Tools) -> tuple[Figures, dict[str, str]]:
    """The latency and throughput of the device itself, and the tools that failed, with their errors.

    ib_send_lat prints half of the round trip.
    """
    figures, failures = {}, {}
    for tool, arguments, name in tools:
        try:
            row = perftest(pair, tool, arguments)
            # Bandwidth: peak, average, and messages. Latency, one way: least, most, typical.
            figures[name] = row[1] if tool.endswith("bw") else 2 * row[2]
        except Failed as failure:
            failures[tool] = str(failure)
    return figures, failures


#: Columns of the latency tools of perftest, behind size and number: one way, in microseconds.
COLUMNS = ("min", "max", "typical", "mean", "deviation", "p99", "p999")


def all_sizes(pair: Pair, more: tuple[str, ...], seconds: float) -> list[Figures]:
    """`ib_write_lat -R -a -F`: one way in microseconds, by bytes of a message. Within so many seconds."""
    command = ["ib_write_lat", "-R", "-a", "-F", *more]
    printed = both(pair, command, [*command, pair.address(1)], seconds=seconds)
    rows = re.findall(r"^\s*(\d+)\s+(\d+)((?:\s+[0-9.]+){7})\s*$", printed, re.MULTILINE)
    if not rows:
        raise Failed(f"ib_write_lat -a printed no figures: {printed.strip()[-300:]}")
    found = []
    for size, number, rest in rows:
        columns = dict(zip(COLUMNS, map(float, rest.split()), strict=True))
        found.append({"bytes": int(size), "round_trips": int(number), **columns})
    return found


def perftest(pair: Pair, tool: str, arguments: tuple[str, ...]) -> tuple[float, ...]:
    """The figures that a tool prints behind size and number: three at least."""
    command = (tool, "-R", "-F", *arguments, *(("--report_gbits",) if tool.endswith("bw") else ()))
    printed = both(pair, list(command), [*command, pair.address(1)])
    row = re.search(r"^\s*(?:64|65536)\s+\d+((?:\s+[0-9.]+){3,})", printed, re.MULTILINE)
    if not row:
        raise Failed(f"{tool} printed no figures: {printed.strip()[-300:]}")
    return tuple(float(figure) for figure in row[1].split())
