"""The cost of a message on a link in system calls: the device's doorbell, and none of ours."""

from __future__ import annotations

import json
import sys

import pytest

from tests.apps.lib.paths import REPO, binaries
from tests.lab.lib import UpLab, attempts, line_from, whole_wire

ROUND_TRIPS = str(REPO / "tests/lab/programs/round_trips.py")
SERVER, PORT = "10.99.0.1", "7004"
ROUNDS, COUNT = "20", "200"

#: The rounds that are compared.
LAST = 5


@pytest.mark.long
def test_a_message_costs_no_call_where_the_doorbell_is_mapped(erdma: UpLab) -> None:
    """Breaks if the kernel is asked for anything but sleep: eRDMA's provider rings the doorbell itself."""
    stats = "/tmp/calls.stats"
    polling = ["env", "NACC_POLL_MS=1000", f"NETACC_EXIT_STATS={stats}"]
    run = [*polling, str(binaries() / "netacc_run"), sys.executable, ROUND_TRIPS]
    server = erdma.start(1, *run, "serve", SERVER, PORT)
    assert line_from(server.stdout) == "listening\n"
    for _ in attempts():
        calls = [float(line) for line in erdma.out(2, *run, "ask", SERVER, PORT, ROUNDS, COUNT).split()]
        counters = json.loads(erdma.out(2, "tail", "-n", "1", stats))["cnt"]
        if counters["streams_promoted"] == 1 and counters["streams_demoted"] == 0:
            break
    else:
        pytest.fail(f"not on a link: {counters}")
    # Of the kernel's own sockets, too: the calls on the way to a link are few.
    assert calls[-1] < 0.1, calls


def test_a_message_costs_one_call_while_no_thread_sleeps(rxe: UpLab) -> None:
    """Breaks if a thread is woken that does not sleep, or a message is several requests to the device."""
    run = ["env", "NACC_POLL_MS=1000", str(binaries() / "netacc_run"), sys.executable, ROUND_TRIPS]
    with whole_wire(rxe):
        server = rxe.start(1, *run, "serve", SERVER, PORT)
        assert line_from(server.stdout) == "listening\n"
        for _ in attempts():
            calls = [float(line) for line in rxe.out(2, *run, "ask", SERVER, PORT, ROUNDS, COUNT).split()]
            # In the first rounds it is not on a link yet, and it may leave it where TCP is faster.
            last = calls[-LAST:]
            if min(last) >= 0.9:
                break
        else:
            pytest.fail(f"not on a link: {calls}")
    assert max(last) < 1.2, calls
