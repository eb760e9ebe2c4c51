"""An idle accelerated process uses no processor time and is never woken."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.apps.lib import counters
from tests.apps.lib.lab import Lab
from tests.apps.lib.modes import Mode
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.process import Process

SPAN_S = 2.0
CALM_S = 0.5  # for the waiting policy to stop spinning, and for start-up work to end
# Redis wakes itself ten times a second in either case; only its rounding differs from run to run.
WAKEUPS_ALLOWED = 4
CPU_ALLOWED_S = 0.010


@dataclass(frozen=True)
class Activity:
    """The activity of all threads of a process so far."""

    wakeups: int
    cpu_s: float

    def since(self, before: Activity) -> Activity:
        return Activity(self.wakeups - before.wakeups, self.cpu_s - before.cpu_s)


def activity(process: Process) -> Activity:
    wakeups, cpu_ns = 0, 0
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        on_cpu, _, timeslices = (thread / "schedstat").read_text().split()
        cpu_ns += int(on_cpu)
        wakeups += int(timeslices)
    return Activity(wakeups, cpu_ns / 1e9)


def watch_idle(lab: Lab, mode: Mode) -> dict[str, Activity]:
    """A Redis server with one subscriber, neither of which has anything to do."""
    port = free_port()
    server = lab.start(
        f"redis-server-{mode.value}",
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(lab.folder)],
        accelerated=mode.server,
    )
    wait_listening(port, server)
    client = lab.start(
        f"redis-cli-{mode.value}",
        ["redis-cli", "-p", str(port)],
        accelerated=mode.client,
        interactive=True,
    )
    # A few answers are quicker than a promotion can be.
    for number in range(1000):
        client.send_line(f"ECHO answer-{number}.")
        client.wait_line(f"answer-{number}.")
        if mode is not Mode.SHM or counters.totals(client).link_bytes > 0:
            break
    client.send_line("SUBSCRIBE silence")
    client.wait_line("subscribe")
    if mode is Mode.SHM:
        seen = counters.totals(client)
        lab.expect_link(seen, who="redis-cli", payload_bytes=20, share=0.0)
        assert seen.link_bytes > 0, "the idle connection is not on a link"
        assert [socket.path for socket in seen.sockets if not socket.listening] == ["link"]
    time.sleep(CALM_S)
    sides = {"server": server, "client": client}
    before = {name: activity(side) for name, side in sides.items()}
    time.sleep(SPAN_S)
    return {name: activity(side).since(before[name]) for name, side in sides.items()}


@pytest.mark.quiet
@pytest.mark.usefixtures("library")
def test_idle(lab: Lab) -> None:
    native, accelerated = watch_idle(lab, Mode.TCP), watch_idle(lab, Mode.SHM)
    for side in native:
        lab.remark(f"{side}: native {native[side]}, accelerated {accelerated[side]}")
        assert accelerated[side].wakeups <= native[side].wakeups + WAKEUPS_ALLOWED, side
        assert accelerated[side].cpu_s <= native[side].cpu_s + CPU_ALLOWED_S, side
