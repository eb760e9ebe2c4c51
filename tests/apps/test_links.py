"""Links of a process: how many empty ones it keeps, and how many many connections take."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from tests.apps.lib.lab import Lab
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.paths import binaries
from tests.apps.lib.process import Process

pytestmark = pytest.mark.usefixtures("library")

MODULES = "tests.apps.programs"
SERVERS, CONNECTIONS = 2, 3
MANY = 600
DEDICATED = 256  # of `Sharing::AUTOMATIC` in core/driver


def links(process: Process) -> dict[str, int]:
    """Links of a process: with streams, and without."""
    command = [str(binaries() / "netacc_ss"), "-p", str(process.pid), "-s", "qp", "--json"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    states = [link["state"] for link in json.loads(shown.stdout)["qp"]]
    return {state: states.count(state) for state in ("connected", "empty")}


def streams_on_links(process: Process) -> list[int]:
    """How many streams each link of a process has."""
    command = [str(binaries() / "netacc_ss"), "-p", str(process.pid), "-s", "qp", "--json"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    return [link["streams"] for link in json.loads(shown.stdout)["qp"]]


def wait_links(process: Process, connected: int, empty: int) -> None:
    """Until it has so many of both."""
    deadline = time.monotonic() + 30
    while (found := links(process)) != {"connected": connected, "empty": empty}:
        assert process.poll() is None, "the client has ended"
        assert time.monotonic() < deadline, f"{found}, not {connected} and {empty}"
        time.sleep(0.01)


@pytest.mark.parametrize(("most", "most_per", "kept"), [(4, 1, 2), (3, 2, 3)])
def test_so_many_empty_links_are_kept(lab: Lab, most: int, most_per: int, kept: int) -> None:
    """Breaks if NACC_EMPTY_QP_MAX_ALL or ..._MAX_PER is not heeded, or each is taken for the other."""
    ports = [free_port() for _ in range(SERVERS)]
    for port in ports:
        argv = [sys.executable, "-m", f"{MODULES}.echo_server", str(port)]
        wait_listening(port, lab.start("echo-server", argv, accelerated=True))
    env = {
        "NACC_SOR_CONN_PER_QP": "1",
        "NACC_EMPTY_QP_EXPIRE_MS": "600000",
        "NACC_EMPTY_QP_MAX_ALL": str(most),
        "NACC_EMPTY_QP_MAX_PER": str(most_per),
    }
    argv = [sys.executable, "-m", f"{MODULES}.many_peers", str(CONNECTIONS), *map(str, ports)]
    client = lab.start("many-peers", argv, accelerated=True, env=env, interactive=True)
    client.wait_line("exchanged")
    wait_links(client, SERVERS * CONNECTIONS, 0)
    client.send_line("close them")
    client.wait_line("closed")
    # Those that are not kept go at once: nothing else ends a link here.
    wait_links(client, 0, kept)
    lab.dismiss(client)


def test_many_connections_share_links(lab: Lab) -> None:
    """Breaks if connections beyond some hundreds stay on TCP, each takes a link, or a few have them all."""
    port = free_port()
    argv = [sys.executable, "-m", f"{MODULES}.echo_server", str(port)]
    wait_listening(port, lab.start("echo-server", argv, accelerated=True))
    argv = [sys.executable, "-m", f"{MODULES}.many_peers", str(MANY), str(port)]
    env = {"NACC_PROMOTE_AFTER": "1"}
    client = lab.start("many-peers", argv, accelerated=True, env=env, interactive=True)
    client.wait_line("exchanged")
    wait_links(client, DEDICATED, 0)
    deadline = time.monotonic() + 30
    while sum(streams := streams_on_links(client)) < MANY:
        assert client.poll() is None, "the client has ended"
        assert time.monotonic() < deadline, f"{sum(streams)} of {MANY} are on links"
    assert max(streams) <= 1 + -(-MANY // DEDICATED), streams
    lab.dismiss(client)
