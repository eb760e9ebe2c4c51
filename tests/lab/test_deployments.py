"""Deployments of unmodified programs on two hosts, over RDMA devices: they work, on links."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ci.eri.pair import Host, Pair, Stack
from ci.eri.programs import DEPLOYMENTS, Run, Size, deploy
from tests.apps.lib.paths import binaries
from tests.lab.lib import UpLab, whole_wire

# Of one deployment: what it needs in emulation on a busy machine, far above any honest run.
SECONDS = 60
# The connection manager of eRDMA, and of what is held to its limits, knows IPv4 alone.
ON_TCP = {("erdma", "redis-ipv6")}
# What is left of a deployment's bytes on TCP is its beginning: connecting, loading devices.
LEAST_SHARE = 0.1
LEAST_BYTES = 10_000
# A set of memcslap is several writes. One that finds a promotion under way waits for the answer, 10 ms at
# first and longer as the link shows what it takes; where that is not enough, the write goes to the anchor.
SMALL_SHARE = {"memcached": 0.05}


def pair_of(lab: UpLab) -> Pair:
    netacc = str(binaries() / "netacc")
    reach = (netacc, "lab", "exec", "--name", lab.name, "--timeout", "600")
    first, second = (Host((*reach, str(i)), f"10.99.0.{i}", f"fd99::{i}") for i in (1, 2))
    return Pair((first, second), binaries(), seconds=SECONDS)


def check(lab: UpLab, profile: str, name: str) -> None:
    stack = Stack.netacc(binaries(), NACC_VERBS_PROFILE=profile)
    with whole_wire(lab):
        outcome = deploy(name, Run(pair_of(lab), stack, Size.small()))
    assert outcome.works, outcome.failure
    assert outcome.link_share is not None
    if (profile, name) not in ON_TCP:
        assert outcome.link_bytes >= LEAST_BYTES, outcome
        assert outcome.link_share >= SMALL_SHARE.get(name, LEAST_SHARE), outcome


@pytest.mark.timeout(400)
def test_redis_with_a_replica(siw: UpLab) -> None:
    check(siw, "native", "redis-replica")


@pytest.fixture(params=["rxe", "rxe-as-erdma", "siw"])
def device(request: pytest.FixtureRequest) -> Iterator[tuple[UpLab, str]]:
    """A lab, and the limits that its device is held to."""
    kind, _, profile = str(request.param).partition("-as-")
    yield request.getfixturevalue(kind), profile or "native"


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", list(DEPLOYMENTS))
def test_deployment(device: tuple[UpLab, str], name: str) -> None:
    check(*device, name)
