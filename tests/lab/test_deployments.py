"""Deployments of unmodified programs on two hosts, over RDMA devices: they work, on links."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ci.eri.pair import Host, Pair, Stack
from ci.eri.programs import DEPLOYMENTS, Run, Size, deploy
from tests.apps.lib.paths import binaries
from tests.lab.lib import UpLab, whole_wire

# The limit for one deployment in emulation on a busy machine, far above any honest run.
SECONDS = 60
# The connection manager of eRDMA, and of devices that are held to its limits, has IPv4 alone.
ON_TCP = {("rxe-as-erdma", "redis-ipv6"), ("erdma", "redis-ipv6")}
# Only the beginning of a deployment is on TCP: connecting, loading devices.
LEAST_SHARE = 0.1
LEAST_BYTES = 10_000
# A set of memcslap is several writes. One that finds a promotion in progress waits for the answer, 10 ms at
# first and longer on a slow link; where that is not enough, the write goes to the anchor.
SMALL_SHARE = {"memcached": 0.05}


def pair_of(lab: UpLab) -> Pair:
    netacc = str(binaries() / "netacc")
    reach = (netacc, "lab", "exec", "--name", lab.name, "--timeout", "600")
    first, second = (Host((*reach, str(i)), f"10.99.0.{i}", f"fd99::{i}") for i in (1, 2))
    return Pair((first, second), binaries(), seconds=SECONDS)


def check(lab: UpLab, device: str, name: str, size: Size) -> None:
    profile = device.partition("-as-")[2] or "native"
    stack = Stack.netacc(binaries(), NACC_VERBS_PROFILE=profile)
    with whole_wire(lab):
        outcome = deploy(name, Run(pair_of(lab), stack, size))
    assert outcome.works, outcome.failure
    assert outcome.link_share is not None
    if (device, name) not in ON_TCP:
        assert outcome.link_bytes >= LEAST_BYTES, outcome
        assert outcome.link_share >= SMALL_SHARE.get(name, LEAST_SHARE), outcome


#: How much is asked there: enough to get onto links. PostgreSQL has a process for each connection, for which
#: five seconds are not enough.
FEWER = replace(Size.small(), requests=600)
#: Where each runs in `make test`: half of them on each lab, which are served at the same time.
USUAL = {
    "redis-single": "rxe-as-erdma",
    "redis-ipv6": "rxe",
    "redis-replica": "siw",
    "redis-sentinel": "rxe-as-erdma",
    "redis-cluster": "siw",
    "memcached": "siw",
    "nginx": "rxe",
    "postgresql": "siw",
}


def everywhere() -> list[Any]:
    """Each deployment on each device; all but the usual one where there is time."""
    return [
        pytest.param(device, name, marks=() if USUAL[name] == device else pytest.mark.long)
        for device in ("rxe", "rxe-as-erdma", "siw", "erdma")
        for name in DEPLOYMENTS
    ]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("device", "name"), everywhere())
def test_deployment(device: str, name: str, request: pytest.FixtureRequest) -> None:
    size = FEWER if USUAL[name] == device else Size.small()
    check(request.getfixturevalue(device.partition("-as-")[0]), device, name, size)
