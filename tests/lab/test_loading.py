"""Only processes that could use the libraries for RDMA devices load them, on a host that has a device."""

from __future__ import annotations

import json
import sys

from tests.apps.lib.paths import REPO, binaries
from tests.lab.lib import UpLab, line_from

ECHO = str(REPO / "tests/lab/programs/echo.py")
LOADED = str(REPO / "tests/lab/programs/loaded.py")
HERE, FAR, PORT = "10.99.0.2", "10.99.0.1", "7021"
RUN = str(binaries() / "netacc_run")


def test_a_program_without_connections_loads_neither(siw: UpLab) -> None:
    maps = siw.out(1, RUN, "cat", "/proc/self/maps")
    assert "libnetacc-preload.so" in maps
    assert "libibverbs" not in maps and "librdmacm" not in maps


def test_the_first_connection_to_another_host_loads_them(siw: UpLab) -> None:
    server = siw.start(1, RUN, sys.executable, ECHO, "threaded", FAR, PORT)
    assert line_from(server.stdout).startswith("listening as ")
    seen = json.loads(siw.out(2, RUN, sys.executable, LOADED, HERE, FAR, PORT))
    both = ["libibverbs", "librdmacm"]
    assert seen == {"beginning": [], "listener": [], "near": [], "far": both}
