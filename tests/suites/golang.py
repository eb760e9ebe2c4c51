"""Go's own tests of its packages `net` and `net/http`, compiled from the sources of the installed Go."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.apps.lib import golang
from tests.suites.outcomes import CRASHED, FAILED, HUNG, PASSED, SKIPPED, Outcome, Outcomes
from tests.suites.runs import Mode

_RUNS = re.compile(r"^=== RUN +(Test\w+)$", re.MULTILINE)
_ENDS = re.compile(r"^--- (PASS|FAIL|SKIP): (Test\w+) \(", re.MULTILINE)
_KINDS = {"PASS": PASSED, "FAIL": FAILED, "SKIP": SKIPPED}


@dataclass(frozen=True)
class Go:
    """The tests of a package. A function is a test, with all that it contains."""

    name: str
    package: str
    mode: golang.Mode
    #: Seconds for all of them; on an idle machine they take a tenth of it.
    limit: float = 600.0

    def run(self, mode: Mode, folder: Path, only: Iterable[str] | None = None) -> Outcomes:
        folder.mkdir(parents=True, exist_ok=True)
        program = folder.parent / f"{self.name}.test"
        if not program.exists():
            golang.build_tests(program, self.mode, self.package)
        root = subprocess.run(["go", "env", "GOROOT"], capture_output=True, text=True, check=True).stdout
        # The tests read files beside their sources. One opens a terminal, which a session's leader would get.
        words = ["sh", "-c", 'cd "$0" && "$@"; exit $?', f"{root.strip()}/src/{self.package}"]
        words += [str(program), "-test.v", "-test.short"]
        if only is not None:
            words.append(f"-test.run=^({'|'.join(only)})$")
        log = folder / f"{self.name}.log"
        log.unlink(missing_ok=True)
        status = mode.run(words, log, self.limit)
        output = log.read_text(encoding="utf-8", errors="replace")
        unfinished = HUNG if status is None else CRASHED
        outcomes = {test: Outcome(unfinished, output[-8000:]) for test in _RUNS.findall(output)}
        begin = 0
        for end in _ENDS.finditer(output):
            outcomes[end[2]] = Outcome(_KINDS[end[1]], output[begin : end.start()][-2000:])
            begin = end.start()
        return outcomes
