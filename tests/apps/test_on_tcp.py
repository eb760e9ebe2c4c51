"""Calls on a connection that stays on TCP do what they do in the kernel, also where its first attempt fails
or moves only a part."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.apps.lib.compiling import compile_program
from tests.apps.lib.paths import binaries
from tests.apps.system_calls import counted

pytestmark = pytest.mark.usefixtures("library")

#: In programs/on_tcp.c.
ROUNDS = 200
#: Of these, receives that look before they sleep, at most: one of sixteen by `AHEAD` in core/preload, and
#: some because the thread that sends was fast.
LOOKS = ROUNDS // 4


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(tmp_path_factory.mktemp("on-tcp"), "on_tcp", "-pthread")


def _run(command: list[str | Path]) -> tuple[int, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NACC_", "NETACC_"))}
    env = clean | {"NETACC_CONF": "/dev/null", "NACC_PROMOTE_AFTER": "1000000"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("case", "printed"),
    [
        ("low water", "6 \n"),
        ("empty", "0 \n4\n"),
        ("wait for all", "8 \n"),
        ("long", f"{4 << 20} \n"),
        ("full", "Resource temporarily unavailable\n1 \n"),
        ("nothing", "-1 Resource temporarily unavailable\n0\n"),
        ("rounds", f"{4 * ROUNDS} \n"),
        ("rounds elsewhere", f"{4 * ROUNDS} \n"),
        ("interrupted", "-1 Interrupted system call\n"),
        ("restarted", "4 \n"),
        ("too late", "-1 Resource temporarily unavailable\n"),
        ("closed under it", "4 \n"),
        ("ended under it", "0 \n"),
        ("reset", "-1 Connection reset by peer\n0 \n"),
    ],
)
def test_a_call_on_tcp_returns_what_the_kernel_returns(case: str, printed: str, program: Path) -> None:
    assert _run([program, case]) == (0, printed)
    assert _run([binaries() / "netacc_run", program, case]) == (0, printed)


def test_a_send_after_the_end_raises_sigpipe(program: Path) -> None:
    for launcher in ([], [binaries() / "netacc_run"]):
        assert _run([*launcher, program, "closed"]) == (-signal.SIGPIPE, "-1 Broken pipe\n")


def _receives(program: Path, tmp_path: Path, case: str) -> int:
    calls = counted(tmp_path, [binaries() / "netacc_run", program, case], NACC_PROMOTE_AFTER="1000000")
    return calls["recvfrom"]


def test_receives_of_a_thread_that_may_sleep_long_do_not_look_first(program: Path, tmp_path: Path) -> None:
    """A thread that only receives must be woken for a marker: one call sleeps, and another takes."""
    natively = counted(tmp_path, [program, "rounds elsewhere"])
    assert natively["recvfrom"] == ROUNDS
    assert _receives(program, tmp_path, "rounds elsewhere") <= 2 * ROUNDS + LOOKS


def test_a_receive_of_the_thread_that_sends_is_one_call(program: Path, tmp_path: Path) -> None:
    """Breaks if short connections, or those whose peer has no library, made two calls where TCP makes one."""
    # Some are the library's own.
    assert ROUNDS <= _receives(program, tmp_path, "rounds") <= ROUNDS + 5
