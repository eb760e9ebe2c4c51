"""The results of calls after a connection has ended: the same on a link as in the kernel, for each way to end
and with each call as the first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.apps.lib.paths import REPO, binaries
from tests.apps.programs.ended import ENDINGS, OBSERVERS

#: How often the program uses a connection at most until it is on a link.
ROUNDS = 2000


def run(ending: str, role: str, rounds: int, prefix: list[str], **environment: str) -> list[str]:
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "tests.apps.programs.ended", ending, role, str(rounds)],
        cwd=REPO,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("role", ["client", "server"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_ending(ending: str, role: str, tmp_path: Path) -> None:
    expected = run(ending, role, 0, [])
    assert len(expected) == len(OBSERVERS)
    counted = tmp_path / "counted"
    log = {"NETACC_EXIT_STATS": str(counted), "NACC_LOG_PATH": str(tmp_path / "log")}
    # Promoted at once, so that there is a link in time.
    seen = run(ending, role, ROUNDS, [str(binaries() / "netacc_run"), "-F", "1"], **log)
    assert seen == expected
    promoted = [json.loads(line)["cnt"]["streams_promoted"] for line in counted.read_text().splitlines()]
    assert max(promoted) >= len(OBSERVERS), "a connection was not on a link"


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("path", ["tcp", "link"])
@pytest.mark.parametrize("call", ["recv", "recv-all", "recv-peek", "recvmsg", "read", "readv"])
def test_a_receive_that_sleeps_gets_the_reset(call: str, path: str, tmp_path: Path) -> None:
    """On TCP and on a link. The library sleeps in a receive of its own, and that gets the error."""
    words = [sys.executable, "-m", "tests.apps.programs.reset_sleeper", call]
    counted = tmp_path / "counted"
    # At the first operation, or never.
    promote = "1" if path == "link" else "1000000"
    log = {"NETACC_EXIT_STATS": str(counted), "NACC_LOG_PATH": str(tmp_path / "log")}
    environment = {**os.environ, **log, "NACC_PROMOTE_AFTER": promote}
    shown = [
        subprocess.run(
            [*prefix, *words, path if prefix else "tcp"],
            cwd=REPO,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        for prefix in ([], [str(binaries() / "netacc_run")])
    ]
    assert shown == ["ECONNRESET 0\n0\n"] * 2
    promoted = [json.loads(line)["cnt"]["streams_promoted"] for line in counted.read_text().splitlines()]
    assert max(promoted) == (1 if path == "link" else 0)
