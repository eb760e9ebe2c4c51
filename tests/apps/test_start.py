"""The cost of starting a program that opens no socket, as counts: system calls and page faults."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.apps.lib.paths import binaries

pytestmark = pytest.mark.usefixtures("library")

PROGRAM = "/bin/true"
#: Of the library: it is mapped (8 calls), looks for sockets that the program was started with (a call for
#: each of the descriptors 0 to 63), protects its data, and maps the program's file to see whether it is Go
#: (5 calls). It loads no library, reads no other file, allocates nothing.
LIBRARY_CALLS = 79
#: Of `netacc_run`: its own start (3 calls), the configuration (5), the program's file (10), and the library
#: (2). It reads a file once, and memory is an array of its own.
LAUNCHER_CALLS = 20
#: Measured: 28 to 33, of which about half are for relocated data.
LIBRARY_FAULTS = 38
#: Measured: 16 to 18. With the C library's memory there were 2 to 4 more, and 5 to 8 more for relocated data.
LAUNCHER_FAULTS = 20
#: Whether a page of a file is mapped together with others depends on the page cache.
RUNS = 5


@dataclass(frozen=True)
class Cost:
    calls: int
    faults: int


def faults(words: list[str], env: dict[str, str]) -> int:
    pid = os.posix_spawn(words[0], words, env)
    _, status, usage = os.wait4(pid, 0)
    assert status == 0
    return usage.ru_minflt


def calls(words: list[str], env: dict[str, str], trace: Path) -> int:
    subprocess.run(["strace", "-o", str(trace), *words], env=env, check=True, timeout=60)
    return sum(1 for line in trace.read_text().splitlines() if "(" in line)


def cost(words: list[str], env: dict[str, str], folder: Path) -> Cost:
    env = {"PATH": "/usr/bin:/bin", "NETACC_CONF": "/dev/null", **env}
    return Cost(calls(words, env, folder / "trace"), min(faults(words, env) for _ in range(RUNS)))


def preloaded() -> dict[str, str]:
    return {"LD_PRELOAD": str(binaries() / "libnetacc-preload.so")}


def test_preloading_adds_few_calls_and_page_faults(tmp_path: Path) -> None:
    plain = cost([PROGRAM], {"LD_PRELOAD": ""}, tmp_path)
    ours = cost([PROGRAM], preloaded(), tmp_path)
    # strace is preloaded too, but starts before it counts.
    assert ours.calls - plain.calls <= LIBRARY_CALLS
    assert ours.faults - plain.faults <= LIBRARY_FAULTS


def test_netacc_run_adds_few_calls_and_page_faults(tmp_path: Path) -> None:
    ours = cost([PROGRAM], preloaded(), tmp_path)
    by_launcher = cost([str(binaries() / "netacc_run"), PROGRAM], {}, tmp_path)
    assert by_launcher.calls - ours.calls <= LAUNCHER_CALLS
    assert by_launcher.faults - ours.faults <= LAUNCHER_FAULTS
