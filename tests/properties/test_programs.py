"""A program sees the same as on kernel TCP, with any operations on its sockets."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from netacc_lab import HarnessExecutor, Mix, Program, compare, generate
from netacc_lab.differential import Differential, OpenFindings, Tally
from netacc_lab.program import Shape
from netacc_lab.simulated import MIXES
from netacc_lab.strategies import decisions, from_seed, programs, shapes

from tests.properties.conftest import PROFILE

HERE = Path(__file__).parent
REGRESSIONS = sorted((HERE / "regressions").glob("*.json"))
SCHEMA = json.loads((HERE.parent / "program/schema.json").read_text())
OPEN = OpenFindings.load(HERE / "open.json")
# The operations that the simulation has a model of.
SIMULATED = MIXES["harness"]
TRIES = 12  # of an open regression that depends on timing


def explain(program: Program, signature: str, detail: str) -> str:
    replay = "Save as program.json; replay: python -m netacc_lab replay program.json"
    return f"{signature}\n{detail}\n{replay}\n{program.pretty()}"


@given(program=programs(PROFILE))
def test_accelerated(lab: Differential, program: Program) -> None:
    """Breaks wherever the library's sockets differ from the kernel's."""
    verdict = lab.check(program)
    if verdict.failed and not OPEN.explain(verdict):
        pytest.fail(explain(program, verdict.signature, verdict.differences[0].describe()))


@settings(max_examples=8 * settings().max_examples)
@given(
    shape=shapes(PROFILE, SIMULATED),
    made=decisions(PROFILE),
    seed=st.integers(0, 2**32),
    faults=st.sampled_from((0, 1, 5, 30)),
    preset=st.sampled_from(("", "nic")),
)
def test_core(
    oracle: Differential, shape: Shape, made: list[int], seed: int, faults: int, preset: str
) -> None:
    """Breaks wherever the core's streams differ from the kernel's, with any faults beneath them."""
    program = generate(
        dataclasses.replace(shape, config=dataclasses.replace(shape.config, fault_per_mille=faults)), made
    )
    expected = oracle.check(program).oracle
    executor = HarnessExecutor(seed=seed, preset=preset)
    found = executor.run(program, expected)
    differences = compare(program, expected, found)
    if differences:
        signature = f"{executor.name}, seed {seed}: {differences[0].signature}"
        pytest.fail(explain(program, signature, differences[0].describe()))


@given(program=programs(PROFILE))
def test_oracle_is_stable(oracle: Differential, program: Program) -> None:
    """Breaks if a program's result depends on a freedom of kernel TCP."""
    verdict = oracle.check(program)
    assert not verdict.differences, verdict.differences[0].describe()


def test_most_programs_leave_the_kernel(lab: Differential) -> None:
    """Breaks if the programs with a warm phase do not reach the link: then all the others prove nothing."""
    tally = Tally()
    shape = Shape(mix=Mix.DATA, warm=12)
    rng = random.Random(1)
    for index, verdict in lab.check_all(
        generate(shape, [rng.getrandbits(56) for _ in range(30)]) for _ in range(60)
    ):
        tally.add(str(index), verdict)
    assert tally.moved >= 0.8 * tally.programs, tally.describe()


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: path.stem)
def test_regression(lab: Differential, path: Path) -> None:
    """A program that once failed. While its finding is open it must fail, so that it is not forgotten."""
    program = Program.load(path)
    still_open = program.data.get("note", "").startswith("open")
    for _ in range(TRIES):
        verdict = lab.check(program)
        if verdict.failed and still_open:
            return
        if verdict.failed:
            pytest.fail(explain(program, verdict.signature, verdict.differences[0].describe()))
    if still_open:
        pytest.fail(
            f"{path.name} agrees {TRIES} times: if its finding is fixed, let its note begin with 'fixed'"
        )


@given(program=programs(PROFILE))
def test_schema_accepts_every_program(program: Program) -> None:
    """Breaks if the format changes and its schema does not."""
    Draft202012Validator(SCHEMA).validate(program.data)


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: path.stem)
def test_schema_accepts_every_regression(path: Path) -> None:
    Draft202012Validator(SCHEMA).validate(json.loads(path.read_text()))


def test_seeds_replay() -> None:
    """Breaks if a seed does not give the same program twice."""
    assert from_seed(7).program == from_seed(7).program
    assert from_seed(7).program != from_seed(8).program


def test_unsound_programs_are_refused() -> None:
    sound = generate(Shape(), [1, 2, 3]).data
    wrong_process = [{"p": 9, "op": "exec"}]
    unknown_operation = [{"p": 0, "op": "sing"}]
    changes: list[dict[str, Any]] = [
        {"format": 2},
        {"hosts": []},
        {"steps": wrong_process},
        {"steps": unknown_operation},
    ]
    for change in changes:
        with pytest.raises(ValueError, match=r"."):
            Program.parse(json.dumps(sound | change))
