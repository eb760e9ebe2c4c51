"""Node's http server and client, with kept-alive connections and bodies both ways."""

from __future__ import annotations

from tests.apps.lib.lab import Lab
from tests.apps.lib.modes import Mode
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.paths import PROGRAMS
from tests.apps.lib.results import Results

CONNECTIONS = 8
REQUESTS = 800  # node_client.mjs sends so many


def test_http(mode: Mode, lab: Lab, results: Results) -> None:
    port = free_port()
    server = lab.start(
        "node-server", ["node", PROGRAMS / "node_server.mjs", str(port)], accelerated=mode.server
    )
    wait_listening(port, server)
    client, report = lab.client(
        "node-client",
        ["node", PROGRAMS / "node_client.mjs", str(port), str(CONNECTIONS)],
        accelerated=mode.client,
    )
    assert report.requests == REQUESTS
    # Node hands a whole body of megabytes to the kernel at once: each connection's first upload stays on TCP.
    seen = lab.judge(mode, server=server, client=client, payload_bytes=report.payload_bytes, share=0.5)
    results.add(
        "node http",
        mode,
        seen,
        requests=report.requests,
        payload_bytes=report.payload_bytes,
        seconds=report.seconds,
    )
    lab.dismiss(client)
