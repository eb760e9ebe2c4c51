"""The choice between spinning and sleeping, of a whole program: counted by the library, not timed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.apps.lib.paths import PROGRAMS, binaries

pytestmark = pytest.mark.usefixtures("library")

ROUND_TRIPS = 60_000
#: Trials of the way that loses, and the time until the first of them is over.
SPINS_ON_ONE_PROCESSOR = 0.2


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("waiting") / "ping_pong"
    flags = ["-std=gnu17", "-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *flags, "-o", built, PROGRAMS / "ping_pong.c"], check=True, timeout=60)
    return built


def waits(folder: Path, command: list[str | Path]) -> list[tuple[int, int]]:
    """How many waits of each of the two processes began with a spin, and how many without."""
    counted = folder / "counted"
    env = {"PATH": "/usr/bin:/bin", "NETACC_CONF": "/dev/null", "NETACC_EXIT_STATS": str(counted)}
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL, timeout=300)
    lines = [json.loads(line)["cnt"] for line in counted.read_text().splitlines()]
    assert len(lines) == 2
    assert all(line["tx_bytes_link"] >= 0.9 * 64 * ROUND_TRIPS for line in lines)
    return [(line["waits_spun"], line["waits_slept"]) for line in lines]


def spins_rarely(folder: Path, program: Path, words: list[str]) -> bool:
    """Whether both processes, on one processor, begin few waits with a spin."""
    processor = str(min(os.sched_getaffinity(0)))
    command: list[str | Path] = ["taskset", "-c", processor, *words, binaries() / "netacc_run"]
    command += [program, str(ROUND_TRIPS)]
    return all(
        spun + slept >= ROUND_TRIPS / 4 and spun <= SPINS_ON_ONE_PROCESSOR * (spun + slept)
        for spun, slept in waits(folder, command)
    )


def test_two_processes_on_one_processor_do_not_spin(program: Path, tmp_path: Path) -> None:
    """Breaks if a spinner stands in the way of its own peer."""
    assert spins_rarely(tmp_path, program, [])


def test_real_time_processes_on_one_processor_do_not_spin(
    program: Path, tmp_path: Path, need_condition: Callable[[str, bool], None]
) -> None:
    """Breaks if they wait for each other: a peer of the same priority runs only once the spinner sleeps."""
    need_condition("root", os.geteuid() == 0)
    assert spins_rarely(tmp_path, program, ["chrt", "-f", "1"])
