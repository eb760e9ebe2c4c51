"""The memory of idle connections: of each process, what it has written and its part of what it shares."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.apps.lib import counters
from tests.apps.lib.compiling import compile_program
from tests.apps.lib.lab import Lab
from tests.apps.lib.process import Process

pytestmark = pytest.mark.usefixtures("library")

KIB = 1024
#: Of each side, for a connection.
MOST = 8 * KIB
#: Of fewer, each has more of the memory that the library takes once.
CONNECTIONS = 1400
#: Streams whose rings are as long as configured, 256 KiB: a request that fills a good part of one.
LARGE = 160 * KIB
#: An idle stream gives memory back after a second.
PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(tmp_path_factory.mktemp("idle"), "idle")


def memory(process: Process) -> int:
    """As `netacc bench many` counts it: half of what two processes share is each one's."""
    rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    sizes = [line.split()[1] for line in rollup if line.startswith(("Pss_Anon:", "Pss_Shmem:"))]
    return KIB * sum(int(size) for size in sizes)


@dataclass
class Ends:
    """Both ends of used connections, and the memory that each had before it had connections."""

    sides: dict[str, Process]
    before: dict[str, int]
    connections: int

    def each(self) -> dict[str, float]:
        """Bytes for each connection."""
        return {
            name: (memory(side) - self.before[name]) / self.connections for name, side in self.sides.items()
        }


def use(lab: Lab, program: Path, connections: int, large: int) -> Ends:
    """Connections that have carried requests of 64 bytes, and may each carry one of `large` bytes."""
    server = lab.start(
        "idle-server", [program, "server", str(connections)], accelerated=True, interactive=True
    )
    port = server.wait_line("ready").split()[1]
    argv: list[str | Path] = [program, "client", str(connections), port, str(large)]
    client = lab.start("idle-client", argv, accelerated=True, interactive=True)
    client.wait_line("ready")
    sides = {"server": server, "client": client}
    before = {name: memory(side) for name, side in sides.items()}
    client.send_line("")
    client.wait_line("idle")
    for side in sides.values():
        assert counters.totals(side).streams_promoted == connections
    return Ends(sides, before, connections)


def test_an_idle_connection_takes_little_memory(lab: Lab, program: Path) -> None:
    each = use(lab, program, CONNECTIONS, 0).each()
    lab.remark(f"{each}")
    assert max(each.values()) <= MOST, each


def test_rings_shrink_when_their_connections_are_idle(lab: Lab, program: Path) -> None:
    ends = use(lab, program, 100, LARGE)
    server, client = ends.sides["server"], ends.sides["client"]
    # All bytes are in the rings at once.
    os.kill(server.pid, signal.SIGSTOP)
    client.send_line("")
    client.wait_line("sent")
    used = ends.each()
    # The server has not touched them.
    assert max(used.values()) > LARGE / 2, used
    os.kill(server.pid, signal.SIGCONT)
    client.send_line("")
    deadline = time.monotonic() + PATIENCE_S
    while max(ends.each().values()) > LARGE / 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    each = ends.each()
    lab.remark(f"used {used}, idle {each}")
    assert max(each.values()) <= LARGE / 4, each
