"""Programs for aarch64 with the library, by QEMU's user mode: their bytes go over links between them.

`ci/run.sh aarch64` builds the library. There is no netacc_run here: QEMU does not follow an exec into another
program of its kind, unless the kernel is told of QEMU.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apps.lib.lab import Lab
from tests.apps.lib.modes import Mode
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.paths import REPO

LIBRARY = REPO / "target/aarch64-unknown-linux-gnu/debug/libnetacc_preload.so"
QEMU = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
COUNT = 20_000
MESSAGE = 64
#: Of the bytes: promotion takes longer under emulation.
SHARE = 0.5


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("aarch64") / "pair"
    source = Path(__file__).parent / "pair.c"
    subprocess.run(["aarch64-linux-gnu-gcc", "-O2", "-Wall", "-o", program, source], check=True)
    return program


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    found = Lab(tmp_path, env={})
    try:
        yield found
    finally:
        found.close()


def command(lab: Lab, name: str, accelerated: bool, *program: str) -> list[str]:
    if not accelerated:
        return [*QEMU, *program]
    counted = lab.folder / f"{name}.counted"
    return [*QEMU, "-E", f"LD_PRELOAD={LIBRARY}", "-E", f"NETACC_EXIT_STATS={counted}", *program]


def link_bytes(lab: Lab, name: str) -> int:
    (line,) = (lab.folder / f"{name}.counted").read_text().splitlines()
    count = json.loads(line)["cnt"]
    return int(count["rx_bytes_link"] + count["tx_bytes_link"])


@pytest.mark.parametrize("mode", list(Mode), ids=[mode.value for mode in Mode])
def test_a_conversation(mode: Mode, lab: Lab, pair: Path) -> None:
    port = free_port()
    sides = {"serve": mode.server, "ask": mode.client}
    server, client = (
        command(lab, name, accelerated, str(pair), name, str(port), str(COUNT))
        for name, accelerated in sides.items()
    )
    serving = lab.start("serve", server)
    wait_listening(port, serving)
    assert lab.start("ask", client).finish(100) == f"{COUNT} answers\n"
    assert serving.wait() == 0
    for name, accelerated in sides.items():
        if accelerated:
            seen = link_bytes(lab, name)
            assert seen == 0 if mode.one_sided else seen >= SHARE * 2 * COUNT * MESSAGE, (name, seen)
