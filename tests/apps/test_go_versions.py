"""Programs of many versions of Go, linked in each way.

They have checked conversations under garbage collection, a profiler, signals, children and faults.
`ci/run.sh go-versions` runs this file; test_static.py has the installed version.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.apps.lib import counters, golang
from tests.apps.lib.client import DONE, read_report
from tests.apps.lib.lab import Lab
from tests.apps.lib.net import free_port, wait_listening

pytestmark = [pytest.mark.usefixtures("library"), pytest.mark.long]

#: The first version whose table of functions is known, and the last of each since.
VERSIONS = [
    "1.18.10",
    "1.19.13",
    "1.20.14",
    "1.21.13",
    "1.22.12",
    "1.23.12",
    "1.24.6",
    "1.25.1",
    "1.26.0",
]
CONNECTIONS = 4
#: The rest goes over TCP, before the connections are on links.
SHARE = 0.5


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", golang.MODES)
@pytest.mark.parametrize("version", VERSIONS)
def test_go_talks_over_links(version: str, mode: str, lab: Lab, tmp_path: Path) -> None:
    program = tmp_path / "echo"
    golang.build(program, golang.MODES[mode], go=golang.toolchain(version, tmp_path))
    port = free_port()
    server = lab.start("server", [program, "serve", str(port)], accelerated=True)
    wait_listening(port, server)
    words: list[str | Path] = [program, "connect", str(port), str(CONNECTIONS)]
    client = lab.start("client", words, accelerated=True, interactive=True)
    client.wait_line("begun")
    while DONE not in client.stdout() and client.poll() is None:
        os.kill(client.pid, signal.SIGURG)
        os.kill(server.pid, signal.SIGURG)
    report = read_report(client.wait_line(DONE, 60))
    for who, side in (("client", client), ("server", server)):
        lab.expect_link(counters.totals(side), who=who, payload_bytes=report.payload_bytes, share=SHARE)
    lab.dismiss(client)
