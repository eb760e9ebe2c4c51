"""`netacc lat` between two hosts: every path is measured, whole, and the stack's bytes went over links."""

from __future__ import annotations

import json

import pytest

from tests.apps.lib.paths import binaries
from tests.lab.lib import UpLab, attempts, line_from

NETACC = str(binaries() / "netacc")
SERVER = "10.99.0.1"
PATHS = ["write", "message", "send", "stack", "tcp"]


@pytest.mark.parametrize("size", [64, 20_000])
def test_every_path_is_measured(iwarp: UpLab, size: int) -> None:
    server = iwarp.start(1, NETACC, "lat", "--serve", SERVER)
    lines = {line_from(server.stdout).strip() for _ in range(2)}
    assert lines == {f"listening at {SERVER}:18515", f"raw links at {SERVER}:18516"}
    client_command = (NETACC, "lat", SERVER, "--size", str(size), "-n", "100", "--json")
    report = json.loads(iwarp.out(2, *client_command))
    assert (report["size"], report["count"]) == (size, 100)
    assert [path["path"] for path in report["paths"]] == PATHS
    for path in report["paths"]:
        assert "error" not in path, path
        latency = path["latency_ns"]
        assert latency["count"] == 100 == sum(count for _, count in path["histogram"])
        # Every path between two machines takes a tenth of a microsecond or more.
        assert 100 < latency["min"] <= latency["p50"] <= latency["p99"] <= latency["max"]
    *_, stack, tcp = report["paths"]
    assert "link_share" not in tcp
    for _ in attempts():
        if stack["link_share"] > 0.9:
            break
        # It does not wait for a link for ever, and an emulated machine may be that slow.
        (stack,) = json.loads(iwarp.out(2, *client_command, "--path", "stack"))["paths"]
    assert stack["link_share"] > 0.9, "the program's bytes went over the link"


def test_paths_that_cannot_be_measured_are_reported(siw: UpLab) -> None:
    """Without a server each path reports it, and so does the exit status."""
    result = siw.run(2, NETACC, "lat", SERVER, "--port", "18600", "-n", "10", "--json")
    assert result.returncode == 1
    report = json.loads(result.stdout)
    assert [path["path"] for path in report["paths"]] == PATHS
    assert all(path["error"] for path in report["paths"]), report


def test_over_softroce(rxe: UpLab) -> None:
    """The link loses packets, which costs time and nothing else."""
    server = rxe.start(1, NETACC, "lat", "--serve", SERVER)
    for _ in range(2):
        line_from(server.stdout)
    paths = ("--path", "write", "--path", "message", "--path", "send", "--path", "tcp")
    report = json.loads(rxe.out(2, NETACC, "lat", SERVER, "-n", "100", "--json", *paths))
    assert [path["latency_ns"]["count"] for path in report["paths"]] == [100] * 4
