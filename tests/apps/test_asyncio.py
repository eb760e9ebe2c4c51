"""Python's asyncio: many connections at once, both ways at once, half-closed at the end."""

from __future__ import annotations

import sys

from tests.apps.lib.lab import Lab
from tests.apps.lib.modes import Mode
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.results import Results

CONNECTIONS = 50
BYTES_EACH = 2 << 20


def test_echo(mode: Mode, lab: Lab, results: Results) -> None:
    port = free_port()
    module = [sys.executable, "-m", "tests.apps.programs.echo_server"]
    server = lab.start("asyncio-server", [*module, str(port)], accelerated=mode.server)
    wait_listening(port, server)
    client, report = lab.client(
        "asyncio-client",
        [
            *(sys.executable, "-m", "tests.apps.programs.echo_client", str(port)),
            *("--connections", str(CONNECTIONS), "--size", str(BYTES_EACH)),
        ],
        accelerated=mode.client,
    )
    assert report.payload_bytes > CONNECTIONS * BYTES_EACH * 2
    seen = lab.judge(mode, server=server, client=client, payload_bytes=report.payload_bytes, share=0.9)
    results.add(
        "asyncio echo",
        mode,
        seen,
        requests=report.requests,
        payload_bytes=report.payload_bytes,
        seconds=report.seconds,
    )
    lab.dismiss(client)
