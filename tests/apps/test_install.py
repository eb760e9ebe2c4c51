"""`make install` puts everything where it finds itself again, and `make uninstall` leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.apps.lib import counters
from tests.apps.lib.lab import Lab
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.paths import REPO, binaries

pytestmark = pytest.mark.usefixtures("library")

MODULES = "tests.apps.programs"
LARGEST_LIBRARY = 3 << 20


def make(target: str, prefix: Path) -> None:
    # Not the variables of a `make` that may have started the tests.
    env = {key: value for key, value in os.environ.items() if not key.startswith("MAKE") and key != "MFLAGS"}
    words = ["make", "-s", "-C", str(REPO), target, f"PREFIX={prefix}", f"BUILT={binaries()}"]
    result = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_installed_tree_works(lab: Lab) -> None:
    prefix = lab.folder / "prefix"
    make("install", prefix)
    for name in ("netacc", "netacc_run", "netacc_ss"):
        assert os.access(prefix / "bin" / name, os.X_OK)
    assert (prefix / "etc/netacc.conf").read_text().startswith("[netacc]")
    assert os.access(prefix / "lib/netacc-loader", os.X_OK), "beside the library, where that searches it"
    library = prefix / "lib/libnetacc-preload.so"
    assert library.stat().st_size <= LARGEST_LIBRARY, "line tables are installed apart"
    assert (prefix / "lib/.debug/libnetacc-preload.so.debug").stat().st_size > LARGEST_LIBRARY

    port = free_port()
    server = lab.start(
        "server-by-netacc_run",
        [str(prefix / "bin/netacc_run"), sys.executable, "-m", f"{MODULES}.echo_server", str(port)],
    )
    wait_listening(port, server)
    client, report = lab.client(
        "client-by-LD_PRELOAD",
        [sys.executable, "-m", f"{MODULES}.echo_client", str(port), "--size", str(8 << 20)],
        env={"LD_PRELOAD": str(prefix / "lib/libnetacc-preload.so")},
    )
    for who, side in (("client", client), ("server", server)):
        lab.expect_link(counters.totals(side), who=who, payload_bytes=report.payload_bytes, share=0.9)
    lab.dismiss(client)


def test_uninstall_keeps_only_an_edited_configuration(lab: Lab) -> None:
    prefix = lab.folder / "prefix"
    conf = prefix / "etc/netacc.conf"
    make("install", prefix)
    make("uninstall", prefix)
    assert [path for path in prefix.rglob("*") if path.is_file()] == []
    make("install", prefix)
    conf.write_text(conf.read_text() + "# edited\n")
    make("install", prefix)
    assert conf.read_text().endswith("# edited\n"), "installing again overwrote the configuration"
    make("uninstall", prefix)
    assert [path for path in prefix.rglob("*") if path.is_file()] == [conf]
