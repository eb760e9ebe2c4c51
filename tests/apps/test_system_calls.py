"""On a link the kernel is needed only to sleep and to wake, on TCP as often as natively: strace counts."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.apps import system_calls
from tests.apps.lib import golang
from tests.apps.lib.compiling import compile_c
from tests.apps.lib.lab import Lab
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.paths import PROGRAMS, binaries
from tests.apps.lib.process import Process

pytestmark = pytest.mark.usefixtures("library")

#: Made by Go's scheduler, more or less often.
SCHEDULING = {
    "futex",
    "nanosleep",
    "clock_nanosleep",
    "sched_yield",
    "getpid",
    "tgkill",
    "rt_sigreturn",
    "madvise",
}
REQUESTS = 200
#: Round trips of datagrams.
TRIPS = 3000
#: On a busy machine all may be over before there is a flow.
ATTEMPTS = 5
MESSAGE = b"PING\r\n"
#: How a server waits for a request, and how many calls more than natively each request takes. A connection
#: may get a link while a thread waits for it. So a thread looks before it sleeps in `poll`.
MORE = {"Redis": 0, "Go": 0, "epoll": 0, "poll": 1, "select": 1, "read": 0}


def test_a_message_that_is_there_needs_no_system_call(tmp_path: Path) -> None:
    """The library's threads have calls of their own, a few in each second."""
    assert system_calls.of_round_trip(tmp_path, system_calls.CASES["awake"]) < 0.01


def test_two_sleepers_need_no_more_calls_than_to_sleep_and_to_wake(tmp_path: Path) -> None:
    """Each of two messages: the sender wakes, the receiver sleeps. TCP's own calls would be as many."""
    assert system_calls.of_round_trip(tmp_path, system_calls.CASES["asleep"]) < 4.5


def test_a_datagram_for_a_sleeper_needs_one_call(tmp_path: Path) -> None:
    """Breaks if a receiver that sleeps at once looks for a datagram before it blocks in the kernel's call."""
    program = [sys.executable, "-m", "tests.apps.programs.datagram_ping_pong", str(TRIPS)]
    # On one processor: then each end sleeps while the other one sends.
    command = ["taskset", "-c", str(min(os.sched_getaffinity(0))), str(binaries() / "netacc_run"), "-P", "0"]
    for attempt in range(ATTEMPTS):
        stats = tmp_path / f"stats-{attempt}"
        calls = system_calls.counted(tmp_path, [*command, *program], NETACC_EXIT_STATS=str(stats))
        ends = [json.loads(line)["cnt"] for line in stats.read_text().splitlines()]
        # Without flows it is the kernel's socket in any case.
        if [end["datagram_flows"] for end in ends] == [2, 2] and sum(
            end["waits_slept"] for end in ends
        ) > TRIPS:
            break
    else:
        pytest.fail(f"the ends have no flows, or do not sleep: {ends}")
    received = sum(end["datagrams_received_kernel"] for end in ends)
    assert calls["recvmsg"] + calls["recvfrom"] - received < TRIPS / 10, (calls, received)


@pytest.mark.parametrize("way", MORE)
def test_a_connection_on_tcp_needs_the_calls_of_the_kernel(way: str, lab: Lab) -> None:
    """The client has no library. Breaks if a wait without links looks first, or more often."""
    native, accelerated = (_calls_of_request(way, lab, accelerated=after) for after in (False, True))
    assert abs(accelerated - native - MORE[way]) < 0.4, (native, accelerated)


def _calls_of_request(way: str, lab: Lab, *, accelerated: bool) -> float:
    """System calls of a server's own threads, with one request after the other on one connection."""
    port = free_port()
    words = _server(way, port, lab.folder)
    server = lab.start("server", words, accelerated=accelerated, env={"GOMAXPROCS": "1"})
    wait_listening(port, server)
    folder = lab.folder / f"trace-{accelerated}"
    folder.mkdir()
    with socket.create_connection(("127.0.0.1", port)) as client:
        for _ in range(50):
            _exchange(client, server)
        helpers = {task.name for task in _tasks(server) if (task / "comm").read_text().startswith("netacc-")}
        strace: list[str | Path] = ["strace", "-ff", "-o", folder / "trace", "-p", str(server.pid)]
        with subprocess.Popen(strace, stderr=subprocess.PIPE, text=True) as tracing:
            assert tracing.stderr is not None
            attached = tracing.stderr.readline()
            assert "attached" in attached, attached
            for _ in range(REQUESTS):
                _exchange(client, server)
            tracing.send_signal(signal.SIGINT)
            tracing.communicate(timeout=60)
    server.stop()
    counted: Counter[str] = Counter()
    for trace in folder.iterdir():
        if trace.suffix.removeprefix(".") not in helpers:
            lines = trace.read_text(errors="replace").splitlines()
            counted.update(line.split("(")[0] for line in lines if "(" in line)
    lab.remark(str(counted))
    return sum(count for call, count in counted.items() if call not in SCHEDULING) / REQUESTS


def _tasks(server: Process) -> list[Path]:
    return list(Path(f"/proc/{server.pid}/task").iterdir())


def _exchange(client: socket.socket, server: Process) -> None:
    """A request, once the server waits for it, and the answer."""
    while any((task / "stat").read_text().rsplit(")", 1)[1].split()[0] != "S" for task in _tasks(server)):
        os.sched_yield()
    client.sendall(MESSAGE)
    assert client.recv(100)


def _server(way: str, port: int, folder: Path) -> list[str | Path]:
    program = folder / "server"
    match way:
        case "Redis":
            return ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no", "--hz", "1"]
        case "Go":
            golang.build(program, golang.MODES["go"])
            return [program, "serve", str(port)]
        case "read":
            compile_c(program, PROGRAMS / "static/echo.c", "-static", "-pthread", compiler="musl-gcc")
            return [program, "serve", str(port)]
        case _:
            return [sys.executable, "-m", "tests.apps.programs.echo_by", way, str(port)]
