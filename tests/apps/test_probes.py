"""The probes of the library (USDT): the kernel sees them, with arguments, in programs that run with it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.apps.lib.lab import Lab
from tests.apps.lib.modes import Mode
from tests.apps.lib.paths import binaries
from tests.apps.test_datagrams import run as run_datagrams
from tests.apps.test_fallback import echo_client, start_echo

#: One of the notes of the library, as readelf shows it.
NOTE = re.compile(r"Name: (\w+)\s+Location: 0x([0-9a-f]+)[^\n]*\s+Arguments: ([^\n]*)")
#: As the kernel names the registers of x86-64.
REGISTER = re.compile(r"-8@%r(\w+)")


class Probe(NamedTuple):
    name: str
    offset: int
    registers: list[str]


def library() -> Path:
    return binaries() / "libnetacc-preload.so"


def readelf(option: str) -> str:
    return subprocess.run(["readelf", option, library()], capture_output=True, text=True, check=True).stdout


def probes() -> list[Probe]:
    """Those that the library's notes name. Offsets are in the file."""
    segments = []
    for line in readelf("-lW").splitlines():
        words = line.split()
        if words[:1] == ["LOAD"]:
            offset, address, size = (int(words[i], 16) for i in (1, 2, 4))
            segments.append((offset, address, size))
    found = []
    for name, location, arguments in NOTE.findall(readelf("-n")):
        at = int(location, 16)
        (place,) = (
            at - address + offset for offset, address, size in segments if address <= at < address + size
        )
        registers = [
            f"r{register}" if register[0].isdigit() else register for register in REGISTER.findall(arguments)
        ]
        found.append(Probe(name, place, registers))
    return found


@pytest.fixture
def tracing(tmp_path: Path, need_condition: Callable[[str, bool], None]) -> Iterator[Path]:
    """The kernel's tracing, in a folder of this test."""
    mounted = subprocess.run(["mount", "-t", "tracefs", "nodev", tmp_path], capture_output=True)
    there = mounted.returncode == 0 and (tmp_path / "uprobe_events").exists()
    try:
        need_condition("uprobes", there)
        yield tmp_path
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", tmp_path], check=True)


def define(tracing: Path, event: str) -> None:
    # Appended without a seek, which this file refuses.
    file = os.open(tracing / "uprobe_events", os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, f"{event}\n".encode())
    finally:
        os.close(file)


@contextmanager
def traced(tracing: Path) -> Iterator[Callable[[str], list[list[int]]]]:
    """While it lasts, the kernel notes each program that comes by a probe: the arguments, by name."""
    group = f"netacc_test_{os.getpid()}"
    instance = tracing / "instances" / group
    known = probes()
    instance.mkdir()
    try:
        for one in known:
            arguments = " ".join(f"a{i}=%{register}:s64" for i, register in enumerate(one.registers))
            define(tracing, f"p:{group}/{one.name} {library().resolve()}:{one.offset:#x} {arguments}")
        (instance / f"events/{group}/enable").write_text("1")

        def seen(name: str) -> list[list[int]]:
            lines = [line for line in (instance / "trace").read_text().splitlines() if f" {name}: " in line]
            return [[int(value) for value in re.findall(r"a\d=(-?\d+)", line)] for line in lines]

        yield seen
    finally:
        enable = instance / f"events/{group}/enable"
        if enable.exists():
            enable.write_text("0")
        instance.rmdir()
        for one in known:
            with suppress(FileNotFoundError):
                define(tracing, f"-:{group}/{one.name}")


@pytest.mark.usefixtures("library")
def test_names_and_arguments() -> None:
    """Breaks if a release had lost the notes."""
    assert {one.name: len(one.registers) for one in probes()} == {"moved": 3, "kept": 2, "flow": 2}


@pytest.mark.usefixtures("library")
def test_the_kernel_sees_them(lab: Lab, tracing: Path) -> None:
    with traced(tracing) as seen:
        _, port = start_echo(lab)
        client, _ = lab.client("echo-client", echo_client(port), accelerated=True)
        lab.dismiss(client)
        promoted = [where for _, where, _ in seen("moved")]
        assert promoted.count(1) >= 2, "both ends"
        # With the client alone accelerated there is a reason.
        _, port = start_echo(lab, accelerated=False)
        client, _ = lab.client("echo-client", echo_client(port), accelerated=True)
        lab.dismiss(client)
        assert any(reason > 0 for _, reason in seen("kept"))
        assert not seen("flow")
        run_datagrams(lab, Mode.SHM, "blocking")
        assert sorted(sends for _, sends in seen("flow")) == [0, 0, 1, 1]
