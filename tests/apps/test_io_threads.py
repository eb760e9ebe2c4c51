"""NACC_SOR_IO_THREADS: how many helper threads there are, and how much of the work each does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.apps.lib.lab import Lab
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.paths import binaries
from tests.apps.lib.process import Process

PROGRAM = [sys.executable, "-m", "tests.apps.programs.large_blocks"]
CONNECTIONS = 8
BLOCKS = 40


def helpers(process: Process) -> list[str]:
    """The names of the process's threads that are the library's."""
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    names = [(task / "comm").read_text().strip() for task in tasks]
    return sorted(name for name in names if name.startswith("netacc-"))


def counted(process: Process) -> dict[str, int]:
    command = [str(binaries() / "netacc_ss"), "-p", str(process.pid), "-s", "cnt", "--json"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    counts: dict[str, int] = json.loads(text)["cnt"]
    return counts


def by_helper(counts: dict[str, int], kind: str) -> list[int]:
    return [counts[f"helper_{number}_{kind}"] for number in range(16) if f"helper_{number}_{kind}" in counts]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("threads", "running"), [("0", 1), ("1", 1), ("2", 2), ("4", 4)])
def test_each_helper_thread_does_its_share(threads: str, running: int, lab: Lab) -> None:
    """Each has its share of the connections; those after the first copy parts of large blocks."""
    port, env = free_port(), {"NACC_SOR_IO_THREADS": threads}
    server = lab.start("server", [*PROGRAM, "serve", str(port)], accelerated=True, env=env)
    wait_listening(port, server)
    sender = [*PROGRAM, "send", str(port), str(CONNECTIONS), str(BLOCKS)]
    client = lab.start("client", sender, accelerated=True, env=env, interactive=True)
    client.wait_line("linked")
    assert helpers(client) == [f"netacc-{number}" for number in range(running)]
    promoted = by_helper(counted(client), "promotions")
    assert len(promoted) == running
    # Of eight connections with numbers in a row, each promoted at least once.
    assert all(count >= CONNECTIONS // running for count in promoted), promoted
    client.send_line("go on")
    client.wait_line("written")
    counts = counted(client)
    copied = by_helper(counts, "copied_bytes")
    # The first helper thread never copies. How much the others copy depends on the processors that are free.
    assert copied[0] == 0
    assert (sum(copied) > 0) == (running > 1), copied
    assert (counts["copies_shared"] > 0) == (running > 1)
    assert sum(copied) < counts["tx_bytes_link"] <= CONNECTIONS * (BLOCKS * ((1 << 20) + 8192) + 1000)
    client.send_line("go on")
    client.wait_line("right")
    assert client.wait() == 0
