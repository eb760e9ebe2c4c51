"""Executors of programs of datagram calls: the core alone, under the scheduler of `sim/harness`.

It runs on in-memory devices, on modelled NICs, or in ns-3.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from netacc_lab import BrokenPromise, _native
from netacc_lab.executors import LineProcess

from tests.properties.datagram_world import LOCAL, Run, Seen, Step


class Fate(NamedTuple):
    """The datagrams that a run has lost or doubled, as a network may, and how many came on links."""

    #: By the ports of source and destination.
    lost: list[tuple[int, int, str]]
    doubled: list[tuple[int, int, str]]
    by_link: int


class Simulator(Protocol):
    """Runs one program at a time."""

    def begin(self, seed: int, faults: int) -> Callable[[str], str]:
        """A new run, which answers orders."""


class Harness:
    """With the preset "nic" on modelled NICs on a network with times; else on in-memory devices."""

    def __init__(self, preset: str) -> None:
        self.preset = preset

    def begin(self, seed: int, faults: int) -> Callable[[str], str]:
        run = _native.Datagrams(seed, self.preset, faults)

        def order(line: str) -> str:
            try:
                return run.order(line)
            except AssertionError as broken:
                raise BrokenPromise(str(broken)) from None

        return order


class Ns3:
    """On simulated hosts in ns-3, whose network carries the kernels' datagrams as well."""

    def __init__(self, executable: Path) -> None:
        self._process = LineProcess("ns3", [str(executable)])

    def begin(self, seed: int, faults: int) -> Callable[[str], str]:
        self._process.send(json.dumps({"datagrams": {"seed": seed, "fault_per_mille": faults}}))

        def order(line: str) -> str:
            answer = json.loads(self._process.exchange(line))
            if "broken" in answer:
                raise BrokenPromise(answer["broken"])
            return json.dumps(answer["answer"])

        return order

    def close(self) -> None:
        self._process.close()


class SimulatedHost:
    """A process in a simulation."""

    addresses = LOCAL

    def __init__(self, order: Callable[[str], str], number: int) -> None:
        self._order = order
        self._number = number

    def do(self, *order: object) -> Any:  # noqa: ANN401 (any JSON)
        return json.loads(self._order(json.dumps([self._number, *order])))


class Simulation:
    """One run of a program. `names` has the sockets by their ports."""

    def __init__(self, simulator: Simulator, seed: int, faults: int = 0) -> None:
        self._order = simulator.begin(seed, faults)
        self.names: dict[int, str] = {}

    def run(self, kinds: list[str], steps: list[Step]) -> tuple[Seen, Fate]:
        run = Run([SimulatedHost(self._order, number) for number in range(2)], kinds)
        seen = run.all(steps)
        self.names = run.names
        fate = json.loads(self._order('["finish"]'))
        lost, doubled = ([tuple(one) for one in fate[what]] for what in ("lost", "doubled"))
        return seen, Fate(lost, doubled, fate["by_link"])


def bytes_received(seen: Seen) -> Counter[tuple[str, str, str]]:
    """By the socket and the source. The control messages depend on what was lost before."""
    found: Counter[tuple[str, str, str]] = Counter()
    for socket, by_source in seen.received.items():
        for source, datagrams in by_source.items():
            for datagram in datagrams:
                assert isinstance(datagram, list)
                found[socket, source, datagram[0]] += 1
    return found


def difference_but_lost(kernels: Seen, ours: Seen, fate: Fate, names: dict[int, str]) -> str | None:
    """In words. Only what the network has lost or doubled may be missing, or come twice."""
    expected = bytes_received(kernels)
    for change, ports in ((-1, fate.lost), (1, fate.doubled)):
        for source, to, data in ports:
            expected[names[to].split()[0], names[source], data] += change
    found = bytes_received(ours)
    for datagram in sorted(expected.keys() | found.keys()):
        if expected[datagram] != found[datagram]:
            return f"{datagram}: {expected[datagram]} times expected, {found[datagram]} times received"
    return None
