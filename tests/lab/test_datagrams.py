"""UDP between hosts: flows of datagrams on links, and peers that are not accelerated."""

from __future__ import annotations

import json
import sys

import pytest

from tests.apps.lib.paths import REPO, binaries
from tests.lab.lib import COMMAND_SECONDS, UpLab, attempts, line_from, whole_wire

SERVER, PORT = "10.99.0.1", 7100
BURSTS = 60
ACCELERATED = str(binaries() / "netacc_run")

Counts = dict[str, int]


def converse(lab: UpLab, way: str, number: int, accelerated: tuple[bool, bool]) -> tuple[Counts, Counts]:
    """A server that receives in one way, and a client that compares the answers; the counters of both."""

    def command(at: int, program: str, *arguments: str) -> list[str]:
        run = [ACCELERATED] if accelerated[at] else []
        stats = f"NETACC_EXIT_STATS=/tmp/datagrams-{at}"
        python = [sys.executable, "-m", f"tests.apps.programs.{program}"]
        return ["env", f"PYTHONPATH={REPO}", stats, *run, *python, *arguments]

    def counts(at: int) -> Counts:
        if not accelerated[at]:
            return {}
        path = f"/tmp/datagrams-{at}"
        counters: Counts = json.loads(lab.out(at + 1, "sh", "-c", f"cat {path}; rm {path}"))["cnt"]
        return counters

    port = str(PORT + number)
    server = lab.start(1, *command(0, "datagram_server", SERVER, port, way))
    assert line_from(server.stdout) == "ready\n"
    with whole_wire(lab):
        lab.out(2, *command(1, "datagram_client", SERVER, port, str(BURSTS), "connected", "any"))
        printed, _ = server.communicate(timeout=COMMAND_SECONDS)
    # The client's, and its last word: nothing of the library's was among them.
    assert printed.splitlines() == [f"answered {sum(1 if b % 50 == 49 else 16 for b in range(BURSTS)) + 1}"]
    return counts(0), counts(1)


def until_on_links(lab: UpLab, way: str) -> None:
    for number in attempts():
        ends = converse(lab, way, number, (True, True))
        for counters in ends:
            assert counters["violations"] == 0
            assert counters["datagram_flows"] <= 2
        # A receiver that sleeps whenever it has received gets all by the kernel.
        if all(counters["datagrams_received_link"] > 0 for counters in ends):
            return
    pytest.fail("no datagrams took the link")


def test_datagrams_take_links(pair: UpLab) -> None:
    """Breaks if no flow is made or used, if a program is told of a proof, or if a datagram is lost."""
    until_on_links(pair, "edge")


def test_a_program_with_little_room_takes_links(siw: UpLab) -> None:
    """Breaks if a program that receives two bytes sees a part of a proof, or its flow is never proven."""
    until_on_links(siw, "peeking")


@pytest.mark.parametrize("accelerated", [(True, False), (False, True)], ids=["server", "client"])
def test_a_plain_peer_sees_datagrams_only(siw: UpLab, accelerated: tuple[bool, bool]) -> None:
    """Breaks if anything of the library's arrives at a socket of a program that does not have it."""
    ends = converse(siw, "blocking", 90, accelerated)
    assert [counters.get("datagram_flows", 0) for counters in ends] == [0, 0]
