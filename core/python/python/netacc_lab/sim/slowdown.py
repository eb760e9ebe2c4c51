"""Slowdown of flows: completion over what their path takes when it is empty."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from netacc_lab.sim.buffers import ETHERNET_BYTES, HEADER_BYTES
from netacc_lab.sim.store import Recorded

#: Headers of IP and TCP.
TCP_HEADERS = 40
#: Parts of the flows in a table of slowdowns, by size. Arbitrary.
PARTS = 10


@dataclass(frozen=True)
class Slowdown:
    """Completion times over those on an empty network, of the flows of some sizes."""

    most_bytes: int
    flows: int
    p50: float
    p95: float
    p99: float


def slowdowns(runs: Iterable[Recorded]) -> list[Slowdown]:
    """Of all flows of the runs, by size, smallest first, each with a tenth of them.

    Empty without flows or samples.
    """
    found = sorted(flow for run in runs for flow in _flows(run))
    places = [len(found) * part // PARTS for part in range(PARTS + 1)]
    parts = [found[low:high] for low, high in pairwise(places) if low < high]
    return [_of_part(part) for part in parts]


def _flows(run: Recorded) -> list[tuple[int, float]]:
    """Bytes and slowdown of each."""
    scenario = run.meta["scenario"]
    # By conversation: its group, and its ends.
    of_flows: dict[int, tuple[int, int, int]] = {}
    first = 0
    for number, group in enumerate(scenario["groups"]):
        ends = [(number, c["client"], c["server"]) for c in group["clients"] for _ in range(c["connections"])]
        if group["arrival"]["kind"] == "flows":
            of_flows |= {first + place: pair for place, pair in enumerate(ends)}
        first += len(ends)
    path = run.folder / "samples.csv"
    if not of_flows or not path.exists():
        return []
    pairs: dict[tuple[int, int, int], _Path] = {}
    found = []
    with path.open(newline="") as opened:
        for row in csv.DictReader(opened):
            ends_of = of_flows.get(int(row["conversation"]))
            if ends_of is None:
                continue
            if ends_of not in pairs:
                of_group, client, server = ends_of
                pairs[ends_of] = _Path.of(scenario, scenario["groups"][of_group], client, server)
            size = int(row["request_bytes"])
            found.append((size, int(row["latency_ns"]) / pairs[ends_of].ideal_ns(size)))
    return found


def _of_part(part: list[tuple[int, float]]) -> Slowdown:
    values = np.array([value for _, value in part])
    p50, p95, p99 = (float(np.percentile(values, percent)) for percent in (50, 95, 99))
    return Slowdown(part[-1][0], len(part), p50, p95, p99)


@dataclass(frozen=True)
class _Path:
    """A shortest path of an empty network."""

    rates: list[int]
    delay_ns: int
    payload: int
    headers: int
    nics_ns: int

    @classmethod
    def of(cls, scenario: Mapping[str, Any], group: Mapping[str, Any], client: int, server: int) -> _Path:
        links = _shortest(scenario["network"]["links"], client, server)
        device, stack = scenario["device"], scenario["stack"]
        costs = device["costs"]
        passed = ("request_fetch_ns", "payload_fetch_ns", "placement_ns", "completion_ns", "doorbell_ns")
        nics = sum(costs[name] for name in (*passed, "transmit_packet_ns", "receive_packet_ns"))
        if group["promote"]:
            payload, headers = device["nic"]["mtu_bytes"], HEADER_BYTES
        else:
            payload, headers = stack["tcp_mtu_bytes"] - TCP_HEADERS, ETHERNET_BYTES + TCP_HEADERS
        delay = sum(link["delay_ns"] for link in links)
        return cls([link["rate_bps"] for link in links], delay, payload, headers, nics)

    def ideal_ns(self, size: int) -> float:
        """All packets on the slowest link, one on each other link, and an answer of one byte."""
        packets = -(-size // self.payload)
        wire = size + packets * self.headers
        one = min(size, self.payload) + self.headers
        slowest = min(self.rates)
        sending = (wire - one) * 8e9 / slowest + sum(one * 8e9 / rate for rate in self.rates)
        answer = sum((1 + self.headers) * 8e9 / rate for rate in self.rates)
        return sending + answer + 2 * self.delay_ns + 2 * self.nics_ns


def _shortest(links: list[Mapping[str, Any]], client: int, server: int) -> list[Mapping[str, Any]]:
    before: dict[int, tuple[int, Mapping[str, Any]] | None] = {client: None}
    waiting = [client]
    for node in waiting:
        for link in links:
            if node in (link["a"], link["b"]):
                other = link["b"] if link["a"] == node else link["a"]
                if other not in before:
                    before[other] = (node, link)
                    waiting.append(other)
    path, at = [], server
    while (step := before.get(at)) is not None:
        at = step[0]
        path.append(step[1])
    return path
