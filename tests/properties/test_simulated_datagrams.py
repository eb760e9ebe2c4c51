"""Generated programs of UDP calls between two simulated processes answer as on the kernel's sockets.

Flows are on links, as between hosts. Without faults all answers and datagrams are the kernel's. With faults
links die and the network loses datagrams; in ns-3 it doubles and reorders them as well. Only those may be
missing, or come twice.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.apps.lib.paths import REPO
from tests.properties.datagram_simulated import Harness, Ns3, Simulation, Simulator, difference_but_lost
from tests.properties.datagram_world import Step, World, difference
from tests.properties.test_datagrams import RUNS, programs, told

EXECUTABLE = REPO / "target/ns3/netacc-ns3-exec"
#: Of each of six: CI has little time for them. NETACC_EXAMPLES names another number.
EXAMPLES = settings().max_examples // 12
Program = tuple[list[str], list[Step]]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World.here(False, [tmp_path_factory.mktemp("kernel") / "counted"] * 2)
    yield world
    world.end()


@pytest.fixture(scope="module", params=["memory", "nic", "ns3"])
def simulator(request: pytest.FixtureRequest) -> Iterator[Simulator]:
    if request.param != "ns3":
        yield Harness("nic" if request.param == "nic" else "")
        return
    if not EXECUTABLE.exists():
        pytest.fail(f"no {EXECUTABLE}: run ci/run.sh ns3")
    ns3 = Ns3(EXECUTABLE)
    yield ns3
    ns3.close()


def settled(program: Program) -> Program:
    """A socket is empty when its options change, as the network decides the order of datagrams."""
    kinds, steps = program
    found: list[Step] = []
    for step in steps:
        if step[0] == "inform":
            found.append(("drained", step[1]))
        found.append(step)
    return kinds, found


@settings(max_examples=EXAMPLES)
@given(program=programs(between_hosts=True).map(settled), seed=st.integers(0, 2**32))
def test_as_the_kernels(kernel: World, simulator: Simulator, program: Program, seed: int) -> None:
    """Breaks if a datagram is lost, doubled or changed where no link dies, or a call answers otherwise."""
    ours, fate = Simulation(simulator, seed).run(*program)
    assert fate.lost == fate.doubled == []
    found: str | None = None
    # The simulation is always the same. The kernel begins to take times only some time after it was asked to.
    for _ in range(RUNS):
        found = difference(kernel.run(*program), ours, ordered=False)
        if found is None:
            return
    pytest.fail(f"seed {seed}: {found}\nprogram: {program}")


@settings(max_examples=EXAMPLES)
@given(
    program=programs(between_hosts=True),
    seed=st.integers(0, 2**32),
    faults=st.sampled_from((1, 10, 50)),
)
def test_with_faults(kernel: World, simulator: Simulator, program: Program, seed: int, faults: int) -> None:
    """Breaks if more is missing than the network has lost, or another socket receives a datagram."""
    simulation = Simulation(simulator, seed, faults)
    ours, fate = simulation.run(*program)
    found = difference_but_lost(kernel.run(*program), ours, fate, simulation.names)
    assert found is None, f"seed {seed}: {found}\nprogram: {program}"


#: A burst between two sockets that have a flow.
BURST: list[Step] = [("warm", 0, 1, ["127.0.0.1"])] * 3 + [
    *[("send", 0, 1, 64, "sendto", "127.0.0.1")] * 20,
    ("drained", 1),
]


def test_links_carry_datagrams(simulator: Simulator) -> None:
    """Breaks if all of this takes the kernel: then nothing is shown."""
    found = [Simulation(simulator, seed).run(["bound", "bound"], BURST)[1].by_link for seed in range(20)]
    assert sum(found) > 20 * len(found) // 2, found


@pytest.mark.parametrize("what", ["destination", "lifetime", "service"])
def test_what_is_told(kernel: World, simulator: Simulator, what: str) -> None:
    """Breaks if a record on a link says something else of a datagram than the kernel."""
    # The network decides which datagram comes next.
    steps = [step for step in told(what) if step[0] != "receive"]
    for kind in ("bound", "six"):
        ours, fate = Simulation(simulator, 3).run([kind] * 2, steps)
        assert difference(kernel.run([kind] * 2, steps), ours, ordered=False) is None
        assert fate.by_link > 10


def test_a_seed_gives_one_run(simulator: Simulator) -> None:
    """Breaks if a failure could not be replayed."""
    runs = [Simulation(simulator, 7, 50).run(["bound", "dual"], BURST) for _ in range(2)]
    assert runs[0] == runs[1]
