"""libuv's own tests, built from the sources of Debian's package. One process a test, as its runner has it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.suites.outcomes import CRASHED, FAILED, HUNG, PASSED, SKIPPED, Outcome, Outcomes
from tests.suites.runs import Mode


@dataclass(frozen=True)
class Libuv:
    """The tests whose name matches `pattern`."""

    name: str
    #: Built `test/run-tests`.
    runner: Path
    pattern: str = ""
    #: Seconds for one test. libuv's runner has a limit of its own, 5 to 60 s.
    limit: float = 90.0

    def tests(self) -> list[str]:
        listed = subprocess.run(
            [self.runner, "--list"],
            env={"UV_RUN_AS_ROOT": "1"},
            cwd=self.runner.parent.parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        # Names of tests only, not the lines that tell their helpers.
        names = [line.strip() for line in listed.splitlines() if re.fullmatch(r"[a-z0-9_]+", line.strip())]
        return [name for name in names if re.search(self.pattern, name)]

    def run(self, mode: Mode, folder: Path, only: Iterable[str] | None = None) -> Outcomes:
        folder.mkdir(parents=True, exist_ok=True)
        wanted = None if only is None else set(only)
        return {t: self._one(t, mode, folder) for t in self.tests() if wanted is None or t in wanted}

    def _one(self, test: str, mode: Mode, folder: Path) -> Outcome:
        log = folder / f"{self.name}.{test}.log"
        log.unlink(missing_ok=True)
        # Some tests look for files beside the sources.
        command = ["env", "-C", str(self.runner.parent.parent), str(self.runner), test]
        status = mode.run(command, log, self.limit, UV_RUN_AS_ROOT="1")
        said = log.read_text(encoding="utf-8", errors="replace")
        # The runner's status for a test that skips itself is not 0.
        if status == 0 or "# SKIP" in said:
            log.unlink()
            return Outcome(SKIPPED if "# SKIP" in said else PASSED, said[:200])
        if status is None or "# timeout" in said:
            return Outcome(HUNG, said)
        return Outcome(CRASHED if status < 0 or "not ok" not in said else FAILED, said)
