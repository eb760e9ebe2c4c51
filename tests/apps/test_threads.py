"""Many threads on one socket, many sockets on many threads: every byte is accounted for, links were used."""

from __future__ import annotations

import pytest

from tests.apps.lib.lab import Lab
from tests.apps.lib.modes import Mode
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.paths import binaries

# The rest goes over TCP: a stream that is busy all the time is promoted when its reader has caught up once,
# which may be late.
SHARE = 0.02


@pytest.mark.parametrize(
    ("threads", "readers", "sockets"),
    [
        pytest.param(4, 3, 64, id="several"),
        pytest.param(8, 8, 200, id="crowded"),
    ],
)
def test_threads(mode: Mode, threads: int, readers: int, sockets: int, lab: Lab) -> None:
    program = binaries() / "netacc-threads"
    port = free_port()
    options = ["--threads", str(threads), "--readers", str(readers), "--sockets", str(sockets)]
    server = lab.start(
        "server",
        [program, "serve", str(port), *options],
        accelerated=mode.server,
        interactive=True,
    )
    wait_listening(port, server)
    client, report = lab.client("client", [program, "connect", str(port), *options], accelerated=mode.client)
    server.wait_line("done ")
    lab.judge(mode, server=server, client=client, payload_bytes=report.payload_bytes, share=SHARE)
    lab.dismiss(client)
    lab.dismiss(server)
