"""Packages on systems without a compiler: in unpacked root file systems they accelerate Redis."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci.packages import formats, symbols
from ci.packages.__main__ import epoch, make, version
from ci.packages.layout import CONFIGURATION, LOADER, MACHINES, PROGRAMS, Layout, stage
from tests.apps.lib.paths import binaries
from tests.packages import roots

PACKAGES = roots.REPO / "target/packages"
MACHINE = MACHINES["x86_64"]
REQUESTS = 20_000
SIZE = 512

REDIS = """
start() {{
    netacc_run redis-server --port 7999 --save "" >/tmp/redis.log 2>&1 & server=$!
    await_server
}}
await_server() {{
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
    shutil.copy(package("*_amd64.deb"), root / "package.deb")
    return "dpkg -i /package.deb >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; exit 1; }\n"


def install_rpm(root: Path) -> str:
    # The system has no rpm's database that could know what dpkg has installed.
    words = [
        "rpm",
        "--root",
        str(root),
        "--install",
        "--nodeps",
        "--ignorearch",
        str(package("*.x86_64.rpm")),
    ]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return ""


def install_tar(root: Path) -> str:
    subprocess.run(["tar", "-C", str(root / "opt"), "-xf", str(package("*-x86_64.tar.gz"))], check=True)
    return f"PATH=/opt/netacc-lab-{version()}-x86_64/bin:$PATH\n"


def bytes_on_links(counters: dict[str, Any]) -> int:
    assert counters["cnt"]["links_established"] > 0
    return int(counters["cnt"]["rx_bytes_link"])


def test_two_builds_have_the_same_bytes(tmp_path: Path) -> None:
    made = make(binaries(), tmp_path, version(), epoch(), MACHINE)
    assert len(made) == 3
    for path in made:
        assert path.read_bytes() == (PACKAGES / path.name).read_bytes(), path.name


def test_the_check_of_symbols_finds_a_newer_glibc(tmp_path: Path) -> None:
    # The library of `make build` takes this machine's versions.
    shutil.copy(binaries() / "libnetacc-preload.so", tmp_path)
    assert list(symbols.lacking(tmp_path, symbols.OLDEST)) == ["libnetacc-preload.so"]
    # Such a name says that the loader has to know a newer kind of relocations.
    relative = tmp_path / "relative.so"
    source = "int puts(const char *); static int one; int *data = &one; int (*call)(const char *) = puts;"
    compile_library(relative, source, "-Wl,-z,pack-relative-relocs")
    assert "GLIBC_ABI_DT_RELR" in symbols.unmet(relative, symbols.SYSTEMS[-1])
    # A library that not every system has.
    user = tmp_path / "user.so"
    compile_library(user, "", "-Wl,--no-as-needed", f"-L{tmp_path}", "-l:relative.so")
    assert symbols.unmet(user, symbols.OLDEST) == ["relative.so"]


def compile_library(path: Path, source: str, *options: str) -> None:
    words = ["gcc", "-shared", "-nostartfiles", "-x", "c", "-", "-x", "none", *options, "-o", str(path)]
    subprocess.run(words, input=source, text=True, check=True, capture_output=True)


def unpack_deb(folder: Path) -> None:
    subprocess.run(["dpkg-deb", "-x", str(package("*_amd64.deb")), str(folder)], check=True)


def unpack_tar(folder: Path) -> None:
    subprocess.run(["tar", "-C", str(folder), "-xf", str(package("*-x86_64.tar.gz"))], check=True)


@pytest.mark.parametrize("unpacked", [unpack_deb, install_rpm, unpack_tar], ids=["deb", "rpm", "tar"])
def test_the_loader_of_each_system_has_all_symbols(
    unpacked: Callable[[Path], object], tmp_path: Path
) -> None:
    unpacked(tmp_path)
    names = {path.name for path in symbols.programs(tmp_path)}
    assert {*PROGRAMS, LOADER, "libnetacc-preload.so"} <= names
    assert {system.name: symbols.lacking(tmp_path, system) for system in symbols.SYSTEMS} == {
        system.name: {} for system in symbols.SYSTEMS
    }


@pytest.mark.parametrize("install", [install_deb, install_rpm, install_tar], ids=["deb", "rpm", "tar"])
@pytest.mark.parametrize("suite", roots.suites())
def test_redis_is_accelerated(suite: str, install: Callable[[Path], str], tmp_path: Path) -> None:
    root = roots.unpack(suite, tmp_path)
    prepared = install(root)
    counters = json.loads(roots.run(root, prepared + REDIS_SCRIPT))
    assert bytes_on_links(counters) >= 0.9 * REQUESTS * SIZE


def two_commands() -> list[str]:
    """Those of the documentation."""
    _, _, after = (roots.REPO / "docs/how-to.md").read_text().partition("Two commands")
    block = after.split("```")[1]
    return [line.strip() for line in block.removeprefix("sh\n").splitlines() if line.strip()]


@pytest.mark.parametrize("suite", roots.suites())
def test_two_commands_install_and_accelerate(suite: str, tmp_path: Path) -> None:
    root = roots.unpack(suite, tmp_path)
    shutil.copy(package("*_amd64.deb"), root / "root")
    install, run = two_commands()
    script = (
        f"cd /root; {install} >/tmp/apt.log 2>&1 || {{ cat /tmp/apt.log; exit 1; }}\n"
        f"{run} --port 7999 >/tmp/redis.log 2>&1 & server=$!\n"
        f"{HELPERS}await_server; load; counters; kill $server; wait $server || true"
    )
    assert bytes_on_links(json.loads(roots.run(root, script))) >= 0.9 * REQUESTS * SIZE


#: The number that marks a table of processes, with the version of its layout in the last byte.
TABLE = bytes.fromhex("01006363 6174656e")
OTHER_TABLE = bytes.fromhex("02006363 6174656e")


def newer(kind: str, folder: Path, is_compatible: bool) -> Path:
    """A later version with another configuration, and perhaps with another layout of shared memory."""
    built = folder / "built"
    shutil.copytree(binaries(), built, ignore=lambda _, names: set(names) - BUILT)
    if not is_compatible:
        library = built / "libnetacc_portable.so"
        code = library.read_bytes()
        assert TABLE in code
        library.write_bytes(code.replace(TABLE, OTHER_TABLE))
    layout = Layout(MACHINE, folder / "newer", {"deb": MACHINE.multiarch, "rpm": "usr/lib64"}[kind])
    stage(layout, built)
    with (layout.root / CONFIGURATION).open("a") as conf:
        conf.write("# of the newer version\n")
    return {"deb": formats.deb, "rpm": formats.rpm}[kind](layout, folder, "99.0", epoch())


BUILT = {*PROGRAMS, LOADER, "libnetacc_portable.so"}


def upgrade_deb(root: Path, package: Path) -> str:
    shutil.copy(package, root / "newer.deb")
    return "upgrade() { dpkg --force-confdef -i /newer.deb >/dev/null 2>&1; }\n"


def upgrade_rpm(root: Path, package: Path) -> str:
    """The system has no rpm: that of this machine does it when the script asks for it."""
    for name in ("ask", "done"):
        os.mkfifo(root / name)
    words = ["rpm", "--root", str(root), "--upgrade", "--nodeps", "--ignorearch", str(package)]

    def serve() -> None:
        (root / "ask").read_text()
        done = subprocess.run(words, capture_output=True, text=True)
        (root / "done").write_text(done.stderr if done.returncode else "")

    # Without a question it ends with the tests.
    threading.Thread(target=serve, daemon=True).start()
    return "upgrade() { echo >/ask; ! grep . /done; }\n"


#: A load that goes on during the upgrade, and the number of its connections that are on links.
UPGRADE = """
load_long() { netacc_run redis-benchmark -p 7999 -t set -n 100000000 -c 20 -q >/tmp/long.log 2>&1 & long=$!; }
on_links() { netacc_ss -p $server -s sock --json | tr ',{' '\\n\\n' | grep -c '"path": *"link"' || true; }
await_links() {
    tries=0
    until [ "$(on_links)" -ge 20 ]; do
        tries=$((tries + 1)); [ $tries -lt 300 ] || { counters; exit 1; }
    done
}
one_line() { tr -d '\\n'; echo; }
start
load_long
await_links
netacc demote -p $server -p $long >/dev/null
echo demoted; on_links
upgrade
grep -c 'libnetacc-preload.so.*(deleted)' /proc/$server/maps
netacc promote -p $server -p $long >/dev/null
await_links
kill -0 $long
kill $long; wait $long || true
counters | one_line
NETACC_EXIT_STATS=/tmp/stats load; cat /tmp/stats
counters | one_line
kill $server; wait $server || true
start; load; counters | one_line
kill $server; wait $server || true
tail -n 1 /etc/netacc.conf; tail -n 1 $NEW_CONFIGURATION
ldconfig -p | grep -c libnetacc-preload.so || true
"""


@pytest.mark.parametrize("is_compatible", [True, False], ids=["compatible", "other version"])
@pytest.mark.parametrize("kind", ["deb", "rpm"])
def test_an_upgrade_leaves_running_programs_alone(kind: str, is_compatible: bool, tmp_path: Path) -> None:
    """Demote, replace, promote under load; also where the two libraries cannot have links."""
    root = roots.unpack(roots.suites()[0], tmp_path)
    later = newer(kind, tmp_path, is_compatible)
    install, upgrade, suffix = {
        "deb": (install_deb, upgrade_deb, "dpkg-dist"),
        "rpm": (install_rpm, upgrade_rpm, "rpmnew"),
    }[kind]
    prepared = (
        install(root) + upgrade(root, later) + HELPERS + f"NEW_CONFIGURATION=/etc/netacc.conf.{suffix}\n"
    )
    shown = roots.run(root, prepared + "echo NACC_POLL_MS=7 >>/etc/netacc.conf\n" + UPGRADE).splitlines()
    demoted, on_links, deleted, before, stats, after, restarted, kept, new, listed = shown
    assert (demoted, on_links) == ("demoted", "0")
    assert int(deleted) > 0, "the running program has the library that was replaced"
    counted = [json.loads(text) for text in (before, after, restarted)]
    client = json.loads(stats)
    links = [bytes_on_links(each) for each in counted]
    if is_compatible:
        assert links[1] - links[0] >= 0.9 * REQUESTS * SIZE, "an older server has links with newer clients"
    else:
        assert links[1] == links[0] and client["backend"] == "none"
        assert client["reasons"]["no-backend"] > 0, "an older server has newer clients on TCP, with a reason"
        on_tcp = [each["cnt"]["rx_bytes_tcp"] for each in counted]
        assert on_tcp[1] - on_tcp[0] >= REQUESTS * SIZE
    assert links[2] >= 0.9 * REQUESTS * SIZE, "after a restart both have the newer version"
    assert (kept, new) == ("NACC_POLL_MS=7", "# of the newer version")
    # Debian's loader does not look into /usr/lib64, where the .rpm has the library.
    assert listed == {"deb": "1", "rpm": "0"}[kind], "ldconfig lists the library"


SERVICE = """
units=/etc/systemd/system
netacc enable redis-server >/dev/null; tail -n 1 $units/redis-server.service.d/netacc.conf
netacc disable redis-server >/dev/null; ls $units | grep -c redis-server.service.d || true
"""


@pytest.mark.parametrize("suite", roots.suites()[:1])
def test_a_service_is_enabled_and_disabled(suite: str, tmp_path: Path) -> None:
    root = roots.unpack(suite, tmp_path)
    enabled, left = roots.run(root, install_deb(root) + SERVICE).splitlines()
    assert enabled == "Environment=LD_PRELOAD=/usr/lib/x86_64-linux-gnu/libnetacc-preload.so"
    assert left == "0", "netacc disable leaves nothing behind"


def test_the_rpm_keeps_an_edited_configuration() -> None:
    words = ["rpm", "-qp", "--qf", "[%{FILENAMES} %{FILEFLAGS:fflags}\\n]", str(package("*.x86_64.rpm"))]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    flags = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if len(line.split()) == 2)
    # c: a configuration; n: not replaced.
    assert flags["/etc/netacc.conf"] == "cn"
    assert "/usr/lib64/libnetacc-preload.so" in done.stdout
