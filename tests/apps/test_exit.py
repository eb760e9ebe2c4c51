"""A process that ends waits until its peers have its bytes. For the program it has ended."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.apps.lib import counters
from tests.apps.lib.lab import Lab
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.process import Process
from tests.apps.programs import ending

PROGRAM = [sys.executable, "-m", "tests.apps.programs.ending"]
#: The wait is bounded, so on a busy machine it can be over before it is seen.
ATTEMPTS = 20


def blocks(process: Process, number: signal.Signals) -> bool:
    """Whether the process holds back the signal; not once it has ended."""
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text()
        mask = next((line.split()[1] for line in status.splitlines() if line.startswith("SigBlk:")), "0")
        if int(mask, 16) >> (number - 1) & 1:
            return True
    return False


def come_to_link(leave: Process, hold: Process) -> None:
    """Exchanges until both directions are on the link: before that a stopped peer holds writers up."""
    deadline = time.monotonic() + 60
    for exchange in itertools.count():
        leave.send_line(f"exchange {exchange}.")
        leave.wait_line(f"exchange {exchange}.")
        if all(counters.totals(process).tx_bytes_link for process in (leave, hold)):
            return
        assert time.monotonic() < deadline, "not on a link"


@pytest.mark.parametrize("number", ending.SIGNALS, ids=lambda number: number.name)
def test_no_handler_runs_after_exit(number: signal.Signals, lab: Lab, tmp_path: Path) -> None:
    """Breaks if a signal during the wait of an exit reaches a handler, or changes the status."""
    for attempt in range(ATTEMPTS):
        port = free_port()
        hold = lab.start("hold", [*PROGRAM, "hold", str(port)], accelerated=True)
        wait_listening(port, hold)
        handled = tmp_path / f"handled{attempt}"
        leave = lab.start(
            "leave", [*PROGRAM, "leave", str(port), handled], accelerated=True, interactive=True
        )
        come_to_link(leave, hold)
        # A peer that does not answer: the exit has to wait.
        os.kill(hold.pid, signal.SIGSTOP)
        leave.send_line("leave")
        waits = blocks(leave, number)
        if waits:
            os.kill(leave.pid, number)
        status = leave.wait()
        os.kill(hold.pid, signal.SIGCONT)
        hold.wait()
        assert status == ending.STATUS
        if waits:
            assert handled.read_bytes() == b"", "a handler has run"
            return
    pytest.fail("no exit was seen to wait")
