"""Two processes with UDP sockets that carry out one program, and what differs between two such runs."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest

from tests.apps.lib.paths import REPO, binaries

#: Enough for a flow to be made.
WARMING = 16
#: No order takes longer.
PATIENCE_S = 20
#: Those that a program names by these, as its hosts may have others.
LOCAL = ("127.0.0.1", "::1")


class Host(Protocol):
    """Carries out orders: see `datagram_host.py`."""

    #: Of sockets that are bound to one, by IPv4 and IPv6.
    addresses: tuple[str, str]

    def do(self, *order: object) -> Any:  # noqa: ANN401 (any JSON)
        """The answer."""


class Process:
    """A process. Its sockets are at `addresses`, by IPv4 and IPv6, if they are at one."""

    def __init__(
        self,
        accelerated: bool,
        counted: Path,
        reach: Sequence[str] = (),
        addresses: tuple[str, str] = LOCAL,
        patience_ms: int | None = None,
    ) -> None:
        self.addresses = addresses
        env = {
            "PYTHONPATH": str(REPO),
            "NETACC_EXIT_STATS": str(counted),
            "NETACC_DATAGRAM_ADDRESSES": " ".join(addresses),
        }
        if patience_ms is not None:
            env["NETACC_DATAGRAM_PATIENCE_MS"] = str(patience_ms)
        before = [str(binaries() / "netacc_run")] if accelerated else []
        command = ["env", *(f"{name}={value}" for name, value in env.items()), *before]
        self.popen = subprocess.Popen(
            [*reach, *command, sys.executable, "-m", "tests.properties.datagram_host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPO,
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

    def __init__(self, hosts: list[Process]) -> None:
        self.hosts = hosts

    @classmethod
    def here(cls, accelerated: bool, counted: list[Path]) -> World:
        return cls([Process(accelerated, file) for file in counted])

    def end(self) -> None:
        for host in self.hosts:
            host.end()

    def run(self, kinds: list[str], steps: list[Step]) -> Seen:
        """Socket N is one of the process N mod 2."""
        return Run(self.hosts, kinds).all(steps)


class Run:
    """One program."""

    def __init__(self, hosts: Sequence[Host], kinds: list[str]) -> None:
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

    def all(self, steps: list[Step]) -> Seen:
        for step in steps:
            self.step(*step)
        self.finish()
        return Seen(self.answers, {name: dict(found) for name, found in self.received.items()})

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
        four, six = self.host(index).addresses
        if self.kinds[index] == "six":
            return six
        return four if ip == LOCAL[0] else ip

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
                answer = host.do("connect", name, self.address(more[0], LOCAL[0]), self.ports[more[0]])
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


def difference(kernels: Seen, ours: Seen, *, ordered: bool = True) -> str | None:
    """The first, in words. If the datagrams are not `ordered`, only which ones were received counts."""
    for number, (theirs, own) in enumerate(zip(kernels.answers, ours.answers, strict=True)):
        if theirs != own:
            return f"step {number}: {theirs} by the kernel, {own} with the library"
    for name in kernels.received.keys() | ours.received.keys():
        theirs, own = kernels.received.get(name, {}), ours.received.get(name, {})
        for source in theirs.keys() | own.keys():
            found = [of.get(source, []) for of in (theirs, own)]
            both = zip_longest(*(found if ordered else [sorted(one, key=json.dumps) for one in found]))
            for number, (one, other) in enumerate(both):
                if one != other:
                    where = f"socket {name}, datagram {number} from {source}"
                    return f"{where}: {one} by the kernel, {other} with the library"
    return None
