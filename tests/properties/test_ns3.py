"""The core on simulated hosts in ns-3: programs behave as on kernel TCP, and a seed gives one run."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from netacc_lab import (
    BrokenPromise,
    ExecutorError,
    HarnessExecutor,
    Mix,
    Ns3Executor,
    Program,
    Shape,
    Trace,
    compare,
    generate,
)
from netacc_lab.differential import Differential
from netacc_lab.simulated import MIXES
from netacc_lab.strategies import decisions, shapes

from tests.apps.lib.paths import REPO
from tests.properties.conftest import PROFILE

EXECUTABLE = REPO / "target/ns3/netacc-ns3-exec"
SHAPE = Shape(mix=Mix.DATA, warm=12)
#: Operations with a model in the scheduler; single operations without one are `unsupported` in the trace.
SIMULATED = MIXES["ns3"]


@pytest.fixture(scope="module")
def ns3() -> Iterator[Ns3Executor]:
    if not EXECUTABLE.exists():
        pytest.fail(f"no {EXECUTABLE}: run ci/run.sh ns3")
    with Ns3Executor(EXECUTABLE) as executor:
        yield executor


@pytest.fixture(scope="module")
def in_memory() -> Iterator[Ns3Executor]:
    with Ns3Executor(EXECUTABLE, tcp="memory") as executor:
        yield executor


def with_faults(shape: Shape, per_mille: int) -> Shape:
    return dataclasses.replace(shape, config=dataclasses.replace(shape.config, fault_per_mille=per_mille))


def some_programs(count: int, faults: int) -> Iterator[Program]:
    rng = random.Random(3)
    for _ in range(count):
        yield generate(with_faults(SHAPE, faults), [rng.getrandbits(56) for _ in range(20)])


@settings(max_examples=4 * settings().max_examples)
@given(
    shape=shapes(PROFILE, SIMULATED),
    made=decisions(PROFILE),
    seed=st.integers(0, 2**32),
    faults=st.sampled_from((0, 1, 5, 30)),
)
def test_ns3(
    oracle: Differential, ns3: Ns3Executor, shape: Shape, made: list[int], seed: int, faults: int
) -> None:
    """Breaks wherever a stream in ns-3 differs from the kernel's, with any loss and reordering,
    any dead queue pair and any cut cable."""
    program = generate(with_faults(shape, faults), made)
    expected = oracle.check(program).oracle
    ns3.seed = seed
    differences = compare(program, expected, ns3.run(program, expected))
    assert not differences, f"seed {seed}: {differences[0].describe()}\n{program.pretty()}"


@pytest.mark.parametrize("faults", [0, 1, 30])
def test_as_on_the_plain_network(oracle: Differential, in_memory: Ns3Executor, faults: int) -> None:
    """Breaks if ns-3's network, or the boundary to it, differs in anything from the plain one: a time, an
    order, a loss, a cut cable; or if a run is not the one of its seed."""
    networks = set()
    for seed, program in enumerate(some_programs(40, faults)):
        expected = oracle.check(program).oracle
        plain = HarnessExecutor(seed=seed, preset="nic")
        in_memory.seed = seed
        wanted = plain.run(program, expected)
        for _ in range(2):
            found = in_memory.run(program, expected)
            assert in_memory.network == plain.network, f"seed {seed}\n{program.pretty()}"
            assert found.data == wanted.data, f"seed {seed}\n{program.pretty()}"
        networks.add(in_memory.network)
    # Where a cable is cut at once nothing is delivered.
    assert len(networks) > 30


def test_bytes_leave_tcp(oracle: Differential, ns3: Ns3Executor) -> None:
    """Breaks if streams in ns-3 are not promoted, or not for good: then all of this proves nothing."""
    kernel = everything = 0
    for seed, program in enumerate(some_programs(30, 0)):
        ns3.seed = seed
        data = ns3.run(program, oracle.check(program).oracle).data
        kernel += data["kernel_bytes"]
        everything += data["app_bytes"]
    assert everything > 100_000
    assert kernel < everything / 2


def test_tcp_is_the_simulators(oracle: Differential, ns3: Ns3Executor, in_memory: Ns3Executor) -> None:
    """Breaks if bytes of connections that are not promoted do not cross the network, or a run with them is
    not the one of its seed."""
    apart = dataclasses.replace(SHAPE.config, promote_after=1_000_000)
    shape = dataclasses.replace(SHAPE, warm=0, processes=2, config=apart)
    rng = random.Random(7)
    crossed = 0
    for seed in range(20):
        program = generate(shape, [rng.getrandbits(56) for _ in range(20)])
        expected = oracle.check(program).oracle
        ns3.seed = in_memory.seed = seed
        found = ns3.run(program, expected)
        assert not compare(program, expected, found)
        assert found.data["kernel_bytes"] == found.data["app_bytes"]
        crossed += ns3.tcp_bytes
        assert ns3.tcp_bytes in (0, found.data["app_bytes"]), "0: the process talks to itself"
        in_memory.run(program, expected)
        assert in_memory.tcp_bytes == 0
        before = (ns3.network, ns3.tcp_bytes, found.data)
        again = ns3.run(program, expected)
        assert before == (ns3.network, ns3.tcp_bytes, again.data)
    assert crossed > 50_000


def between_two(steps: list[dict[str, object]], faults: int) -> Program:
    """Two processes and a connection that stays on TCP: slot 2 of process 1, slot 3 of process 0."""
    opening: list[dict[str, object]] = [
        {"p": 0, "op": "socket", "s": 1},
        {"p": 0, "op": "bind", "s": 1},
        {"p": 0, "op": "listen", "s": 1, "l": 0, "backlog": 16},
        {"p": 1, "op": "socket", "s": 2},
        {"p": 1, "op": "connect", "s": 2, "l": 0, "c": 0},
        {"p": 0, "op": "accept", "from": 1, "s": 3, "c": 0},
    ]
    config = dataclasses.asdict(dataclasses.replace(SHAPE.config, promote_after=1000, fault_per_mille=faults))
    document = {"format": 1, "config": config, "hosts": [0, 0], "steps": opening + steps}
    return Program(json.dumps(document))


@pytest.mark.parametrize("faults", [0, 30])
@pytest.mark.parametrize("ended", [False, True])
def test_an_end_follows_the_bytes_in_flight(
    oracle: Differential, ns3: Ns3Executor, faults: int, ended: bool
) -> None:
    """Breaks if a connection that is closed while its last bytes are on their way never ends for its peer,
    which has perhaps ended its own direction before."""
    steps: list[dict[str, object]] = [
        *([{"p": 1, "op": "shutdown", "s": 2, "how": "write"}, {"p": 0, "op": "drain", "s": 3}] * ended),
        {"p": 0, "op": "send_all", "s": 3, "n": 5000},
        {"p": 0, "op": "close", "s": 3},
        {"p": 1, "op": "drain", "s": 2},
    ]
    program = between_two(steps, faults)
    expected = oracle.check(program).oracle
    for seed in range(1000):
        ns3.seed = seed
        found = ns3.run(program, expected)
        assert found.data["outcomes"][-1] | {"calls": 0} == {"ret": 5000, "end": True, "calls": 0}, seed


@pytest.mark.parametrize("faults", [0, 30])
def test_both_ends_at_once(oracle: Differential, ns3: Ns3Executor, faults: int) -> None:
    """Breaks if a side that has ended its direction sees its peer's end after its own is acknowledged."""
    steps: list[dict[str, object]] = [
        {"p": 0, "op": "send_all", "s": 3, "n": 30},
        {"p": 1, "op": "send_all", "s": 2, "n": 60},
        {"p": 0, "op": "shutdown", "s": 3, "how": "write"},
        {"p": 1, "op": "shutdown", "s": 2, "how": "write"},
        {"p": 0, "op": "drain", "s": 3},
        {"p": 1, "op": "drain", "s": 2},
    ]
    program = between_two(steps, faults)
    expected = oracle.check(program).oracle
    for seed in range(1000):
        ns3.seed = seed
        ends = [outcome.get("end") for outcome in ns3.run(program, expected).data["outcomes"][-2:]]
        assert ends == [True, True], seed


def notices(ns3: Ns3Executor, program: Program, expected: Trace) -> bool:
    try:
        return bool(compare(program, expected, ns3.run(program, expected)))
    except BrokenPromise:
        return True


@pytest.mark.parametrize("mutant", ["DropData", "ReorderData", "CorruptData"])
def test_faults_on_purpose_are_noticed(oracle: Differential, mutant: str) -> None:
    """Breaks if runs in ns-3 agree with the kernel under every fault of the device."""
    with Ns3Executor(EXECUTABLE, mutant=mutant) as ns3:
        for seed, program in enumerate(some_programs(60, 0)):
            ns3.seed = seed
            if notices(ns3, program, oracle.check(program).oracle):
                return
    pytest.fail(f"{mutant} lives")


def test_invalid_input_is_reported() -> None:
    """Breaks if a request that makes no sense gives an answer, or none for ever."""
    program = generate(SHAPE, [1, 2, 3])
    with Ns3Executor(EXECUTABLE, mutant="SingASong") as ns3, pytest.raises(ExecutorError):
        ns3.run(program)
