"""Programs that are built with sanitizers, or run under valgrind: they come to the same as on TCP, on links.
The faults of a program are still found."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.apps.lib.compiling import compile_c, compile_program
from tests.apps.lib.paths import PROGRAMS, binaries

SOURCE = PROGRAMS / "sanitized.c"

#: At least so many bytes of a run are on a link: of 400 messages of 4000 bytes each way.
LEAST = 1_000_000

#: Builds by name, and the compiler's flags.
BUILDS = {
    "none": [],
    "address": ["-fsanitize=address"],
    "address-static": ["-fsanitize=address", "-static-libasan"],
    "thread": ["-fsanitize=thread"],
    "thread-static": ["-fsanitize=thread", "-static-libtsan"],
    "undefined": ["-fsanitize=undefined"],
    "leak": ["-fsanitize=leak"],
}

#: The report of a sanitizer about a faulty program.
FINDINGS = {
    ("address", "overflow"): "heap-buffer-overflow",
    ("address-static", "overflow"): "heap-buffer-overflow",
    ("address", "leak"): "1234 byte(s) leaked in 1 allocation(s)",
    ("address-static", "leak"): "1234 byte(s) leaked in 1 allocation(s)",
    ("leak", "leak"): "1234 byte(s) leaked in 1 allocation(s)",
    ("thread", "race"): "data race",
    ("thread-static", "race"): "data race",
}


@dataclass(frozen=True)
class Done:
    """A run that is over."""

    status: int
    out: str
    err: str
    link_bytes: int


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The program in every build."""
    folder = tmp_path_factory.mktemp("sanitized")
    common = ["-g", "-O1", "-pthread"]
    return {name: compile_c(folder / name, SOURCE, *common, *flags) for name, flags in BUILDS.items()}


def run(folder: Path, command: list[str | Path], **environment: str) -> Done:
    counted = folder / "counted"
    counted.unlink(missing_ok=True)
    dropped = ("LD_PRELOAD", "NACC_", "NETACC_", "ASAN_", "TSAN_", "LSAN_", "UBSAN_")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    done = subprocess.run(
        command,
        env=clean | {"NETACC_EXIT_STATS": str(counted)} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = counted.read_text().splitlines() if counted.exists() else []
    link_bytes = sum(json.loads(line)["cnt"]["tx_bytes_link"] for line in lines)
    return Done(done.returncode, done.stdout, done.stderr, link_bytes)


def accelerated(folder: Path, command: list[str | Path], **environment: str) -> Done:
    return run(folder, [binaries() / "netacc_run", "-F", "1", *command], **environment)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("case", ["thread", "fork", "handover"])
@pytest.mark.parametrize("build", BUILDS)
def test_a_right_program_is_right(build: str, case: str, programs: dict[str, Path], tmp_path: Path) -> None:
    natively = run(tmp_path, [programs[build], case])
    assert (natively.status, natively.err) == (0, "")
    seen = accelerated(tmp_path, [programs[build], case])
    # Of every child of a process with several threads, and the helper is one.
    reported = [
        line for line in seen.err.splitlines() if "was not suspended. False leaks are possible" not in line
    ]
    assert (seen.status, seen.out, reported) == (0, natively.out, [])
    assert seen.link_bytes >= LEAST


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("build", "case"), FINDINGS)
def test_faults_are_found(build: str, case: str, programs: dict[str, Path], tmp_path: Path) -> None:
    """Breaks if the runtime does not see a call because the library comes first."""
    natively = run(tmp_path, [programs[build], case])
    assert natively.status not in (0, 3), natively.err
    assert FINDINGS[build, case] in natively.err
    seen = accelerated(tmp_path, [programs[build], case])
    assert (seen.status, seen.out) == (natively.status, natively.out)
    assert FINDINGS[build, case] in seen.err


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("build", ["address", "thread"])
def test_a_program_that_another_starts_runs_too(
    build: str, programs: dict[str, Path], tmp_path: Path
) -> None:
    """Without netacc_run, which puts the runtime first, the library comes first."""
    shell = shutil.which("sh")
    assert shell is not None
    seen = accelerated(tmp_path, [shell, "-c", f"{programs[build]} fork; echo status $?"])
    assert seen.out.endswith("status 0\n"), seen.err
    assert seen.link_bytes >= LEAST


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("build", ["address", "thread"])
def test_started_programs_have_no_runtime(build: str, programs: dict[str, Path], tmp_path: Path) -> None:
    seen = accelerated(tmp_path, [programs[build], "starts"])
    assert (seen.status, seen.err) == (0, "")
    listed = seen.out.splitlines()[-1]
    assert listed == str(binaries().resolve() / "libnetacc-preload.so")


@pytest.mark.usefixtures("library")
def test_no_fork_finds_the_library_allocating(tmp_path: Path) -> None:
    """A child inherits locks that are held. Without the library none is: the program has one thread."""
    program = compile_program(tmp_path, "unguarded", "-fno-builtin")
    natively = run(tmp_path, [program, "40"])
    assert (natively.status, natively.out, natively.err) == (0, "80 of 80 children were right\n", "")
    seen = accelerated(tmp_path, [program, "40"])
    assert (seen.status, seen.out, seen.err) == (0, natively.out, "")
    assert seen.link_bytes > 0


@pytest.mark.usefixtures("library")
def test_options_of_the_user_are_kept(programs: dict[str, Path], tmp_path: Path) -> None:
    seen = accelerated(tmp_path, [programs["thread"], "race"], TSAN_OPTIONS="exitcode=21")
    assert seen.status == 21
    assert "data race" in seen.err and "libnetacc" not in seen.err


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("case", ["thread", "fork"])
def test_valgrind_finds_nothing(case: str, programs: dict[str, Path], tmp_path: Path) -> None:
    flags = ["--quiet", "--leak-check=full", "--errors-for-leak-kinds=definite", "--error-exitcode=9"]
    command: list[str | Path] = ["valgrind", *flags, programs["none"], case]
    natively = run(tmp_path, command)
    assert natively.status == 0
    seen = accelerated(tmp_path, command)
    # It does not have SIOCOUTQNSD, and reports that.
    assert (seen.status, seen.out) == (0, natively.out), seen.err
    assert "definitely lost" not in seen.err
    assert seen.link_bytes > 0
