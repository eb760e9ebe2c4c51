"""How many links are made for how many connections: sharing, and the cache of empty ones."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.apps.lib.paths import REPO, binaries
from tests.lab.lib import ERDMA, UpLab, attempts, down, line_from, up

ECHO = str(REPO / "tests/lab/programs/echo.py")
CROWD = str(REPO / "tests/lab/programs/crowd.py")
SERVER, PORT = "10.99.0.1", "7003"


def counted(lab: UpLab, server: str) -> tuple[int, int]:
    """Links that a server has had, and connections that got onto one."""
    client_command = (str(binaries() / "netacc_ss"), "-p", server, "-s", "cnt", "--json")
    counters = json.loads(lab.out(1, *client_command))["cnt"]
    return counters.get("links_established", 0), counters.get("streams_promoted", 0)


def links_made(lab: UpLab, connections: int, rounds: int, **settings: str) -> tuple[int, int]:
    """Links that a client had made for its connections; three quarters of those got onto one."""
    variables = [f"{key}={value}" for key, value in settings.items()]
    run = ["env", *variables, str(binaries() / "netacc_run"), sys.executable, ECHO]
    server = lab.start(1, *run, "threaded", SERVER, PORT)
    words = line_from(server.stdout).split()
    assert words[:2] == ["listening", "as"]
    links, streams = 0, 0
    for number in attempts():
        # Longer each time, because the time to get onto a link is not known.
        messages = str(60 << min(number, 4))
        answers = lab.out(2, *run, "ask", SERVER, PORT, messages, str(connections), str(rounds))
        assert answers == f"{messages} answers as asked\n"
        before = links, streams
        links, streams = counted(lab, words[2])
        if streams - before[1] >= 3 * connections * rounds / 4:
            break
    else:
        pytest.fail(f"of {connections * rounds} connections {streams - before[1]} got onto links")
    lab.out(1, "kill", "-KILL", words[2])
    return links - before[0], streams - before[1]


def test_streams_share_links_and_links_are_used_again(iwarp: UpLab) -> None:
    links, streams = links_made(iwarp, 4, 3, NACC_SOR_CONN_PER_QP="4")
    # Those of a round share one; one more if a link was not empty yet when the next round began.
    assert links <= 3, f"{links} links for {streams} streams"


def test_connections_that_end_at_once_do_not_block_the_listener(iwarp: UpLab) -> None:
    """Breaks if a client that connects to the port of links, and leaves again, ends it for all others."""
    run = [str(binaries() / "netacc_run"), sys.executable, ECHO]
    server = iwarp.start(1, *run, "threaded", SERVER, PORT)
    words = line_from(server.stdout).split()

    def reach_a_link() -> None:
        before = counted(iwarp, words[2])
        for number in attempts():
            iwarp.out(2, *run, "ask", SERVER, PORT, str(60 << min(number, 4)), "1", "1")
            if counted(iwarp, words[2]) > before:
                return
        pytest.fail("no connection got onto a link")

    reach_a_link()
    port = int(PORT) + 20000
    knock = f"import socket\nfor _ in range(300): socket.create_connection(({SERVER!r}, {port})).close()"
    iwarp.out(2, sys.executable, "-c", knock)
    reach_a_link()
    iwarp.out(1, "kill", "-KILL", words[2])


@pytest.mark.long
def test_many_streams_get_onto_one_link_at_once(iwarp: UpLab) -> None:
    """Breaks if OPENs wait for other messages once a link's control slots are used: fifteen got there."""
    connections = 100
    settings = ("NACC_SOR_CONN_PER_QP=4096", "NACC_RING_SIZE=4096", "NACC_SOR_MSG_SIZE=2048")
    run = ["env", *settings, str(binaries() / "netacc_run"), sys.executable, CROWD]
    server = iwarp.start(1, *run, "serve", SERVER, "7011")
    words = line_from(server.stdout).split()
    assert words[:2] == ["listening", "as"]
    streams = 0
    for number in attempts():
        rounds = 2 << min(number, 4)
        answers = iwarp.out(2, *run, "ask", SERVER, "7011", str(connections), str(rounds))
        assert answers == f"{connections * (rounds + 2)} answers as asked\n"
        before, streams = streams, counted(iwarp, words[2])[1]
        if streams - before >= connections / 2:
            break
    else:
        pytest.fail(f"of {connections} connections {streams - before} got onto links")
    iwarp.out(1, "kill", "-KILL", words[2])


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("device", ["rxe", "siw", "erdma"])
def test_ten_thousand_streams_share_three_links(device: str) -> None:
    """Breaks if each wait of one stream polls all streams of its link: a host did nothing else.

    The burst at the end is more than the server takes in the patience of a link in emulation, so some streams
    leave it then. No byte is lost, and no link.
    """
    connections, seconds = 10_000, 900
    kept = "/tmp/crowd.stats"
    settings = ("NACC_SOR_CONN_PER_QP=4096", "NACC_RING_SIZE=4096", "NACC_SOR_MSG_SIZE=2048")
    run = [
        "env",
        *settings,
        f"NETACC_EXIT_STATS={kept}",
        str(binaries() / "netacc_run"),
        sys.executable,
        CROWD,
    ]
    name = f"crowd-{device}-{os.getpid()}"
    kind = ERDMA if device == "erdma" else ("--rdma", device)
    lab = up(name, "--hosts", "2", *kind, "--memory", "1536")
    try:
        server = lab.start(1, *run, "serve", SERVER, "7012", seconds=seconds)
        assert line_from(server.stdout).startswith("listening as ")
        client = lab.start(2, *run, "ask", SERVER, "7012", str(connections), "1", seconds=seconds)
        answers, _ = client.communicate()
        assert answers == f"{3 * connections} answers as asked\n"
        counters = json.loads(lab.out(2, "cat", kept))["cnt"]
        print(device, counters)
    finally:
        lab.end_commands()
        down(name)
    assert counters["streams_promoted"] >= 0.95 * connections, counters
    assert (counters["links_established"], counters["links_failed"], counters["violations"]) == (3, 0, 0), (
        counters
    )


