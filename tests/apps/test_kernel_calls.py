"""Instructions that a static program needs more for calls that are the kernel's alone, counted one by one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.apps.lib.compiling import compile_c
from tests.apps.lib.paths import PROGRAMS, binaries

pytestmark = pytest.mark.usefixtures("library")

CALLS = 100
#: Of each call, besides those of the program: all assembly, so they are alike in each build. While nothing is
#: accelerated, writing to a connection costs as much as reading a file: the descriptor decides.
ADDED = {"getppid": 10, "read of a file": 16, "write of a connection": 16, "read of a connection": 16}
#: As in test_instructions.py: a change that adds or saves more has to be recorded here.
TOLERANCE = 0.03


def counted(steps: Path, *command: str | Path) -> list[float]:
    """Instructions of one call of each kind."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("NACC_", "NETACC_"))}
    done = subprocess.run(
        [steps, *command, str(CALLS)],
        env=clean | {"NACC_ENABLE_RDMA_DEFAULT": "0", "NETACC_CONF": "/dev/null"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    empty, *sections = (int(line) for line in done.stdout.splitlines())
    return [(section - empty) / CALLS for section in sections]


def test_calls_of_the_kernel_cost_as_many_instructions_as_recorded(tmp_path: Path) -> None:
    """Breaks if a call that is not the library's saves registers, or comes to the library at all."""
    sources = PROGRAMS / "static"
    steps = compile_c(tmp_path / "steps", sources / "steps.c")
    sections = compile_c(tmp_path / "sections", sources / "sections.c", "-static")
    plain = counted(steps, sections)
    patched = counted(steps, binaries() / "netacc_run", sections)
    added = dict(zip(ADDED, (b - a for a, b in zip(plain, patched, strict=True)), strict=True))
    for call, recorded in ADDED.items():
        assert abs(added[call] - recorded) <= TOLERANCE * recorded, (
            f"{call}: {added[call]:.2f} instructions more, recorded are {recorded}; all: {added}"
        )
