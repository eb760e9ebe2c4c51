"""Many connections of one process: those of a crowd get their links while they are made, and a connection
that asks before its peer's program has accepted it gets its link all the same. Shown by counters; nothing
depends on time."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apps.lib.compiling import compile_program
from tests.apps.lib.paths import binaries

pytestmark = pytest.mark.usefixtures("library")

#: `CROWD` in core/preload.
CROWD = 64
MANY = 200
MESSAGE = 64


class Program:
    """`programs/crowd.c`, at one of its steps."""

    def __init__(self, built: Path, **settings: str) -> None:
        env = {"PATH": "/usr/bin:/bin", "NETACC_CONF": "/dev/null", **settings}
        command = [binaries() / "netacc_run", built]
        self.process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._wait()

    def _wait(self) -> None:
        assert self.process.stdout
        assert self.process.stdout.readline() == "done\n"

    def step(self, *words: object) -> None:
        assert self.process.stdin
        print(*words, file=self.process.stdin, flush=True)
        self._wait()

    def count(self, name: str) -> int:
        pid = str(self.process.pid)
        command: list[str | Path] = [binaries() / "netacc_ss", "-p", pid, "-s", "cnt", "--json"]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return int(json.loads(shown.stdout)["cnt"][name])

    def wait_count(self, name: str, wanted: int) -> None:
        """The program does nothing meanwhile: the library's own thread makes the links."""
        end = time.monotonic() + 60
        while (seen := self.count(name)) < wanted:
            assert time.monotonic() < end, f"{name}: {seen} of {wanted}"
            time.sleep(0.05)  # leaves the processor to the helper

    def end(self) -> None:
        self.process.kill()
        self.process.wait(20)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(tmp_path_factory.mktemp("crowd"), "crowd")


@pytest.fixture
def program(built: Path, request: pytest.FixtureRequest) -> Iterator[Program]:
    program = Program(built, **getattr(request, "param", {}))
    yield program
    program.end()


@pytest.mark.parametrize(
    "program",
    [{"NACC_PROMOTE_AFTER": "0"}, {"NACC_PROMOTE_AFTER": "1"}, {"NACC_FAST_CONNECT": "1"}],
    indirect=True,
)
def test_a_connection_that_asks_before_it_is_accepted_gets_its_link(program: Program) -> None:
    """Breaks if the connection stayed on TCP until its program has used it eight times more."""
    few = 10
    program.step("connect", few)
    program.step("request")
    program.wait_count("helper_0_promotions", few)
    assert program.count("opens_sent") == 0
    program.step("accept")
    program.wait_count("opens_accepted", few)
    program.step("serve")
    program.wait_count("streams_promoted", 2 * few)
    before = program.count("tx_bytes_tcp")
    program.step("pass")
    assert program.count("tx_bytes_tcp") == before


def test_the_first_requests_of_a_crowd_are_on_links(program: Program) -> None:
    """Breaks if the promotions of a crowd began only when its connections are used."""
    program.step("connect", MANY)
    program.step("accept")
    program.wait_count("streams_promoted", 2 * MANY)
    program.step("pass")
    assert program.count("tx_bytes_tcp") == 0
    assert program.count("tx_bytes_link") == 2 * MESSAGE * MANY


@pytest.mark.parametrize("settings", [{}, {"NACC_PROMOTE_AFTER": "1000"}, {"NACC_CONN_TCP_FIRST": "1"}])
def test_others_begin_on_tcp(built: Path, settings: dict[str, str]) -> None:
    """Breaks if a few connections, or those that the user wants on TCP first, got links before their use."""
    count = MANY if settings else CROWD - 1
    program = Program(built, **settings)
    program.step("connect", count)
    program.step("accept")
    program.step("request")
    assert (program.count("opens_sent"), program.count("tx_bytes_tcp")) == (0, MESSAGE * count)
    program.end()


def test_a_service_with_short_connections_has_no_crowds(program: Program) -> None:
    """Breaks if a program that makes many connections at a time, with one request on each, paid for links
    each time."""
    for turn in range(3):
        program.step("connect", MANY)
        program.step("accept")
        if turn == 0:
            program.wait_count("streams_promoted", 2 * MANY)
        program.step("pass")
        program.step("close")
    assert program.count("opens_sent") == MANY
    assert program.count("tx_bytes_tcp") == 2 * 2 * MESSAGE * MANY


def test_the_next_crowd_has_links_too(program: Program) -> None:
    """Breaks if a process had one crowd in its life."""
    for turn in (1, 2):
        program.step("connect", MANY)
        program.step("accept")
        program.wait_count("streams_promoted", 2 * MANY * turn)
        for _ in range(20):
            program.step("pass")
        program.step("close")
    assert program.count("tx_bytes_tcp") == 0
