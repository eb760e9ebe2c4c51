"""Moving a connection onto a link takes a known number of system calls, counted by strace."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.apps.lib.compiling import compile_program
from tests.apps.lib.paths import binaries

pytestmark = pytest.mark.usefixtures("library")

#: Of both ends of one connection together. The program itself sends twice and receives twice.
CALLS = {
    # The end of the opener: its protocol, its address. The end of the acceptor: its address.
    "getsockname": 2,
    # The protocol; the kernel's counts, on each side.
    "getsockopt": 3,
    "setsockopt": 0,
    # Unread bytes, on each side.
    "ioctl": 2,
    # One message of the program's, on each side, and no marker.
    "sendto": 2,
    "recvfrom": 2,
    # The anchor, on each side.
    "epoll_ctl": 2,
    # Once for many connections.
    "getrandom": 0,
}
#: Fewer than a crowd, whose connections get their links before they are used.
FEW, MANY = 10, 60
#: `netacc_ss` takes calls, too.
TOLERANCE = 0.2
#: Before each marker that is written, and before the opener reads the acceptor's: three. And when the helper
#: wakes up for one that it finds read, or not yet there.
POLLS = 6


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(tmp_path_factory.mktemp("promotion"), "promotion")


def test_a_promotion_takes_exactly_these_calls(program: Path, tmp_path: Path) -> None:
    """Two runs begin in the same way, so the connections alone make the difference."""
    few, many = (_promoted(program, count, tmp_path) for count in (FEW, MANY))
    of_one = {name: (many[name] - few[name]) / (MANY - FEW) for name in CALLS}
    assert {name: round(calls) for name, calls in of_one.items()} == CALLS, of_one
    assert all(abs(of_one[name] - calls) < TOLERANCE for name, calls in CALLS.items()), of_one
    assert (many["ppoll"] - few["ppoll"]) / (MANY - FEW) < POLLS


def _promoted(program: Path, connections: int, folder: Path) -> Counter[str]:
    """The calls of a run that ends, by SIGKILL, once all of its connections are on links."""
    trace = folder / f"trace-{connections}"
    command: list[str | Path] = ["strace", "-f", "-c", "-U", "calls,name", "-o", trace]
    command += [binaries() / "netacc_run", "-P", "0", program, str(connections)]
    env = {"PATH": "/usr/bin:/bin", "NETACC_CONF": "/dev/null"}
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as strace:
        assert strace.stdin and strace.stdout
        assert strace.stdout.readline() == b"ready\n"
        traced = Path(f"/proc/{strace.pid}/task/{strace.pid}/children").read_text().split()
        end = time.monotonic() + 60
        while _streams_promoted(traced[0]) < 2 * connections:
            assert time.monotonic() < end, "not all connections were promoted"
            time.sleep(0.1)  # leaves the processor to the helper
        strace.stdin.write(b"\n")
        strace.stdin.close()
        strace.wait(60)
    lines = [line.split() for line in trace.read_text().splitlines()]
    return Counter({words[1]: int(words[0]) for words in lines if len(words) == 2 and words[0].isdigit()})


def _streams_promoted(pid: str) -> int:
    command: list[str | Path] = [binaries() / "netacc_ss", "-p", pid, "-s", "cnt", "--json"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    return int(json.loads(shown.stdout)["cnt"]["streams_promoted"])
