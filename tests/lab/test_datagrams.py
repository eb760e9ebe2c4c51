"""UDP between hosts: flows of datagrams on links, and peers that are not accelerated."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings

from tests.apps.lib.paths import REPO, binaries
from tests.apps.programs.datagram_leaving import NUMBERS
from tests.lab.lib import COMMAND_SECONDS, UpLab, attempts, line_from, whole_wire
from tests.properties.datagram_world import Process, Step, World, difference
from tests.properties.test_datagrams import programs

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
            assert counters["datagram_flows"] <= 2, counters
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


#: A link is made in less.
WARM_MS, ROUNDS = 400, 10
LEAVING = ["close", "exit", "exec", "fork", "connect"]


def all_counts(lab: UpLab, host: int, path: str) -> list[Counts]:
    """Of the processes of a host that have ended, which left their counters there."""
    lines = lab.out(host, "sh", "-c", f"cat {path}; rm {path}").splitlines()
    return [json.loads(line)["cnt"] for line in lines]


def leave(lab: UpLab, number: int, how: str) -> int:
    """A receiver that sleeps, and senders that end right after their last datagram: those that came back."""
    stats, port = f"/tmp/leaving-{number}", str(PORT + number)
    python = [ACCELERATED, sys.executable, "-m", "tests.apps.programs.datagram_leaving"]
    command = ["env", f"PYTHONPATH={REPO}", f"NETACC_EXIT_STATS={stats}", *python]
    receiver = lab.start(1, *command, "receive", SERVER, port, how, str(ROUNDS))
    assert line_from(receiver.stdout) == "ready\n"
    lab.out(2, *command, "send", SERVER, port, str(WARM_MS), str(ROUNDS), *LEAVING)
    printed, _ = receiver.communicate(timeout=COMMAND_SECONDS)
    assert printed.splitlines() == [f"received {ROUNDS * NUMBERS}"]
    counts = [*all_counts(lab, 1, stats), *all_counts(lab, 2, stats)]
    assert sum(counters["violations"] for counters in counts) == 0
    return sum(counters["datagrams_taken_back"] for counters in counts)


@pytest.mark.parametrize("how", ["recv", "epoll"])
def test_a_sender_that_ends_at_once_loses_nothing(siw: UpLab, how: str) -> None:
    """Breaks if datagrams are lost that are under way on a link to a receiver that has just fallen asleep."""
    if not any(leave(siw, 100 + number, how) > 0 for number in attempts()):
        pytest.fail("no datagram was on the link")


@pytest.mark.parametrize("way", ["fork", "exec", "rights"])
def test_a_new_holder_sees_datagrams_only(siw: UpLab, way: str) -> None:
    """Breaks if anything of the library's arrives at a socket, and so at its next holder."""
    python = [ACCELERATED, sys.executable, "-m", "tests.apps.programs.datagram_new_holders"]
    port = str(PORT + 200 + ["fork", "exec", "rights"].index(way))
    command = ["env", f"PYTHONPATH={REPO}", *python]
    receiver = siw.start(1, *command, "receive", SERVER, port, way)
    assert line_from(receiver.stdout) == "ready\n"
    sender = siw.start(2, *command, "send", SERVER, port)
    printed, _ = receiver.communicate(timeout=COMMAND_SECONDS)
    assert printed == "missing 0, foreign 0\n"
    assert sender.wait(COMMAND_SECONDS) == 0


@pytest.mark.parametrize("accelerated", [(True, False), (False, True)], ids=["server", "client"])
def test_a_plain_peer_sees_datagrams_only(siw: UpLab, accelerated: tuple[bool, bool]) -> None:
    """Breaks if anything of the library's arrives at a socket of a program that does not have it."""
    ends = converse(siw, "blocking", 90, accelerated)
    assert [counters.get("datagram_flows", 0) for counters in ends] == [0, 0]


STOP_FILE = "/tmp/udp-steady.stop"


@pytest.mark.parametrize("host", [1, 2])
def test_flows_come_back_after_their_links_have_died(siw: UpLab, host: int) -> None:
    """Breaks if datagrams stay with the kernel once the TCP connections beneath their links were aborted."""
    siw.out(2, "rm", "-f", STOP_FILE)
    run = [ACCELERATED, sys.executable, str(REPO / "tests/lab/programs/udp_steady.py")]
    port = str(PORT + 300 + host)
    ends = [siw.start(1, *run, "serve", SERVER, port)]
    pids = [line_from(ends[0].stdout).strip()]
    ends.append(siw.start(2, *run, "ask", SERVER, port, STOP_FILE))
    pids.append(line_from(ends[1].stdout).strip())

    def have_flows(count: int) -> None:
        for at, pid in enumerate(pids, 1):
            shown = f"{binaries()}/netacc_ss -p {pid} -s cnt | awk '/^datagram_flows/ {{ print $2 }}'"
            siw.wait_for(at, f'[ "$({shown})" -ge {count} ]')

    # One in each direction, each on a link of its own.
    have_flows(2)
    siw.out(host, "modprobe", "tcp_diag")
    killed = siw.out(host, "ss", "-H", "-t", "-K", "state", "established", "src", f"10.99.0.{host}")
    # Those of an earlier test may be among them.
    assert len(killed.splitlines()) >= 2, killed
    have_flows(4)
    siw.out(2, "touch", STOP_FILE)
    assert ends[1].wait(COMMAND_SECONDS) == 0


#: Of generated programs: for a datagram to come, also one that comes back first.
PATIENCE_MS = 60
#: A difference that does not come back is one of timing.
RUNS = 3
#: Of the test that is `long`, for each device.
MANY = int(os.environ.get("NETACC_LAB_PROGRAMS", "100"))
#: Of the hosts' processes, for one program: far above any honest run.
PROGRAM_SECONDS = 30


def world(lab: UpLab, accelerated: bool, seconds: int) -> World:
    """A process on each host, for generated programs."""
    reach = [lab.argv(host, [], seconds) for host in (1, 2)]
    stats = [Path(f"/tmp/generated-{host}") for host in (1, 2)]
    addresses = [(f"10.99.0.{host}", f"fd99::{host}") for host in (1, 2)]
    hosts = zip(stats, reach, addresses, strict=True)
    return World([Process(accelerated, file, way, at, PATIENCE_MS) for file, way, at in hosts])


def generated(lab: UpLab, examples: int) -> None:
    """Compares programs of UDP calls on two hosts with the kernel's sockets there."""
    both = [world(lab, accelerated, examples * PROGRAM_SECONDS) for accelerated in (False, True)]

    @settings(max_examples=examples, derandomize=True, deadline=None, database=None)
    @given(program=programs(between_hosts=True))
    def as_the_kernels(program: tuple[list[str], list[Step]]) -> None:
        for _ in range(RUNS):
            found = difference(both[0].run(*program), both[1].run(*program), ordered=False)
            if found is None:
                return
        pytest.fail(f"{found}\nprogram: {program}")

    as_the_kernels()
    for each in both:
        each.end()
    counted = "".join(
        lab.out(host, "sh", "-c", "cat /tmp/generated-*; rm /tmp/generated-*") for host in (1, 2)
    )
    counts = [json.loads(line)["cnt"] for line in counted.splitlines()]
    assert sum(count["violations"] for count in counts) == 0
    assert sum(count["datagrams_received_link"] for count in counts) > 0


def test_generated_programs(siw: UpLab) -> None:
    """Breaks if a datagram between hosts is lost, doubled or changed, or a call answers otherwise."""
    generated(siw, 6)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_generated_programs(pair: UpLab) -> None:
    with whole_wire(pair):
        generated(pair, MANY)
