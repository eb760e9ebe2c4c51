"""Programs as on the kernels of Alibaba Cloud Linux 3 and Enterprise Linux 8.

These lack younger system calls. The library's own use of such calls must not fail the program's.
"""

from __future__ import annotations

import csv
import errno
import io
import os
import socket
import sys
from pathlib import Path

import pytest

from tests.apps.lib import counters
from tests.apps.lib.lab import Lab
from tests.apps.lib.net import free_port, wait_listening

#: The last system call of each: see `old_kernel.c`.
LAST = {"4.18": 334, "5.10": 440}
REQUESTS = 100_000
VALUE_BYTES = 64


@pytest.mark.parametrize("kernel", LAST)
def test_a_server_with_timers(kernel: str, old_kernel: Path, lab: Lab) -> None:
    """redis-server waits for its next timer. After some polls that is no whole number of milliseconds."""
    before = [str(old_kernel), str(LAST[kernel])]
    port = str(free_port())
    serve: list[str | Path] = ["redis-server", "--port", port, "--bind", "127.0.0.1", "--save", ""]
    server = lab.start("redis-server", [*serve, "--dir", lab.folder], accelerated=True, before=before)
    wait_listening(int(port), server)
    load = f"redis-benchmark -p {port} -t set --csv -n {REQUESTS} -d {VALUE_BYTES}"
    printed = lab.start("redis-benchmark", load.split(), accelerated=True, before=before).finish(100)
    assert [row["test"] for row in csv.DictReader(io.StringIO(printed))] == ["SET"]
    seen = counters.totals(server)
    lab.expect_link(seen, who="server", payload_bytes=REQUESTS * VALUE_BYTES, share=0.8)


#: Exchanges bytes with itself, and asks twice that the connection be closed by a call of Linux 5.9.
CLOSES = """
import ctypes, os, socket

listener = socket.create_server(("127.0.0.1", 0))
ends = [socket.create_connection(listener.getsockname()), listener.accept()[0]]

def exchange(rounds):
    for _ in range(rounds):
        for out, into in (ends, ends[::-1]):
            out.sendall(bytes(64))
            assert len(into.recv(64, socket.MSG_WAITALL)) == 64

exchange(3000)
libc, number = ctypes.CDLL(None, use_errno=True), ends[0].fileno()
for answer in (libc.syscall(436, number, number, 0), libc.close_range(number, number, 0)):
    print(answer, os.strerror(ctypes.get_errno()))
exchange(1000)
"""


def test_ranges_of_descriptors_are_kept_where_they_cannot_be_closed(old_kernel: Path, lab: Lab) -> None:
    before = [str(old_kernel), str(LAST["4.18"])]
    program = lab.start("closes", [sys.executable, "-c", CLOSES], accelerated=True, before=before)
    assert program.finish(60) == 2 * f"-1 {os.strerror(errno.ENOSYS)}\n"


def test_valgrind_under_a_filter_does_not_hang(old_kernel: Path, lab: Lab) -> None:
    """As in a container: the program was started with a filter, which the library tries out otherwise."""
    before = [str(old_kernel), str(LAST["5.10"])]
    opens = "exec 3<>/dev/tcp/127.0.0.1/$0"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = ["valgrind", "--quiet", "--tool=none", "bash", "-c", opens, str(listener.getsockname()[1])]
        assert lab.start("valgrind", command, accelerated=True, before=before).finish(60) == ""
