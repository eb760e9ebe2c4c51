"""libudpdk: programs that were written for UDPDK, over rings."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.apps.lib.compiling import compile_c
from tests.apps.lib.lab import Lab
from tests.apps.lib.net import free_port
from tests.apps.lib.paths import REPO, binaries
from tests.apps.lib.process import Process
from tests.apps.test_datagrams import Seen

FOLDER = REPO / "core" / "udpdk"
ROUND_TRIPS = 5000

pytestmark = pytest.mark.usefixtures("library")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built examples."""
    folder = tmp_path_factory.mktemp("udpdk")
    link = [f"-I{FOLDER / 'include'}", f"-L{binaries()}", "-ludpdk", "-lm", f"-Wl,-rpath,{binaries()}"]
    for source in (FOLDER / "examples").glob("*.c"):
        compile_c(folder / source.stem, source, *link)
    return folder


def start(lab: Lab, name: str, argv: list[str | Path], *, accelerated: bool) -> tuple[Process, Path]:
    counted = lab.folder / f"{name}.counted"
    env = {"NETACC_EXIT_STATS": str(counted)}
    return lab.start(name, argv, accelerated=accelerated, env=env), counted


@pytest.mark.parametrize("accelerated", [True, False], ids=["netacc_run", "loaded"])
def test_ping_pong(accelerated: bool, programs: Path, lab: Lab) -> None:
    """Breaks if a program has the library only under netacc_run, or has it twice there."""
    port = str(free_port())
    server, counted = start(lab, "server", [programs / "ping_pong", "server", port], accelerated=accelerated)
    server.wait_line("ready")
    client, _ = start(
        lab, "client", [programs / "ping_pong", "client", port, str(ROUND_TRIPS)], accelerated=accelerated
    )
    assert re.match(rf"{ROUND_TRIPS} round trips: mean [\d.]+ us", client.finish(100))
    assert server.wait() == 0
    seen = Seen.of(counted)
    assert seen.flows == 2
    assert seen.received_link + seen.received_kernel == ROUND_TRIPS + 1


def test_packets_and_an_interrupt(programs: Path, lab: Lab) -> None:
    port = str(free_port())
    sink, counted = start(lab, "sink", [programs / "packet_generator", "sink", port], accelerated=False)
    sink.wait_line("ready")
    source, _ = start(
        lab, "source", [programs / "packet_generator", "source", port, "0.5", "64"], accelerated=False
    )
    sent = int(source.finish(100).split()[-1])
    # It sleeps, or is about to.
    sink.popen.send_signal(signal.SIGTERM)
    assert sink.wait() == 0
    received = int(sink.stdout().split()[-1])
    seen = Seen.of(counted)
    assert 0 < received <= sent
    assert seen.received_link > 0
    assert seen.received_link + seen.received_kernel == received


def test_the_header_and_the_library_have_the_same_functions() -> None:
    declared = set(re.findall(r"\b(udpdk_\w+)\(", (FOLDER / "include" / "udpdk_api.h").read_text()))
    command = ["nm", "--dynamic", "--defined-only", "--format=just-symbols", str(binaries() / "libudpdk.so")]
    exported = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split()
    assert declared == {name for name in exported if name.startswith("udpdk_")}
    assert len(declared) == 10


def test_the_two_tables(tmp_path: Path) -> None:
    """Breaks if one of the columns of `results/udpdk.py` cannot be measured."""
    kept = tmp_path / "udpdk.json"
    command = [sys.executable, str(REPO / "results/udpdk.py"), "--rounds", "1", "--seconds", "0.1"]
    command += ["--sizes", "64", "--port", str(free_port()), "--json", str(kept)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)
    columns = json.loads(kept.read_text())
    assert list(columns["packets"]["64"]) == list(columns["round_trips"]) == ["kernel", "library", "libudpdk"]
    for measured in columns["packets"]["64"].values():
        assert measured[0]["packets_per_s"] > 0
    for measured in columns["round_trips"].values():
        assert measured[0]["mean"] > 0
    assert "| 64 |" in done.stdout and "| deviation |" in done.stdout
