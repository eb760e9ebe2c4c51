"""Generated programs of UDP calls in two processes answer as on the kernel's sockets.

Only what UDP leaves open may differ: the order of datagrams from different sockets. So the test
compares the datagrams of a socket by their source.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.apps.lib.paths import REPO, binaries

SOCKETS = 3
KINDS = ["bound", "any", "dual", "six"]
WANTS = ["destination", "lifetime", "service", "micros", "nanos", "times", "drops"]
#: Of the datagrams of `test_what_is_told`, in two programs of some 260.
LINKED = 260
#: Each is seen alone, as one may have the effect of another.
CHANGES = [("lifetime", 200), ("service", 4), ("split", 100)]
#: Enough for a flow to be made.
WARMING = 16
#: A difference that does not come back is one of timing: the way of a datagram depends on who sleeps.
RUNS = 3
#: No order takes longer.
PATIENCE_S = 20
#: Of the datagrams of all programs: many are too few for a flow.
SHARE = 0.2


class Host:
    """A process."""

    def __init__(self, accelerated: bool, counted: Path) -> None:
        before = [str(binaries() / "netacc_run")] if accelerated else []
        self.popen = subprocess.Popen(
            [*before, sys.executable, "-m", "tests.properties.datagram_host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPO,
            env=os.environ | {"NETACC_EXIT_STATS": str(counted)},
        )

    def do(self, *order: object) -> Any:  # noqa: ANN401 (any JSON)
        assert self.popen.stdin is not None and self.popen.stdout is not None
        self.popen.stdin.write(json.dumps(order) + "\n")
        self.popen.stdin.flush()
        if not select.select([self.popen.stdout], [], [], PATIENCE_S)[0]:
            self.popen.kill()
            pytest.fail(f"no answer to {order}")
        answer = self.popen.stdout.readline()
        assert answer, f"the process ended at {order}"
        return json.loads(answer)

    def end(self) -> None:
        assert self.popen.stdin is not None and self.popen.stdout is not None
        self.popen.stdin.close()
        # The last process may be a descendant of the first.
        assert self.popen.stdout.read() == ""
        assert self.popen.wait(30) == 0


class Seen(NamedTuple):
    """The answers of the steps, and the datagrams of each socket by their source."""

    answers: list[object]
    received: dict[str, dict[str, list[object]]]


Step = tuple[Any, ...]


def all_counts(file: Path) -> list[dict[str, int]]:
    """Of each process."""
    return [json.loads(line)["cnt"] for line in file.read_text().splitlines()]


class World:
    """Two processes, on the kernel's sockets or with the library."""

    def __init__(self, accelerated: bool, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.counted = [folder / f"counted-{i}" for i in range(2)]
        self.hosts = [Host(accelerated, counted) for counted in self.counted]

    def end(self) -> None:
        for host in self.hosts:
            host.end()

    def run(self, kinds: list[str], steps: list[Step]) -> Seen:
        """Socket N is one of the process N mod 2."""
        run = Run(self.hosts, kinds)
        for step in steps:
            run.step(*step)
        run.finish()
        return Seen(run.answers, {name: dict(found) for name, found in run.received.items()})


class Run:
    """One program."""

    def __init__(self, hosts: list[Host], kinds: list[str]) -> None:
        self.hosts = hosts
        self.answers: list[object] = []
        self.received: dict[str, dict[str, list[object]]] = defaultdict(lambda: defaultdict(list))
        self.ports: dict[int, int] = {}
        self.names: dict[int, str] = {}
        self.number = 0
        #: Those for which the kernel may join datagrams: what one call receives is left to it.
        self.joining: set[int] = set()
        self.kinds: dict[int, str] = {}
        for index, kind in enumerate(kinds):
            self.open(index, kind)

    def host(self, index: int) -> Host:
        return self.hosts[index % 2]

    def open(self, index: int, kind: str) -> None:
        self.joining.discard(index)
        self.kinds[index] = kind
        self.ports[index] = self.host(index).do("new", f"{index}", kind)
        self.names[self.ports[index]] = f"{index} after {self.number}"

    def keep(self, index: int, datagram: list[Any]) -> None:
        data, flags, port, infos = datagram
        self.received[f"{index}"][self.names.get(port, "nobody")].append([data, flags, infos])

    def send(self, sender: int, to: int, length: int, how: str, ip: str) -> object:
        self.number += 1
        data = (self.number.to_bytes(4, "big") * (length // 4 + 1))[:length].hex()
        return self.host(sender).do("send", f"{sender}", how, data, self.address(to, ip), self.ports[to])

    def address(self, index: int, ip: str) -> str:
        return "::1" if self.kinds[index] == "six" else ip

    def step(self, what: str, index: int, *more: Any) -> None:  # noqa: ANN401 (any JSON)
        host, name = self.host(index), f"{index}"
        answer: object
        match what:
            case "send":
                answer = self.send(index, *more)
            case "warm":
                to, addresses = more
                for number in range(WARMING):
                    for _ in range(2):
                        self.send(index, to, 8, "sendto", addresses[number % len(addresses)])
                    self.drain(to, expected=2)
                answer = None
            case "receive" if index in self.joining:
                self.drain(index)
                answer = None
            case "receive":
                answer = host.do("receive", name, *more)
                if isinstance(answer, list):
                    if more[0] != "peek":
                        self.keep(index, answer)
                    answer = "a datagram"
            case "connect":
                answer = host.do("connect", name, self.address(more[0], "127.0.0.1"), self.ports[more[0]])
            case "option":
                if more[0] == "join":
                    self.drain(index)
                    self.joining.add(index)
                answer = host.do("option", name, *more)
            case "fork":
                for found in host.do("fork", name, *more):
                    self.take(index, found)
                answer = None
            case "drained":
                self.drain(index)
                answer = None
            case "reopen":
                self.drain(index)
                host.do("close", name)
                self.open(index, more[0])
                answer = None
            case _:
                answer = host.do(what, name, *more)
        self.answers.append(answer)

    def drain(self, index: int, expected: int = 1 << 30) -> None:
        for found in self.host(index).do("drain", f"{index}", expected):
            self.take(index, found)

    def take(self, index: int, found: list[Any]) -> None:
        """A datagram, or the name of an error."""
        if len(found) == 1:
            self.received[f"{index}"]["errors"].append(found)
        else:
            self.keep(index, found)

    def finish(self) -> None:
        for index in self.ports:
            self.drain(index)
        for index in self.ports:
            self.host(index).do("close", f"{index}")


def programs() -> st.SearchStrategy[tuple[list[str], list[Step]]]:
    index = st.integers(0, SOCKETS - 1)
    length = st.sampled_from([0, 1, 7, 8, 64, 1000, 3000])
    ip = st.sampled_from(["127.0.0.1", "127.0.0.1", "127.0.0.2"])
    send = st.tuples(
        st.just("send"),
        index,
        index,
        length,
        st.sampled_from(["sendto", "parts", "marked", "lived", "split", "send"]),
        ip,
    )
    receive = st.tuples(st.just("receive"), index, st.sampled_from(["whole", "whole", "short", "peek"]))
    addresses = st.sampled_from([["127.0.0.1"], ["127.0.0.2"], ["127.0.0.1", "127.0.0.2"]])
    warm = st.tuples(st.just("warm"), index, index, addresses)
    inform = st.tuples(st.just("inform"), index, st.sampled_from(WANTS), st.booleans())
    option = st.one_of(
        st.tuples(
            st.just("option"), index, st.sampled_from(["lifetime", "service"]), st.sampled_from([4, 200])
        ),
        st.tuples(st.just("option"), index, st.just("split"), st.sampled_from([0, 7, 100, 1400])),
        st.tuples(st.just("option"), index, st.just("join"), st.just(1)),
    )
    others = st.one_of(
        st.tuples(st.just("wait"), index, st.sampled_from(["poll", "epoll", "select"])),
        st.tuples(st.just("connect"), index, index),
        inform,
        option,
        st.tuples(st.just("duplicate"), index),
        st.tuples(st.just("reopen"), index, st.sampled_from(KINDS)),
        st.tuples(st.just("fork"), index, st.sampled_from(["ends", "receives", "goes on"])),
        st.tuples(st.just("shut"), index, st.integers(0, 2)),
    )
    # Flows first, or what is done to sockets without any is all that is tried.
    begun = st.tuples(st.lists(st.one_of(inform, option), max_size=3), st.lists(warm, max_size=3))
    steps = st.lists(st.one_of(send, send, send, receive, receive, warm, others), max_size=30)
    kinds = st.lists(st.sampled_from(KINDS), min_size=SOCKETS, max_size=SOCKETS)
    return st.tuples(kinds, st.tuples(begun, steps).map(lambda both: [*both[0][0], *both[0][1], *both[1]]))


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, World]]:
    both = [World(accelerated, tmp_path_factory.mktemp("worlds")) for accelerated in (False, True)]
    yield both[0], both[1]
    for world in both:
        world.end()
    counts = [counts for counted in both[1].counted for counts in all_counts(counted)]
    link, kernel = (sum(count[f"datagrams_received_{way}"] for count in counts) for way in ("link", "kernel"))
    assert link >= SHARE * (link + kernel), (link, kernel)


@given(program=programs())
def test_as_the_kernels(worlds: tuple[World, World], program: tuple[list[str], list[Step]]) -> None:
    """Breaks if a datagram is lost, doubled, changed or overtaken, or a call answers otherwise."""
    for _ in range(RUNS):
        found = difference(*(world.run(*program) for world in worlds))
        if found is None:
            return
    pytest.fail(f"{found}\nprogram: {program}")


#: A flow that is made anew for another address of the same socket. Breaks if sends by the kernel are
#: counted at their end alone while the new ring seems to be closed: its datagrams are never due.
ANEW: list[Step] = [
    ("warm", 0, 1, ["127.0.0.2"]),
    ("connect", 0, 2),
    ("send", 0, 1, 64, "sendto", "127.0.0.1"),
    ("warm", 0, 1, ["127.0.0.1"]),
]


def test_a_flow_that_is_made_anew(worlds: tuple[World, World]) -> None:
    for _ in range(10):
        assert difference(*(world.run(["dual", "dual", "bound"], ANEW) for world in worlds)) is None


def difference(kernels: Seen, ours: Seen) -> str | None:
    """The first, in words."""
    for number, (theirs, own) in enumerate(zip(kernels.answers, ours.answers, strict=True)):
        if theirs != own:
            return f"step {number}: {theirs} by the kernel, {own} with the library"
    for name in kernels.received.keys() | ours.received.keys():
        theirs, own = kernels.received.get(name, {}), ours.received.get(name, {})
        for source in theirs.keys() | own.keys():
            both = zip_longest(theirs.get(source, []), own.get(source, []))
            for number, (one, other) in enumerate(both):
                if one != other:
                    where = f"socket {name}, datagram {number} from {source}"
                    return f"{where}: {one} by the kernel, {other} with the library"
    return None


def told(what: str) -> list[Step]:
    """A program whose second socket wants to know something of each datagram, which differs between them."""
    steps: list[Step] = [("inform", 1, what, True)] if what in WANTS else [("option", 1, what, 1)]
    steps.append(("warm", 0, 1, ["127.0.0.1"]))
    changes: list[list[Step]] = [[], *([("option", 0, *one)] for one in CHANGES)]
    for change in changes:
        steps += change
        for how, length in [("sendto", 150), ("lived", 8), ("marked", 8), ("split", 1000)]:
            # The first wakes a sleeper, and takes the kernel.
            steps += 3 * [("send", 0, 1, length, how, "127.0.0.1")] + [
                ("receive", 1, "short"),
                ("drained", 1),
            ]
    return steps


@pytest.mark.parametrize("what", [*WANTS, "join"])
def test_what_is_told(what: str, tmp_path: Path) -> None:
    """Breaks if an option keeps datagrams in the kernel, or a ring says something else of them."""
    both = [World(accelerated, tmp_path / f"{accelerated}") for accelerated in (False, True)]
    found = [difference(*(world.run([kind] * 2, told(what)) for world in both)) for kind in ("bound", "six")]
    for world in both:
        world.end()
    assert found == [None, None]
    counts = [counts for file in both[1].counted if file.exists() for counts in all_counts(file)]
    link = sum(count["datagrams_received_link"] for count in counts)
    assert link >= LINKED, link
