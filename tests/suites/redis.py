"""Redis's own tests, from the sources of Debian's package, of Debian's binaries. One process a file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.suites.outcomes import CRASHED, FAILED, HUNG, PASSED, SKIPPED, Outcome, Outcomes
from tests.suites.runs import Mode

#: The files about connections, their buffers, and processes: the other files do not depend on sockets.
UNITS = (
    "unit/acl", "unit/auth", "unit/client-eviction", "unit/info", "unit/introspection",
    "unit/introspection-2", "unit/limits", "unit/multi", "unit/networking", "unit/obuf-limits",
    "unit/pause", "unit/pendingquerybuf", "unit/protocol", "unit/pubsub", "unit/pubsubshard",
    "unit/querybuf", "unit/quit", "unit/replybufsize", "unit/shutdown", "unit/tracking", "unit/wait",
    "integration/block-repl", "integration/failover", "integration/psync2-reg",
    "integration/redis-benchmark", "integration/redis-cli", "integration/replication",
    "integration/replication-2",
    "integration/replication-3", "integration/replication-buffer",
    "integration/replication-psync",
    "integration/shutdown",
)  # fmt: skip
_KINDS = {
    "ok": PASSED,
    "err": FAILED,
    "exception": CRASHED,
    "timeout": HUNG,
    "skip": SKIPPED,
    "ignore": SKIPPED,
}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LINE = re.compile(
    r"^\[(ok|err|exception|timeout|skip|ignore)\]: (.*?)(?: \(\d+ ms\)| in tests/\S+\.tcl)?$", re.MULTILINE
)


@dataclass(frozen=True)
class Redis:
    """Servers, replicas and the tests' own client, Tcl, all of them alike."""

    name: str
    #: `runtest` of the sources, with the binaries in `src`.
    runner: Path
    #: Seconds for one file; the longest takes three minutes.
    limit: float = 900.0

    def run(self, mode: Mode, folder: Path, only: Iterable[str] | None = None) -> Outcomes:
        """Tests are named `FILE: TITLE`; a repetition of one repeats its file."""
        folder.mkdir(parents=True, exist_ok=True)
        wanted = None if only is None else set(only)
        outcomes: Outcomes = {}
        for unit in UNITS:
            if wanted is None or any(test.startswith(f"{unit}: ") for test in wanted):
                outcomes |= self._unit(unit, mode, folder)
        return {test: outcome for test, outcome in outcomes.items() if wanted is None or test in wanted}

    def _unit(self, unit: str, mode: Mode, folder: Path) -> Outcomes:
        log = folder / f"{self.name}.{unit.replace('/', '.')}.log"
        log.unlink(missing_ok=True)
        tree = str(self.runner.parent)
        words = ("tclsh", "tests/test_helper.tcl", "--clients", "1", "--single", unit)
        status = mode.run(["env", "-C", tree, *words], log, self.limit)
        output = _COLOUR.sub("", log.read_text(encoding="utf-8", errors="replace"))
        # The outcome of the file itself: a server that crashed fails no test in particular.
        whole = HUNG if status is None else PASSED if status == 0 else FAILED
        outcomes = {f"{unit}: (the file)": Outcome(whole, output)}
        for kind, title in _LINE.findall(output):
            test = f"{unit}: {title}"
            before = outcomes.get(test)
            # Titles repeat; the worst counts.
            if before is None or before.kind in (PASSED, SKIPPED):
                outcomes[test] = Outcome(_KINDS[kind], output)
        return outcomes
