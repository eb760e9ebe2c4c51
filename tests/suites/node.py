"""Node's own tests of its module `net`, from the sources of Debian's package, by the `node` that is
installed. One process a file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.suites.outcomes import CRASHED, FAILED, HUNG, PASSED, SKIPPED, Outcome, Outcomes
from tests.suites.runs import Mode

_FLAGS = re.compile(r"^// Flags: (.*)$", re.MULTILINE)
_SKIPPED = re.compile(r"^1\.\.0 # Skipped", re.MULTILINE)


@dataclass(frozen=True)
class Node:
    """Files of one beginning. A file is a test."""

    name: str
    #: `test/parallel` of the sources.
    folder: Path
    beginning: str
    #: Seconds for one file; the longest takes nine.
    limit: float = 60.0

    def run(self, mode: Mode, folder: Path, only: Iterable[str] | None = None) -> Outcomes:
        folder.mkdir(parents=True, exist_ok=True)
        wanted = None if only is None else set(only)
        files = sorted(self.folder.glob(f"{self.beginning}*.js"))
        return {f.stem: self._one(f, mode, folder) for f in files if wanted is None or f.stem in wanted}

    def _one(self, file: Path, mode: Mode, folder: Path) -> Outcome:
        log = folder / f"{self.name}.{file.stem}.log"
        log.unlink(missing_ok=True)
        flags = _FLAGS.search(file.read_text(encoding="utf-8"))
        status = mode.run(["node", *(flags[1].split() if flags else ()), str(file)], log, self.limit)
        output = log.read_text(encoding="utf-8", errors="replace")
        if status == 0:
            log.unlink()
            return Outcome(SKIPPED if _SKIPPED.search(output) else PASSED, output[:200])
        if status is None:
            return Outcome(HUNG, output)
        return Outcome(CRASHED if status < 0 else FAILED, output)
