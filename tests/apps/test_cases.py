"""Situations in which the kernel's behaviour is definite: the outcome is the same on a link."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.apps.lib.paths import REPO, binaries
from tests.apps.programs.cases import CASES


def run(case: str, prefix: list[str], **environment: str) -> str:
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "tests.apps.programs.cases", case],
        cwd=REPO,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("case", CASES)
def test_case(case: str, tmp_path: Path) -> None:
    counted = tmp_path / "counted"
    expected = run(case, [])
    # Promoted at once, so that there is a link in time.
    run_library = [str(binaries() / "netacc_run"), "-F", "1"]
    log = {"NETACC_EXIT_STATS": str(counted), "NACC_LOG_PATH": str(tmp_path / "log")}
    assert run(case, run_library, **log) == expected
    promoted = [json.loads(line)["cnt"]["streams_promoted"] for line in counted.read_text().splitlines()]
    assert any(promoted), "nothing was on a link"
