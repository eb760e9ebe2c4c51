"""What it takes to answer `netacc_ss`: priority over other programs, and few bytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.apps.lib.paths import binaries

pytestmark = pytest.mark.usefixtures("library")

#: Has connections to itself, and asks `netacc_ss` about itself.
PROGRAM = """
import os, socket, subprocess, sys
listener = socket.create_server(("127.0.0.1", 0))
ends = []
for _ in range(int(sys.argv[3])):
    ends += [socket.create_connection(listener.getsockname()), listener.accept()[0]]
del os.environ["LD_PRELOAD"]
words = [sys.argv[1], "-p", str(os.getpid()), "-s", sys.argv[2]]
subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
"""


def traced(trace: Path, calls: str, sections: str, connections: int) -> list[str]:
    """The calls of the program and of netacc_ss."""
    strace: list[str | Path] = ["strace", "-f", "-o", trace, "-e", f"trace={calls}", "-e", "signal=none"]
    asked: list[str | Path] = [binaries() / "netacc_ss", sections, str(connections)]
    program: list[str | Path] = [sys.executable, "-c", PROGRAM, *asked]
    env = {"PATH": "/usr/bin:/bin", "NETACC_CONF": "/dev/null"}
    subprocess.run([*strace, binaries() / "netacc_run", *program], env=env, check=True, timeout=60)
    return [line.split(maxsplit=1)[1] for line in trace.read_text().splitlines() if "(" in line]


def test_both_ends_run_before_others(tmp_path: Path) -> None:
    """Breaks if a busy machine spread the milliseconds that an answer takes over a tenth of a second."""
    calls = traced(tmp_path / "trace", "setpriority", "cnt", 0)
    assert [call.split("=")[0].strip() for call in calls] == ["setpriority(PRIO_PROCESS, 0, -20)"] * 2


def test_an_answer_has_few_bytes_for_each_connection(tmp_path: Path) -> None:
    """Breaks if the names of all fields come with each connection: that took 227 bytes an end here."""

    def received(connections: int) -> int:
        calls = traced(tmp_path / "trace", "recvfrom", "sock", connections)
        results = [call.rsplit("= ", 1)[1].split()[0] for call in calls]
        return sum(int(result) for result in results if result.isdigit())

    few, many = received(50), received(250)
    assert (many - few) / 400 <= 120
