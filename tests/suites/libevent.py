"""libevent's own tests, built from the sources of Debian's package. One process a test."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.suites.outcomes import CRASHED, FAILED, HUNG, PASSED, SKIPPED, Outcome, Outcomes
from tests.suites.runs import Mode


@dataclass(frozen=True)
class Libevent:
    """All tests that are not disabled by default."""

    name: str
    #: Built `test/regress`.
    runner: Path
    #: Seconds for one test; the runner's own limit is 30 s.
    limit: float = 60.0

    def tests(self) -> list[str]:
        listed = subprocess.run(
            [self.runner, "--list-tests"], capture_output=True, text=True, check=False
        ).stdout
        return re.findall(r"^ {4}(\w+/\S+)$", listed, re.MULTILINE)

    def run(self, mode: Mode, folder: Path, only: Iterable[str] | None = None) -> Outcomes:
        folder.mkdir(parents=True, exist_ok=True)
        wanted = None if only is None else set(only)
        return {t: self._one(t, mode, folder) for t in self.tests() if wanted is None or t in wanted}

    def _one(self, test: str, mode: Mode, folder: Path) -> Outcome:
        log = folder / f"{self.name}.{test.replace('/', '.')}.log"
        log.unlink(missing_ok=True)
        # Some tests look for files beside them.
        command = ["env", "-C", str(self.runner.parent), str(self.runner), test]
        status = mode.run(command, log, self.limit)
        output = log.read_text(encoding="utf-8", errors="replace")
        if status == 0:
            log.unlink()
            return Outcome(SKIPPED if "SKIPPED" in output or "DISABLED" in output else PASSED, output[:200])
        if status is None:
            return Outcome(HUNG, output)
        return Outcome(CRASHED if status < 0 or "FAILED" not in output else FAILED, output)
