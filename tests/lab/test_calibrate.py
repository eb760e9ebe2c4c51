"""`netacc calibrate --peer` of the lab's hosts: measured inside, fitted here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from netacc_lab.calibration import pairs
from netacc_lab.sim import profiles

from tests.apps.lib.paths import binaries
from tests.lab.lib import UpLab, whole_wire
from tests.sim.rxe_here import SERVER, calibrate_in, server

#: As few as there may be: what is measured is tested, not how precisely.
FEW = ("--count", "10", "--rounds", "1")
#: Bytes of SoftRoCE's packets on an Ethernet of 1,500.
MTU = 1024


@pytest.mark.timeout(300)
def test_two_hosts_become_profiles(rxe: UpLab, tmp_path: Path) -> None:
    """Breaks if a part is not measured between the hosts, or this host is measured instead."""
    with whole_wire(rxe), server(rxe):
        assert calibrate_in(rxe, tmp_path, *FEW) == 0
    measured = json.loads((tmp_path / "measurements.json").read_text())
    kernel = rxe.out(2, "uname", "-r").strip()
    assert measured["costs"]["machine"]["kernel"] == kernel
    assert measured["costs"]["device"] == {"name": "rxe0", "mtu": MTU}
    found = pairs.calibrated(measured)
    # All paths with all sizes, those through the library on links.
    assert len(pairs.raw(found.costs)) == 3 * 6 + 5
    assert {message.size for message in pairs.stack(found.costs) if not message.streamed} >= {64, 1024, 16384}
    for file, kind in (("device.toml", "device"), ("link.toml", "stack"), ("host.toml", "host")):
        profile = profiles.load(kind, file, tmp_path / "pair.toml")
        assert kernel in profile.what
        assert ("emulated in software" in profile.what) == (kind != "host")
    device = profiles.load("device", "device.toml", tmp_path / "pair.toml").plain()
    assert device["mtu"] == f"{MTU}B"
    commands = ("create-queue-pair", "destroy-queue-pair", "connect-queue-pair", "deregister-memory")
    assert all(device[name] != "0ns" for name in commands), device


def test_a_device_that_is_not_there_is_reported(
    rxe: UpLab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Breaks if another device than the one that was named is measured."""
    assert calibrate_in(rxe, tmp_path, *FEW, "--device", "rxe7") == 1
    said = capsys.readouterr().err
    assert said == 'netacc calibrate: netacc lat: no RDMA device "rxe7" serves an address of this host\n'
    assert not list(tmp_path.glob("*.toml"))


def test_a_peer_that_does_not_answer_is_reported(rxe: UpLab) -> None:
    """Breaks if a calibration waits for ever where nothing listens."""
    result = rxe.run(2, str(binaries() / "netacc"), "lat", SERVER, "--port", "18600", "--costs")
    assert result.returncode == 1
    assert result.stdout == "" and result.stderr.startswith("netacc lat: ")
