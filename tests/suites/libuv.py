"""libuv's own tests, built from the sources of Debian's package. One process a test, as its runner has it.

Each runs in a network of its own, in which packets to the world are lost. `tcp_close_while_connecting` counts
on that: where somebody refuses its connection instead, whether it passes depends on how soon.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.suites.outcomes import CRASHED, FAILED, HUNG, PASSED, SKIPPED, Outcome, Outcomes
from tests.suites.runs import Mode

#: Runs `$@` in a network namespace, new and empty, whose default route leads nowhere. The addresses are
#: documentation's (RFC 5737).
_ALONE = """set -e
ip link set lo up
ip link add nowhere0 type veth peer name nowhere1
ip addr add 192.0.2.1/24 dev nowhere0
ip link set nowhere0 up
ip link set nowhere1 up
ip route add default via 192.0.2.2
exec "$@"
"""
_LISTED = re.compile(r"([a-z0-9_]+)(?: +\(helpers: [a-z0-9_ ]+\))?")


def names(listed: str) -> list[str]:
    """Tests, from the output of the runner's `--list`: a line each, behind the name the processes that help
    it. Raises `ValueError` for any other line: no test is left out in silence."""
    found: list[str] = []
    for line in listed.splitlines():
        match = _LISTED.fullmatch(line.strip())
        if match is None:
            raise ValueError(f"not a line of libuv's list of tests: {line!r}")
        found.append(match[1])
    return found


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
        return [name for name in names(listed) if re.search(self.pattern, name)]

    def run(self, mode: Mode, folder: Path, only: Iterable[str] | None = None) -> Outcomes:
        folder.mkdir(parents=True, exist_ok=True)
        wanted = None if only is None else set(only)
        return {t: self._one(t, mode, folder) for t in self.tests() if wanted is None or t in wanted}

    def _one(self, test: str, mode: Mode, folder: Path) -> Outcome:
        log = folder / f"{self.name}.{test}.log"
        log.unlink(missing_ok=True)
        unshare = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
        # Some tests look for files beside the sources.
        here = ["env", "-C", str(self.runner.parent.parent), str(self.runner), test]
        command = [*unshare, "sh", "-c", _ALONE, "alone", *here]
        status = mode.run(command, log, self.limit, UV_RUN_AS_ROOT="1")
        output = log.read_text(encoding="utf-8", errors="replace")
        # The runner's status for a test that skips itself is not 0.
        if status == 0 or "# SKIP" in output:
            log.unlink()
            return Outcome(SKIPPED if "# SKIP" in output else PASSED, output[:200])
        if status is None or "# timeout" in output:
            return Outcome(HUNG, output)
        return Outcome(CRASHED if status < 0 or "not ok" not in output else FAILED, output)
