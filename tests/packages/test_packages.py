"""Packages on systems without a compiler: in unpacked root file systems they accelerate Redis."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci.packages import symbols
from ci.packages.__main__ import epoch, make, version
from tests.apps.lib.paths import binaries
from tests.packages import roots

PACKAGES = roots.REPO / "target/packages"
REQUESTS = 20_000
SIZE = 512

# Sections end in a line of their own; the server goes on while the package is replaced.
REDIS = """
start() {{
    netacc_run redis-server --port 7999 --save "" >/tmp/redis.log 2>&1 & server=$!
    tries=0
    until redis-cli -p 7999 ping >/dev/null 2>&1; do
        tries=$((tries + 1)); [ $tries -lt 300 ] || {{ cat /tmp/redis.log; exit 1; }}
    done
}}
load() {{ netacc_run redis-benchmark -p 7999 -t set -n {requests} -d {size} -c 20 -q >/tmp/load.log 2>&1; }}
counters() {{ netacc_ss -p $server -s cnt --json; }}
"""
HELPERS = REDIS.format(requests=REQUESTS, size=SIZE)
REDIS_SCRIPT = HELPERS + "start; load; counters; kill $server; wait $server || true"


def package(pattern: str) -> Path:
    (found,) = PACKAGES.glob(pattern)
    return found


def install_deb(root: Path) -> str:
    shutil.copy(package("*.deb"), root / "package.deb")
    return "dpkg -i /package.deb >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; exit 1; }\n"


def install_rpm(root: Path) -> str:
    # The system has no rpm's database that could know what dpkg has installed.
    words = ["rpm", "--root", str(root), "--install", "--nodeps", "--ignorearch", str(package("*.rpm"))]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return ""


def install_tar(root: Path) -> str:
    subprocess.run(["tar", "-C", str(root / "opt"), "-xf", str(package("*.tar.gz"))], check=True)
    return f"PATH=/opt/netacc-lab-{version()}-x86_64/bin:$PATH\n"


def bytes_on_links(counters: dict[str, Any]) -> int:
    assert counters["cnt"]["links_established"] > 0
    return int(counters["cnt"]["rx_bytes_link"])


def test_two_builds_have_the_same_bytes(tmp_path: Path) -> None:
    made = make(binaries(), tmp_path, version(), epoch())
    assert len(made) == 3
    for path in made:
        assert path.read_bytes() == (PACKAGES / path.name).read_bytes(), path.name


def test_the_check_of_symbols_finds_a_newer_glibc(tmp_path: Path) -> None:
    # The library of `make build` takes this machine's versions.
    shutil.copy(binaries() / "libnetacc-preload.so", tmp_path)
    assert symbols.needed(tmp_path / "libnetacc-preload.so") > symbols.OLDEST
    assert list(symbols.too_new(tmp_path)) == ["libnetacc-preload.so"]
    shutil.copy(binaries() / "libnetacc_portable.so", tmp_path / "libnetacc-preload.so")
    assert symbols.needed(tmp_path / "libnetacc-preload.so") == symbols.OLDEST
    assert symbols.too_new(tmp_path) == {}


@pytest.mark.parametrize("install", [install_deb, install_rpm, install_tar], ids=["deb", "rpm", "tar"])
@pytest.mark.parametrize("suite", roots.suites())
def test_redis_is_accelerated(suite: str, install: Callable[[Path], str], tmp_path: Path) -> None:
    root = roots.unpack(suite, tmp_path)
    prepared = install(root)
    counters = json.loads(roots.run(root, prepared + REDIS_SCRIPT))
    assert bytes_on_links(counters) >= 0.9 * REQUESTS * SIZE


def newer(folder: Path) -> Path:
    """A later version of the .deb, with another configuration."""
    tree = folder / "newer"
    subprocess.run(["dpkg-deb", "-R", str(package("*.deb")), str(tree)], check=True)
    control = tree / "DEBIAN/control"
    control.write_text(control.read_text().replace(f"Version: {version()}", "Version: 99.0"))
    conf = tree / "etc/netacc.conf"
    conf.write_text(conf.read_text() + "# of the newer version\n")
    path = folder / "newer.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "--build", str(tree), str(path)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return path


@pytest.mark.parametrize("suite", roots.suites()[:1])
def test_an_upgrade_keeps_the_configuration_and_running_programs(suite: str, tmp_path: Path) -> None:
    root = roots.unpack(suite, tmp_path)
    shutil.copy(newer(tmp_path), root / "newer.deb")
    script = (
        install_deb(root)
        + HELPERS
        + (
            "ldconfig -p | grep -c libnetacc-preload.so\n"
            "echo NACC_POLL_MS=7 >>/etc/netacc.conf\n"
            "start; load; counters | tr -d '\\n'; echo\n"
            "dpkg --force-confdef -i /newer.deb >/dev/null 2>&1\n"
            "load; counters | tr -d '\\n'; echo\n"
            "kill $server; wait $server || true\n"
            "tail -n 1 /etc/netacc.conf; tail -n 1 /etc/netacc.conf.dpkg-dist\n"
            "units=/etc/systemd/system\n"
            "netacc enable redis-server >/dev/null; cat $units/redis-server.service.d/netacc.conf\n"
            "netacc disable redis-server >/dev/null; ls $units | grep -c redis-server.service.d || true\n"
        )
    )
    listed, before, after, kept, new, *drop_in, left = roots.run(root, script).splitlines()
    assert listed == "1", "ldconfig lists the library"
    bytes_before, bytes_after = (bytes_on_links(json.loads(text)) for text in (before, after))
    assert bytes_after - bytes_before >= 0.9 * REQUESTS * SIZE, (
        "the running server takes links from newer clients"
    )
    assert (kept, new) == ("NACC_POLL_MS=7", "# of the newer version")
    assert drop_in[-1] == "Environment=LD_PRELOAD=/usr/lib/x86_64-linux-gnu/libnetacc-preload.so"
    assert left == "0", "netacc disable leaves nothing behind"


def test_the_rpm_keeps_an_edited_configuration() -> None:
    words = ["rpm", "-qp", "--qf", "[%{FILENAMES} %{FILEFLAGS:fflags}\\n]", str(package("*.rpm"))]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    flags = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if len(line.split()) == 2)
    # c: a configuration; n: not replaced.
    assert flags["/etc/netacc.conf"] == "cn"
    assert "/usr/lib64/libnetacc-preload.so" in done.stdout
