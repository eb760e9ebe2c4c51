"""`netacc doctor` on hosts with RDMA devices: its findings, and the faults that it does not find."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.apps.lib.paths import binaries
from tests.lab.lib import UpLab
from tests.lab.test_limits import AS_NOBODY

DOCTOR = (str(binaries() / "netacc"), "doctor", "--json")


def diagnose(lab: UpLab, *command: str) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """The diagnosis, and its checks by name."""
    diagnosis = json.loads(lab.out(1, *command))
    return diagnosis, {check["name"]: check for check in diagnosis["checks"]}


@pytest.mark.parametrize("kind", ["rxe", "siw", "erdma"])
def test_a_device_that_works(kind: str, request: pytest.FixtureRequest) -> None:
    lab: UpLab = request.getfixturevalue(kind)
    diagnosis, checks = diagnose(lab, *DOCTOR, "--port", "6379")
    assert diagnosis["ok"] is True
    assert {backend["name"]: backend["works"] for backend in diagnosis["backends"]} == {
        "shm": True,
        "verbs": True,
    }
    (device,) = lab.out(1, "ls", "/sys/class/infiniband").split()
    for name in ("/dev/infiniband/rdma_cm", f"{device} port 1", "device at 10.99.0.1", "TCP port 6379"):
        assert checks[name]["status"] == "ok", checks[name]
    # iWARP devices listen at TCP ports, SoftRoCE does not.
    assert ("connection manager" in checks["TCP port 6379"]["finding"]) == (kind == "rxe")
    assert device in checks["libibverbs, librdmacm"]["finding"]
    interfaces = {name: check for name, check in checks.items() if name.startswith("ERI")}
    if kind == "erdma":
        (interface,) = interfaces.values()
        assert interface["status"] == "ok" and interface["finding"] == "driver erdma"
        assert checks["module erdma"]["status"] == "ok"
    else:
        assert interfaces["ERI"]["status"] == "absent" and interfaces["ERI"]["fix"]


def test_obstacles_are_reported(siw: UpLab) -> None:
    """An address without a device, little memory to lock, and a port for links that another program has."""
    siw.start(1, "/usr/bin/python3", "-m", "http.server", "26379")
    siw.wait_for(1, "ss -tln | grep -q :26379")
    limited = (*AS_NOBODY, "prlimit", "--memlock=65536:65536", "env", "NACC_VERBS_ADDRESS=127.0.0.1")
    diagnosis, checks = diagnose(siw, *limited, *DOCTOR, "--port", "6379")
    assert diagnosis["ok"] is True, "shared memory works all the same"
    assert checks["device at 127.0.0.1"]["status"] == "fail"
    assert checks["locked memory"]["status"] == "warn" and "ulimit -l" in checks["locked memory"]["fix"]
    assert checks["TCP port 6379"]["status"] == "warn" and "26379" in checks["TCP port 6379"]["finding"]
    (verbs,) = [backend for backend in diagnosis["backends"] if backend["name"] == "verbs"]
    assert not verbs["works"] and any("127.0.0.1" in problem for problem in verbs["problems"])
