"""The profile of a device, as the kit for two machines records it. The emulated device is held to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci.eri.pair import Host, Pair
from ci.eri.profile import SUITE, attributes, differences, profile
from ci.eri.record import Record
from tests.apps.lib.paths import REPO, binaries
from tests.lab.lib import UpLab, programs_and_examples

#: The `meta.json` of the step `profile`: on emulated functions, and on ERIs, of which there is none yet.
EMULATED = REPO / "results/erdma/kit/profile/meta.json"
ERI = REPO / "results/eri/profile.json"

DEVINFO = """hca_id:\terdma_0
\ttransport:\t\t\tiWARP (1)
\tfw_ver:\t\t\t\t0.2.37
\tnode_guid:\t\t\t5054:00ff:fe99:0001
\tmax_qp:\t\t\t\t131071
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)

hca_id:\trxe0
\tfw_ver:\t\t\t\t0.0.0
"""


def emulated(lab: UpLab, folder: Path) -> Record:
    """The profile of a lab's hosts."""
    netacc = str(binaries() / "netacc")
    first, second = (
        Host((netacc, "lab", "exec", "--name", lab.name, str(i)), f"10.99.0.{i}") for i in (1, 2)
    )
    record = Record({"step": "profile"})
    profile(Pair((first, second), binaries(), seconds=60), programs_and_examples(folder / "local"), record)
    return record


def recorded(file: Path) -> dict[str, Any]:
    """A host's profile, as the kit has recorded it."""
    host: dict[str, Any] = json.loads(file.read_text())["figures"]["host1"]
    return host


def test_the_first_device_is_described() -> None:
    described = attributes(DEVINFO)
    assert described["fw_ver"] == "0.2.37" and described["state"] == "PORT_ACTIVE (4)"


def host_with(outcome: str, fw_ver: str = "0.2.37", node_guid: str = "1") -> dict[str, Any]:
    suite = [{"check": "close", "outcome": outcome, "reason": ""}, {"limits": {}}]
    return {"devinfo": {"fw_ver": fw_ver, "node_guid": node_guid}, SUITE: suite}


def test_differences_are_of_the_device_alone() -> None:
    """Not of a machine and its name."""
    recorded = host_with("failed")
    assert differences(recorded, host_with("failed", node_guid="2")) == {}
    assert differences(recorded, host_with("failed", fw_ver="0.2.1")) == {
        "devinfo: fw_ver": ("0.2.37", "0.2.1")
    }
    assert differences(recorded, host_with("passed")).keys() == {f"{SUITE}: close"}
    assert differences({"devinfo": {}}, recorded) == {}, "what was not recorded is not compared"


def test_what_is_not_built_is_told(tmp_path: Path) -> None:
    """Breaks if a run on ERIs leaves the questions open, and says nothing."""
    here = Pair((Host(("sh", "-c", "echo hca_id: x; :"), ""),) * 2, tmp_path)
    record = Record({"step": "profile"})
    profile(here, tmp_path, record)
    assert record.remarks.keys() == {SUITE}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_emulated_devices_of_both_hosts_are_alike(erdma: UpLab, tmp_path: Path) -> None:
    """Breaks if a part of a profile is not recorded, or tells machines apart."""
    record = emulated(erdma, tmp_path)
    assert not record.remarks
    first, second = record.figures["host1"], record.figures["host2"]
    assert first["devinfo"]["transport"] == "iWARP (1)"
    assert len(first[SUITE]) > 35 and all(line.get("outcome") != "failed" for line in first[SUITE])
    assert differences(first, second) == {}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_emulated_device_does_as_it_did(erdma: UpLab, tmp_path: Path) -> None:
    """Breaks if a change of the device, or of a default, changes what a host sees of it."""
    then = recorded(EMULATED)
    assert len(then[SUITE]) > 35, "the whole profile is recorded"
    assert differences(then, emulated(erdma, tmp_path).figures["host1"]) == {}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_emulated_device_does_as_an_eri(
    request: pytest.FixtureRequest, tmp_path: Path, need_condition: Callable[[str, bool], None]
) -> None:
    """As the kit has recorded of one. Where they differ, the device or its settings' defaults are wrong."""
    need_condition("recorded_eri", ERI.exists())
    erdma: UpLab = request.getfixturevalue("erdma")
    assert differences(recorded(ERI), emulated(erdma, tmp_path).figures["host1"]) == {}
