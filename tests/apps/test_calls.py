"""Options, calls, signals, descriptors: small C programs (`programs/calls`) do on a link what they do in the
kernel, and the counters say what carried their bytes."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.apps.lib.paths import REPO, binaries

SOURCES = REPO / "tests/apps/programs/calls"

#: How often a program uses a connection at most until it is on a link.
ROUNDS = 2000

#: Why the connections of a program are on TCP in the end, where it is not because the program ends.
BY_ENDING = {"requested", "peer-request", "peer-not-accelerated", "not-yet"}


@dataclass(frozen=True)
class Expected:
    """What must have carried a program's bytes."""

    #: At least so many went over a link. 0: none did, from the first to the last. None: either may be.
    link_bytes: int | None = 1
    #: A reason that must be counted for what was on TCP.
    reason: str = ""


ON_LINK = Expected(link_bytes=40_000)
#: On a link until something is asked for that only the kernel can do.
LEAVES = Expected(reason="kernel-only-operation")
#: Never on a link.
KERNEL = Expected(link_bytes=0, reason="kernel-only-operation")
#: On a link, where few bytes are moved.
BRIEFLY = Expected()
#: Used before it can be on a link, and perhaps on the way to one.
YOUNG = Expected(link_bytes=None)

CASES = {
    # options.c
    "reuseport": ON_LINK,
    "ipv6": ON_LINK,
    "dual_stack": ON_LINK,
    "delays": ON_LINK,
    "keepalive": ON_LINK,
    "timeouts": BRIEFLY,
    "inherited_timeouts": BRIEFLY,
    "inherited_options": ON_LINK,
    "inherited_linger": BRIEFLY,
    "linger_with_time": BRIEFLY,
    "inq": BRIEFLY,
    "info": ON_LINK,
    "zerocopy": LEAVES,
    "zerocopy_not_enabled": ON_LINK,
    "timestamps_by_listener": KERNEL,
    "timestamps_before_connect": KERNEL,
    "defer_accept": ON_LINK,
    # connection.c
    "connect_twice": ON_LINK,
    "after_refusal": ON_LINK,
    "after_refusal_nonblocking": ON_LINK,
    "disconnect": ON_LINK,
    "disconnect_and_listen": ON_LINK,
    "nonblocking_connect": ON_LINK,
    "accept_flags": ON_LINK,
    "nonblocking_by_copy": ON_LINK,
    # data.c
    "vectors": ON_LINK,
    "flags": ON_LINK,
    "many_messages": ON_LINK,
    "queue_sizes": ON_LINK,
    "urgent": LEAVES,
    "files": ON_LINK,
    "splices": LEAVES,
    "asynchronous": LEAVES,
    "streams": LEAVES,
    "printed": ON_LINK,
    "reopened": LEAVES,
    # waiting.c
    "cancel_receiving": ON_LINK,
    "cancel_sending": BRIEFLY,
    "cancel_waiting": ON_LINK,
    "cancel_pending": ON_LINK,
    "restart": BRIEFLY,
    "restart_young": YOUNG,
    "restart_send": BRIEFLY,
    "restart_send_young": YOUNG,
    "interrupted_waiting": BRIEFLY,
    "masks": BRIEFLY,
    "sigio": LEAVES,
    "sigio_before_connect": KERNEL,
    # descriptors.c
    "copies": ON_LINK,
    "ranges": ON_LINK,
    "numbers_again": BRIEFLY,
    "leave_quickly": BRIEFLY,
    "leave_by_last_thread": BRIEFLY,
    "taken": Expected(reason="inherited"),
    "inherited_listener": ON_LINK,
    # unseen.c
    "uring": Expected(reason="unseen-io"),
}


@pytest.fixture(scope="session")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs, built."""
    program = tmp_path_factory.mktemp("calls") / "calls"
    sources = sorted(SOURCES.glob("*.c"))
    flags = ["-std=gnu17", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]
    subprocess.run(["gcc", *flags, "-o", program, *sources], check=True, timeout=60)
    return program


def run(command: list[str | Path], **environment: str) -> str:
    clean = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("LD_PRELOAD", "NACC_", "NETACC_"))
    }
    done = subprocess.run(
        command, env=clean | environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    return f"{done.stdout}{done.stderr}status {done.returncode}"


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("case", CASES)
def test_call(case: str, calls: Path, tmp_path: Path) -> None:
    expected = CASES[case]
    natively = run([calls, case, "0"])
    assert natively.endswith("status 0"), natively
    counted = tmp_path / "counted"
    log = {"NETACC_EXIT_STATS": str(counted), "NACC_LOG_PATH": str(tmp_path / "log")}
    rounds = 0 if expected.link_bytes == 0 else ROUNDS
    # Promoted at once, so that there is a link in time.
    accelerated = run([binaries() / "netacc_run", "-F", "1", calls, case, str(rounds)], **log)
    assert accelerated == natively
    documents = [json.loads(line) for line in counted.read_text().splitlines()]
    link_bytes = sum(document["cnt"]["tx_bytes_link"] for document in documents)
    if expected.link_bytes == 0:
        assert link_bytes == 0
    else:
        assert link_bytes >= (expected.link_bytes or 0)
    reasons: Counter[str] = Counter()
    for document in documents:
        reasons.update(document["reasons"])
    told = {reason for reason, count in reasons.items() if count} - BY_ENDING
    assert expected.reason in told or not expected.reason, f"counted: {reasons}"
