"""The cost of a call in instructions: callgrind counts them, and gets the same count each time."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.apps.lib.paths import PROGRAMS
from tests.apps.test_sanitizers import accelerated

RECORDED = Path(__file__).with_name("instructions.toml")
#: Of the recorded count. Compilers and C libraries differ by less.
TOLERANCE = 0.03
#: Round trips of two runs. Their difference is counted, because both begin in the same way.
FEW, MANY = 2_000, 22_000


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("instructions") / "instructions"
    flags = ["-std=gnu17", "-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *flags, "-o", built, PROGRAMS / "instructions.c"], check=True, timeout=60)
    return built


def collected(folder: Path, program: Path, call: str, round_trips: int) -> int:
    """Instructions within `call`, and the functions that it calls, of a whole run on a link."""
    profile = folder / "profile"
    flags = ["--tool=callgrind", f"--toggle-collect={call}", f"--callgrind-out-file={profile}"]
    done = accelerated(folder, ["valgrind", *flags, program, str(round_trips)])
    assert (done.status, done.out) == (0, "done\n"), done.err
    assert done.link_bytes >= 0.95 * 2 * 64 * round_trips
    totals = [line.split()[1] for line in profile.read_text().splitlines() if line.startswith("totals:")]
    return int(totals[-1])


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("call", ["send", "recv"])
def test_a_call_takes_as_many_instructions_as_recorded(call: str, program: Path, tmp_path: Path) -> None:
    recorded = tomllib.loads(RECORDED.read_text())["instructions"][call]
    few, many = (collected(tmp_path, program, call, round_trips) for round_trips in (FEW, MANY))
    each = (many - few) / (2 * (MANY - FEW))
    assert abs(each - recorded) <= TOLERANCE * recorded, f"{call} takes {each:.1f}, recorded are {recorded}"
