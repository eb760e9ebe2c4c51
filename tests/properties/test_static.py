"""A program sees the same as on kernel TCP, also if its executor has no shared C library.

`ci/run.sh props` runs some, `ci/run.sh props-static` many.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from netacc_lab import Mix, Program, generate
from netacc_lab.differential import Differential, Tally
from netacc_lab.program import Shape
from netacc_lab.strategies import programs

from tests.apps.lib.counters import sum_of
from tests.properties.conftest import PROFILE
from tests.properties.test_programs import OPEN, explain

#: Programs that move data only.
DATA_PROGRAMS = 40


@settings(max_examples=settings().max_examples // 5)
@given(program=programs(PROFILE))
def test_accelerated(static_lab: Differential, program: Program) -> None:
    """Breaks wherever a static program's sockets differ from the kernel's."""
    verdict = static_lab.check(program)
    if verdict.failed and not OPEN.explain(verdict):
        pytest.fail(explain(program, verdict.signature, verdict.differences[0].describe()))


def test_bytes_are_on_links(static_lab: Differential) -> None:
    """Breaks if the executor runs plainly: then all the others prove nothing."""
    tally = Tally()
    shape = Shape(mix=Mix.DATA, warm=12)
    rng = random.Random(2)
    drawn = [[rng.getrandbits(56) for _ in range(30)] for _ in range(DATA_PROGRAMS)]
    for index, verdict in static_lab.check_all(generate(shape, decisions) for decisions in drawn):
        tally.add(str(index), verdict)
    assert tally.failed == 0, tally.describe()
    coordinator = static_lab.other(shape.config).pid
    workers = Path(f"/proc/{coordinator}/task/{coordinator}/children").read_text().split()
    counted = sum_of(int(pid) for pid in workers)
    # Usually nine tenths. Programs are short, so it is less on a busy machine.
    assert counted.link_bytes > 0.1 * counted.tcp_bytes, counted.describe()
