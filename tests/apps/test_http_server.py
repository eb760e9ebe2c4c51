"""Python's own http.server, with threads and kept-alive connections."""

from __future__ import annotations

import json
import sys

from tests.apps.lib.data import blob, sha256
from tests.apps.lib.lab import Lab
from tests.apps.lib.modes import Mode
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.results import Results

CONNECTIONS = 4
FILES = {f"small-{n}": 1 + 700 * n for n in range(40)} | {f"large-{n}": 8 << 20 for n in range(2)}


def test_files(mode: Mode, lab: Lab, results: Results) -> None:
    served = lab.folder / "served"
    served.mkdir()
    digests: dict[str, str] = {}
    for number, (name, size) in enumerate(FILES.items()):
        data = blob(size, number)
        (served / name).write_bytes(data)
        digests[name] = sha256(data)
    manifest = lab.folder / "manifest.json"
    manifest.write_text(json.dumps(digests))

    port = free_port()
    server = lab.start(
        "http.server",
        [
            *(sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"),
            *("--protocol", "HTTP/1.1", "--directory", served),
        ],
        accelerated=mode.server,
    )
    wait_listening(port, server)
    client, report = lab.client(
        "http-client",
        [
            *(sys.executable, "-m", "tests.apps.programs.http_client"),
            *(str(port), manifest, str(CONNECTIONS)),
        ],
        accelerated=mode.client,
    )
    assert report.requests == CONNECTIONS * len(FILES)
    assert report.payload_bytes == CONNECTIONS * sum(FILES.values())
    seen = lab.judge(mode, server=server, client=client, payload_bytes=report.payload_bytes, share=0.95)
    results.add(
        "python http.server",
        mode,
        seen,
        requests=report.requests,
        payload_bytes=report.payload_bytes,
        seconds=report.seconds,
    )
    lab.dismiss(client)
