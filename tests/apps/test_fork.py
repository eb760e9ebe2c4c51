"""Connections that a fork has shared: each holder has a working socket; held by one alone it is on a link."""

from __future__ import annotations

import sys

import pytest

from tests.apps.lib import counters
from tests.apps.lib.lab import Lab
from tests.apps.lib.modes import Mode
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.programs.forking_server import MESSAGE, SCENARIOS

MESSAGES = 5000
# Bytes go over TCP before the first promotion, while two processes use the connection, and until the next
# attempt, which comes later after each failure.
SHARES = {
    "handed_over": 0.9,
    "handed_over_late": 0.7,
    "handed_over_twice": 0.7,
    "in_turns": 0.5,
    "kept_unused": 0.95,
    "last_one_ends": 0.7,
    # Another program gets it, and promotes it once it is the only one that has it.
    "replaced": 0.7,
    "started": 0.7,
    "passed": 0.7,
}


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_shared(mode: Mode, scenario: str, lab: Lab) -> None:
    port = free_port()
    server = lab.start(
        "server",
        [sys.executable, "-m", "tests.apps.programs.forking_server", str(port), scenario],
        accelerated=mode.server,
    )
    wait_listening(port, server)
    client, report = lab.client(
        "client",
        [sys.executable, "-m", "tests.apps.programs.forking_client", str(port), str(MESSAGES)],
        accelerated=mode.client,
    )
    payload = 2 * MESSAGES * MESSAGE
    assert report.payload_bytes == payload
    assert server.wait() == 0
    if mode is Mode.SHM:
        seen = counters.totals(client)
        lab.expect_link(seen, who="client", payload_bytes=payload, share=SHARES[scenario])
        if scenario == "kept_unused":
            # It had no reason to leave its link before the end.
            assert seen.streams_promoted == 1, seen.describe()
    elif mode.client:
        lab.expect_tcp(counters.totals(client), who="client", payload_bytes=payload)
    lab.dismiss(client)
