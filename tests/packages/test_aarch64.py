"""Packages for aarch64, by QEMU's user mode: with the C library of an old Debian they accelerate Redis.

`ci/run.sh packages-aarch64` makes them. QEMU does not follow an exec into another program of its kind, so no
package manager runs there, and netacc_run only shows its help.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ci.packages import symbols
from ci.packages.__main__ import version
from ci.packages.layout import MACHINES, PROGRAMS
from tests.apps.lib.lab import Lab
from tests.apps.lib.net import free_port, wait_listening
from tests.packages import roots

PACKAGES = roots.REPO / "target/packages"
MACHINE = MACHINES["aarch64"]
REQUESTS = 2000
SIZE = 512
#: Of the bytes: promotion takes longer under emulation.
SHARE = 0.5


def unpack_deb(root: Path) -> tuple[str, str]:
    (package,) = PACKAGES.glob("*_arm64.deb")
    subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)
    return "usr/bin", MACHINE.multiarch


def unpack_rpm(root: Path) -> tuple[str, str]:
    (package,) = PACKAGES.glob("*.aarch64.rpm")
    words = ["rpm", "--root", str(root), "--install", "--nodeps", "--ignorearch", "--noscripts", str(package)]
    subprocess.run(words, check=True, capture_output=True)
    return "usr/bin", "usr/lib64"


def unpack_tar(root: Path) -> tuple[str, str]:
    (package,) = PACKAGES.glob("*-aarch64.tar.gz")
    (root / "opt").mkdir(exist_ok=True)
    subprocess.run(["tar", "-C", str(root / "opt"), "-xf", str(package)], check=True)
    folder = f"opt/netacc-lab-{version()}-aarch64"
    return f"{folder}/bin", f"{folder}/lib"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    found = Lab(tmp_path, env={})
    try:
        yield found
    finally:
        found.close()


@pytest.mark.parametrize("unpacked", [unpack_deb, unpack_rpm, unpack_tar], ids=["deb", "rpm", "tar"])
def test_redis_is_accelerated(unpacked: Callable[[Path], tuple[str, str]], lab: Lab, tmp_path: Path) -> None:
    root = roots.unpack("bullseye", tmp_path, "arm64")
    programs, libraries = unpacked(root)
    qemu = ["qemu-aarch64", "-L", str(root)]
    for name in PROGRAMS:
        shown = subprocess.run([*qemu, str(root / programs / name), "-h"], capture_output=True, text=True)
        assert shown.returncode == 0 and "Usage:" in shown.stdout, (name, shown)

    def accelerated(name: str, *words: str) -> list[str]:
        variables = {
            "LD_PRELOAD": root / libraries / "libnetacc-preload.so",
            "NETACC_EXIT_STATS": tmp_path / f"{name}.stats",
        }
        set_there = [word for key, value in variables.items() for word in ("-E", f"{key}={value}")]
        return [*qemu, *set_there, str(root / "usr/bin" / name), *words]

    port = free_port()
    server = lab.start(
        "server", accelerated("redis-server", "--port", str(port), "--save", "", "--bind", "127.0.0.1")
    )
    wait_listening(port, server)
    load = ["-p", str(port), "-t", "set", "-n", str(REQUESTS), "-d", str(SIZE), "-c", "4", "-q"]
    lab.start("load", accelerated("redis-benchmark", *load)).finish(100)
    (line,) = (tmp_path / "redis-benchmark.stats").read_text().splitlines()
    assert json.loads(line)["cnt"]["tx_bytes_link"] >= SHARE * REQUESTS * SIZE


@pytest.mark.parametrize("unpacked", [unpack_deb, unpack_rpm, unpack_tar], ids=["deb", "rpm", "tar"])
def test_the_loader_of_each_system_has_all_symbols(
    unpacked: Callable[[Path], object], tmp_path: Path
) -> None:
    unpacked(tmp_path)
    names = {path.name for path in symbols.programs(tmp_path)}
    assert names == {*PROGRAMS, "libnetacc-preload.so"}
    assert symbols.lacking(tmp_path, symbols.OLDEST) == {}
