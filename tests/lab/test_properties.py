"""Generated programs with processes on two hosts, over RDMA devices: they see what they see on kernel TCP.

The oracle is the same executor on the same two hosts, natively. Processes of one host talk to each other
too, over shared memory.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from netacc_lab import Far, Host, Mix, Program, Shape, generate
from netacc_lab.differential import Differential, OpenFindings, Tally, Verdict
from netacc_lab.strategies import FAR_CONFIGS, Profile, across_hosts

from tests.apps.lib.paths import REPO, binaries
from tests.lab.lib import ON_LINKS, UpLab, whole_wire

PROPERTIES = REPO / "tests/properties"
# Findings that are open on devices alone.
OPEN = OpenFindings.load(REPO / "tests/lab/open.json")
# Programs of the fast profile for each device, and of the test that is `long`. SoftRoCE as it is has more
# inline than with the limits of eRDMA, and IPv6, which soft-iWARP has as well: a few show that it works.
FEW, FEWER = 14, 6
MANY = int(os.environ.get("NETACC_LAB_PROGRAMS", "300"))
AGENT_SECONDS = 3000  # of an agent, which serves all programs of a setting
SLOWNESS = 10  # of emulation on a machine with other work
QUIET_MS = 15


@dataclass(frozen=True)
class Device:
    """A differential runner on two hosts with a device."""

    name: str
    lab: UpLab
    run: Differential

    @property
    def few(self) -> int:
        return FEWER if self.name == "rxe" else FEW

    def packets(self) -> int | None:
        """The packets that the device of the first host has sent; None where it does not count."""
        counter = "/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts"
        return int(self.lab.out(1, "cat", counter)) if self.name.startswith("rxe") else None

    def explain(self, program: Program, verdict: Verdict) -> str:
        detail = verdict.differences[0].describe()
        return f"{self.name}: {verdict.signature}\n{detail}\n{program.pretty()}"


def hosts(lab: UpLab) -> tuple[Host, ...]:
    netacc = str(binaries() / "netacc")
    reach = (netacc, "lab", "exec", "--name", lab.name, "--timeout", str(AGENT_SECONDS))
    return tuple(Host((*reach, str(i)), f"10.99.0.{i}", f"fd99::{i}", binaries()) for i in (1, 2))


@contextmanager
def opened(name: str, lab: UpLab) -> Iterator[Device]:
    profile = name.partition("-as-")[2] or "native"
    env = {"NACC_VERBS_PROFILE": profile, **ON_LINKS}
    far = Far(hosts(lab), slowness=SLOWNESS, settle_ms=QUIET_MS, env=env)
    with whole_wire(lab), Differential(binaries(), name=name, far=far) as run:
        yield Device(name, lab, run)


ERDMA = pytest.param("erdma", marks=pytest.mark.long)


@pytest.fixture(params=["rxe", "rxe-as-erdma", "siw", ERDMA], ids=str)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """Two hosts: with SoftRoCE, the same held to the limits of eRDMA, with soft-iWARP, and with eRDMA."""
    name = str(request.param)
    with opened(name, request.getfixturevalue(name.partition("-")[0])) as device:
        yield device


def check(device: Device, seeds: range, profile: Profile) -> Tally:
    tally = Tally()
    programs = [across_hosts(seed, profile).program for seed in seeds]
    failures = []
    for index, verdict in device.run.check_all(programs):
        tally.add(str(index), verdict)
        if verdict.failed and not OPEN.explain(verdict):
            failures.append(f"seed {seeds[index]}, {device.explain(programs[index], verdict)}")
    print(f"{device.name}: {tally.describe()}")
    assert not failures, "\n".join(failures)
    return tally


def test_programs(device: Device) -> None:
    """Breaks wherever sockets on links differ from the kernel's."""
    check(device, range(device.few), Profile.FAST)


def test_bytes_leave_the_kernel(device: Device) -> None:
    """Breaks if programs with a warm phase do not reach a link: the others prove nothing then."""
    before = device.packets()
    tally = Tally()
    rng = random.Random(1)
    shape = Shape(mix=Mix.DATA, warm=12, hosts=2, most_bytes=8000, config=FAR_CONFIGS[0])
    programs = [generate(shape, [rng.getrandbits(56) for _ in range(30)]) for _ in range(min(8, device.few))]
    for index, verdict in device.run.check_all(programs):
        tally.add(str(index), verdict)
    # By the kernel's own count of bytes that TCP delivered.
    assert tally.moved >= 0.7 * tally.programs, tally.describe()
    assert tally.kernel_bytes < 0.5 * tally.app_bytes, tally.describe()
    after = device.packets()
    if before is not None and after is not None:
        assert after - before > tally.programs


def regressions() -> list[Path]:
    """Of those that can have a process on each host: the others are about one host alone."""
    paths = sorted((PROPERTIES / "regressions").glob("*.json"))
    return [path for path in paths if Program.load(path).spread() is not None]


@pytest.mark.parametrize(
    "device", [pytest.param("rxe", marks=pytest.mark.long), "rxe-as-erdma", "siw", ERDMA], indirect=True
)
def test_regressions(device: Device) -> None:
    """Programs that once failed over shared memory, with their processes on two hosts."""
    assert len(regressions()) >= 20
    spread = [(path.stem, Program.load(path).spread()) for path in regressions()]
    programs = [program for _, program in spread if program is not None]
    failures = []
    for index, verdict in device.run.check_all(programs):
        if verdict.failed and not OPEN.explain(verdict):
            failures.append(f"{spread[index][0]}, {device.explain(programs[index], verdict)}")
    assert not failures, "\n".join(failures)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("profile", [Profile.FAST, Profile.BALANCED], ids=lambda profile: str(profile.value))
def test_many_programs(device: Device, profile: Profile) -> None:
    """The same as `test_programs`, for long (NETACC_LAB_PROGRAMS)."""
    check(device, range(FEW, FEW + MANY), profile)
