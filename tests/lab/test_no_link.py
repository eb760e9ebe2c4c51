"""Where a link cannot be had, connections work on TCP, and take hardly longer than without the library."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from tests.apps.lib.counters import Counters
from tests.apps.lib.paths import REPO, binaries
from tests.lab.lib import UpLab, attempts, line_from, whole_wire
from tests.lab.test_programs import Device

QUICK = str(REPO / "tests/lab/programs/quick.py")
VAIN = str(REPO / "tests/lab/programs/vain.py")
SERVER, PORT = "10.99.0.1", 7020
#: The rule of the original.
LINK_PORT = PORT + 20000
#: Client processes, connections of each, answers to each: a process has no record of a peer at first, and a
#: connection tries to get onto a link at its second operation.
PROCESSES, CONNECTIONS, ANSWERS = 2, 4, 12
#: Seconds beyond the native time. Timeouts of RDMA devices and their connection managers are many seconds
#: long; an emulated machine that opens a device meanwhile is faster than that.
MEDIAN_LATER, WORST_LATER = 2.0, 5.0

#: Holds a port of TCP, and takes all bytes.
HOLDER = f"""
import socket
listener = socket.create_server(({SERVER!r}, {LINK_PORT}))
print("holds it", flush=True)
kept = []
while True: kept.append(listener.accept())
"""
#: Says whether the port can be had.
TRY = f"""
import errno, socket
try: socket.create_server(({SERVER!r}, {LINK_PORT})).close()
except OSError as error: print(errno.errorcode[error.errno])
else: print("free")
"""


@dataclass
class Taken:
    """Seconds of connections: of the first one of each process, and of all."""

    firsts: list[float] = field(default_factory=list)
    each: list[float] = field(default_factory=list)


@dataclass
class Quick:
    """Conversations with a server on the first host."""

    lab: UpLab
    kind: str
    server: str = ""

    def serve(self, *launcher: str) -> None:
        started = self.lab.start(1, *launcher, sys.executable, QUICK, "serve", SERVER, str(PORT))
        words = line_from(started.stdout).split()
        assert words[:2] == ["listening", "as"], words
        self.server = words[2]

    def end(self) -> None:
        """Ends the server, whose port is free then."""
        if self.server:
            gone = f"! kill -KILL {self.server} 2> /dev/null"
            self.lab.wait_for(1, gone)
        self.server = ""

    def measure(self, *launcher: str, answers: int = ANSWERS) -> Taken:
        """Several processes, one after the other."""
        taken = Taken()
        client_command = (QUICK, "ask", SERVER, str(PORT), str(CONNECTIONS), str(answers))
        for _ in range(PROCESSES):
            seconds = json.loads(self.lab.out(2, *launcher, sys.executable, *client_command))
            assert len(seconds) == CONNECTIONS
            taken.firsts.append(seconds[0])
            taken.each += seconds
        return taken

    def counters(self) -> Counters:
        return Device(self.lab, "native", loses=False).counters(self.server)


@pytest.fixture(params=["rxe", "siw"])
def quick(request: pytest.FixtureRequest) -> Iterator[Quick]:
    """Two hosts, with each of the devices."""
    kind = str(request.param)
    lab = request.getfixturevalue(kind)
    with whole_wire(lab):
        quick = Quick(lab, kind)
        yield quick
        quick.end()


@pytest.fixture(scope="module")
def known() -> dict[str, Taken]:
    """The results of `native`, by lab."""
    return {}


@pytest.fixture
def native(quick: Quick, known: dict[str, Taken]) -> Taken:
    """The same without the library, once for each lab."""
    if quick.lab.name not in known:
        quick.serve()
        known[quick.lab.name] = quick.measure()
        quick.end()
    return known[quick.lab.name]


def accelerated(**settings: str) -> tuple[str, ...]:
    return ("env", *(f"{name}={value}" for name, value in settings.items()), str(binaries() / "netacc_run"))


def judge(ours: Taken, native: Taken) -> None:
    """Breaks if a connection, or its first bytes, waited for a refused or unanswered request for a link."""
    print(f"seconds: {ours.each}, natively {native.each}")
    assert statistics.median(ours.firsts) < max(native.each) + MEDIAN_LATER
    assert max(ours.each) < max(native.each) + WORST_LATER


def expect_tcp(counters: Counters) -> None:
    assert counters.link_bytes == 0 and counters.tcp_bytes > 0, counters.describe()


@pytest.mark.parametrize("quick", ["siw"], indirect=True)
def test_another_program_has_the_port_for_links(quick: Quick, native: Taken) -> None:
    """On soft-iWARP, where ports are TCP's: it accepts requests for links, and never answers."""
    holder = quick.lab.start(1, sys.executable, "-c", HOLDER)
    assert line_from(holder.stdout) == "holds it\n"
    quick.serve(*accelerated())
    judge(quick.measure(*accelerated()), native)
    expect_tcp(quick.counters())


