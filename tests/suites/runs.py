"""Running a suite in one mode: natively, or under netacc_run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

#: Seconds until a process group that was asked to end is killed.
_GRACE = 5.0


@dataclass
class Mode:
    """How programs are started."""

    name: str
    prefix: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    #: The folder in which processes write their counters; `None` natively.
    counts: Path | None = None

    def run(self, command: Sequence[str], log: Path, limit: float, **environment: str) -> int | None:
        """Runs a command to its end; `None` if it was still there after `limit` seconds. Its output goes to
        `log`. Everything that it started and left behind in its session ends with it."""
        full = {**os.environ, **self.environment, **environment}
        if self.counts is not None:
            full["NETACC_EXIT_STATS"] = str(self.counts)
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*self.prefix, *command],
                env=full,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            status: int | None = None
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                _signal(process, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_GRACE)
            finally:
                _signal(process, signal.SIGKILL)
                process.wait()
        return status

    def counters(self) -> Counter[str]:
        """The counters of all processes that ended in good order so far."""
        total: Counter[str] = Counter()
        if self.counts is not None and self.counts.exists():
            for line in self.counts.read_text(encoding="utf-8").splitlines():
                total.update(json.loads(line)["cnt"])
        return total


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
