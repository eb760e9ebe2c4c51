"""The choice between spinning and sleeping, of a whole program: counted by the library, not timed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.apps.lib.compiling import compile_program
from tests.apps.lib.paths import binaries

pytestmark = pytest.mark.usefixtures("library")

ROUND_TRIPS = 60_000
#: Trials of the way that loses, and the time until the first of them is over.
SPINS_ON_ONE_PROCESSOR = 0.2


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(tmp_path_factory.mktemp("waiting"), "ping_pong")


def waits(folder: Path, command: list[str | Path]) -> list[tuple[int, int]]:
    """How many waits of each of the two processes began with a spin, and how many without."""
    counted = folder / "counted"
    env = {"PATH": "/usr/bin:/bin", "NETACC_CONF": "/dev/null", "NETACC_EXIT_STATS": str(counted)}
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL, timeout=300)
    lines = [json.loads(line)["cnt"] for line in counted.read_text().splitlines()]
    assert len(lines) == 2
    assert all(line["tx_bytes_link"] >= 0.9 * 64 * ROUND_TRIPS for line in lines)
    return [(line["waits_spun"], line["waits_slept"]) for line in lines]


def spins_rarely(folder: Path, program: Path, words: list[str]) -> bool:
    """Whether both processes, on one processor, begin few waits with a spin."""
    processor = str(min(os.sched_getaffinity(0)))
    command: list[str | Path] = ["taskset", "-c", processor, *words, binaries() / "netacc_run"]
    command += [program, str(ROUND_TRIPS)]
    return all(
        spun + slept >= ROUND_TRIPS / 4 and spun <= SPINS_ON_ONE_PROCESSOR * (spun + slept)
        for spun, slept in waits(folder, command)
    )


def test_two_processes_on_one_processor_do_not_spin(program: Path, tmp_path: Path) -> None:
    """Breaks if a spinner stands in the way of its own peer."""
    assert spins_rarely(tmp_path, program, [])


def test_real_time_processes_on_one_processor_do_not_spin(
    program: Path, tmp_path: Path, need_condition: Callable[[str, bool], None]
) -> None:
    """Breaks if they wait for each other: a peer of the same priority runs only once the spinner sleeps."""
    need_condition("root", os.geteuid() == 0)
    assert spins_rarely(tmp_path, program, ["chrt", "-f", "1"])


#: Two processes that answer each other in event loops. Each prints its id, and its calls of epoll_wait.
EVENT_LOOPS = """
import os, select, socket

listener = socket.create_server(("127.0.0.1", 0))
first = os.fork() == 0
connection = socket.create_connection(listener.getsockname()) if first else listener.accept()[0]
connection.setblocking(False)
epoll = select.epoll()
epoll.register(connection, select.EPOLLIN)
calls = 0
for turn in range(2000):
    if first:
        connection.send(bytes(64))
    while not epoll.poll():
        pass
    calls += 1
    assert len(connection.recv(64)) == 64
    if not first:
        connection.send(bytes(64))
# Nothing more comes, so these return at once.
for _ in range(3):
    assert not epoll.poll(0)
    calls += 1
os.write(1, f"{os.getpid()} {calls}\\n".encode())
if first:
    # It ends with the instance open, by two names. The other process closes its own before its end.
    os.dup(epoll.fileno())
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize("spins", [True, False])
def test_calls_of_epoll_wait_and_spins_are_counted(tmp_path: Path, spins: bool) -> None:
    """Breaks if a call is not counted, or time is spun that no wait has spun."""
    counted = tmp_path / "counted"
    env = {"PATH": "/usr/bin:/bin", "NETACC_CONF": "/dev/null", "NETACC_EXIT_STATS": str(counted)}
    env |= {} if spins else {"NACC_POLL_MS": "0"}
    command: list[str | Path] = [binaries() / "netacc_run", sys.executable, "-c", EVENT_LOOPS]
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True, timeout=300)
    called = {int(pid): int(calls) for pid, calls in map(str.split, done.stdout.splitlines())}
    ends = [json.loads(line) for line in counted.read_text().splitlines()]
    assert {end["pid"]: end["cnt"]["epoll_waits"] for end in ends} == called
    for end in ends:
        assert end["cnt"]["tx_bytes_link"] > 0
        assert (end["cnt"]["spun_ns"] > 0) == (end["cnt"]["waits_spun"] > 0) == spins