@contextmanager
def in_turn(lab: UpLab, connections: int, **settings: str) -> Iterator[str]:
    """A server of one thread, which has gone from one connection to the next. All are open, and on links."""
    variables = [f"{key}={value}" for key, value in settings.items()]
    run = ["env", *variables, str(binaries() / "netacc_run"), sys.executable, ECHO]

    def start(host: int, *command: str) -> str:
        first, _, process = line_from(lab.start(host, *run, *command).stdout).strip().rpartition(" as ")
        assert first in {"listening", "answered"}
        return process

    server = start(1, "answer-in-turn", SERVER, "7009")
    streams = 0
    for number in attempts():
        client = start(2, "ask-in-turn", SERVER, "7009", str(100 << min(number, 4)), str(connections))
        before, streams = streams, counted(lab, server)[1]
        if streams - before >= connections:
            break
        lab.out(2, "kill", client)
    else:
        pytest.fail(f"of {connections} connections {streams - before} got onto links")
    yield server
    lab.out(2, "kill", client)
    lab.out(1, "kill", server)


def test_a_shared_link_that_the_program_does_not_poll_takes_streams(iwarp: UpLab) -> None:
    """The acceptor blocks on the very connection that is to get onto the link of the one before."""
    with in_turn(iwarp, 3, NACC_SOR_CONN_PER_QP="4") as server:
        assert counted(iwarp, server)[0] >= 1


def test_memory_is_registered_in_the_steps_that_are_set(iwarp: UpLab) -> None:
    step = 4 << 20
    steps = {"NACC_RDMA_MR_MIN_INC_SIZE": str(step), "NACC_RDMA_MR_MAX_INC_SIZE": str(2 * step)}
    with in_turn(iwarp, 3, NACC_SOR_CONN_PER_QP="4", **steps) as server:
        threads = iwarp.out(1, "ls", f"/proc/{server}/task").split()
        registered = json.loads(iwarp.out(1, "rdma", "-j", "-d", "resource", "show", "mr"))
    lengths = {entry["mrlen"] for entry in registered if str(entry.get("pid")) in threads}
    assert lengths == {step}, "each link has all that its streams need in one step"


def test_a_link_of_one_stream_has_two_registrations(iwarp: UpLab) -> None:
    """As many as eRDMA has for a queue pair: for receives, the link and the stream."""
    with in_turn(iwarp, 3) as server:
        threads = iwarp.out(1, "ls", f"/proc/{server}/task").split()
        registered = json.loads(iwarp.out(1, "rdma", "-j", "-d", "resource", "show", "mr"))
    domains = Counter(entry["pdn"] for entry in registered if str(entry.get("pid")) in threads)
    assert domains and set(domains.values()) == {2}, domains


@pytest.mark.long
def test_a_link_that_is_not_kept_is_made_again(iwarp: UpLab) -> None:
    kept, streams = links_made(iwarp, 1, 5)
    assert kept <= 2, f"{kept} links for {streams} streams, one after the other"
    anew, streams = links_made(iwarp, 1, 5, NACC_EMPTY_QP_EXPIRE_MS="0")
    assert anew >= streams