def test_another_program_wants_the_port_for_links(quick: Quick, native: Taken) -> None:
    """It gets the same connections as without the library. SoftRoCE has ports of its own."""
    quick.serve(*accelerated())
    for number in attempts():
        # Longer each time: the way to a link takes what it takes.
        quick.measure(*accelerated(), answers=100 << min(number, 5))
        if quick.counters().link_bytes > 0:
            break
    assert quick.counters().link_bytes > 0, "the port for links is open"
    reported = quick.lab.out(1, sys.executable, "-c", TRY).strip()
    assert reported == {"siw": "EADDRINUSE", "rxe": "free"}[quick.kind]
    judge(quick.measure(*accelerated()), native)


@contextmanager
def without_device(quick: Quick, host: int) -> Iterator[None]:
    """A host whose kernel has no RDMA device."""
    quick.lab.out(host, "timeout", "20", "rdma", "link", "delete", f"{quick.kind}0")
    try:
        yield
    finally:
        quick.lab.out(host, "rdma", "link", "add", f"{quick.kind}0", "type", quick.kind, "netdev", "lab0")


@pytest.mark.parametrize("lacking", [1, 2], ids=["server", "client"])
def test_one_of_the_hosts_has_no_device(quick: Quick, native: Taken, lacking: int) -> None:
    with without_device(quick, lacking):
        quick.serve(*accelerated())
        judge(quick.measure(*accelerated()), native)
        expect_tcp(quick.counters())
        quick.end()


@contextmanager
def firewall(quick: Quick) -> Iterator[None]:
    """Both hosts drop all packets of links that come in: none is refused, and none answered."""
    lab = quick.lab
    # RoCE's are UDP to a port of its own. Here the port for links is the only one of TCP that is dropped.
    protocol, port = {"rxe": ("17", "4791"), "siw": ("6", str(LINK_PORT))}[quick.kind]
    rule = f"protocol ip u32 match ip protocol {protocol} 0xff match ip dport {port} 0xffff action drop"
    for host in (1, 2):
        lab.out(host, "modprobe", "-a", "cls_u32", "act_gact", "sch_ingress")
        lab.out(host, "tc", "qdisc", "add", "dev", "lab0", "clsact")
        lab.out(host, "tc", "filter", "add", "dev", "lab0", "ingress", *rule.split())
    try:
        yield
    finally:
        for host in (1, 2):
            lab.out(host, "tc", "qdisc", "del", "dev", "lab0", "clsact")


def test_a_firewall_drops_link_requests(quick: Quick, native: Taken) -> None:
    with firewall(quick):
        quick.serve(*accelerated())
        judge(quick.measure(*accelerated()), native)
        expect_tcp(quick.counters())


@pytest.mark.parametrize("quick", ["siw"], indirect=True)
def test_a_failing_link_request_does_not_delay_the_program(quick: Quick) -> None:
    """Soft-iWARP's driver connects in the very call, which takes two minutes without an answer.

    Breaks if that holds up a fork, `netacc_ss`, or anything else that the library does for the process.
    """
    with firewall(quick):
        quick.serve(*accelerated())
        netacc_ss = str(binaries() / "netacc_ss")
        command = (sys.executable, VAIN, SERVER, str(PORT), str(LINK_PORT), netacc_ss)
        reported = quick.lab.out(2, *accelerated(), *command)
        assert reported.split("\n") == ["forked", "counted", "still asking", ""]
        quick.end()
