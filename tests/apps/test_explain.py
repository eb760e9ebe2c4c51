"""`netacc explain`: why connections of running programs are where they are."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.apps.lib.lab import Lab
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.paths import binaries
from tests.apps.lib.process import Process
from tests.apps.test_switch import redis_under_load, switch

CLIENTS = 4


def explain(process: Process, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(binaries() / "netacc"), "explain", "-p", str(process.pid), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def explained(process: Process, *arguments: str) -> list[dict[str, Any]]:
    done = explain(process, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.usefixtures("library")
def test_connections_on_links_and_demoted(lab: Lab) -> None:
    server, load, port = redis_under_load(lab, CLIENTS)
    on_links = [one for one in explained(server, f":{port}") if one["path"] == "link"]
    assert sum(len(one["descriptors"]) for one in on_links) >= CLIENTS
    assert on_links[0]["why"] == "It is on a link of shm."
    descriptor = on_links[0]["descriptors"][0]
    assert [one["descriptors"] for one in explained(server, str(descriptor))] == [[descriptor]]

    switch("demote", server)
    # The client's reasons, which may differ, make several explanations of them.
    here = [one for one in explained(server, f":{port}") if one.get("peer", {}).get("pid") == load.pid]
    assert sum(len(one["descriptors"]) for one in here) >= CLIENTS
    for one in here:
        assert (one["path"], one["reason"]) == ("tcp", "requested")
        assert "netacc promote" in one["change"]
        assert one["peer"]["reason"] not in {"", "none"}
    text = explain(server, f":{port}")
    assert "on tcp (requested)" in text.stdout and f"({load.pid}), says" in text.stdout


@pytest.mark.usefixtures("library")
def test_what_is_not_there(lab: Lab) -> None:
    port = free_port()
    server = lab.start("redis-server", ["redis-server", "--port", str(port), "--save", ""], accelerated=True)
    wait_listening(port, server)
    done = explain(server, ":1")
    assert (done.returncode, done.stderr.count("\n")) == (6, 1)
    assert explain(server, "nonsense").returncode == 2
