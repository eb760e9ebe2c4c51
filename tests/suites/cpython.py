"""Modules of CPython's own test suite, run by `unittest_lines.py` in the interpreter that has them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.suites.outcomes import CRASHED, FAILED, HUNG, Outcome, Outcomes
from tests.suites.runs import Mode

_RUNNER = Path(__file__).with_name("unittest_lines.py")
#: Processes for one module: each that dies or hangs costs one test. With so many the module is hopeless.
_MOST_STARTS = 25


@dataclass(frozen=True)
class CPython:
    """One module, `test.<name>`."""

    name: str
    interpreter: str
    #: Seconds for one test.
    limit: float = 60.0
    #: Seconds for one process.
    patience: float = 1800.0

    def run(self, mode: Mode, folder: Path, only: Iterable[str] | None = None) -> Outcomes:
        """Outcomes of all tests, or of those named."""
        folder.mkdir(parents=True, exist_ok=True)
        wanted = None if only is None else set(only)
        outcomes: Outcomes = {}
        for _ in range(_MOST_STARTS):
            lines, log = folder / f"{self.name}.jsonl", folder / f"{self.name}.log"
            command = [
                self.interpreter,
                str(_RUNNER),
                f"test.{self.name}",
                str(lines),
                "--limit",
                str(self.limit),
            ]
            for option, names in (("--done", outcomes.keys()), ("--only", wanted)):
                if names is not None:
                    file = folder / f"{self.name}{option}"
                    file.write_text("\n".join(names), encoding="utf-8")
                    command += [option, str(file)]
            lines.unlink(missing_ok=True)
            before = log.stat().st_size if log.exists() else 0
            status = mode.run(command, log, self.patience)
            running = self._read(lines, outcomes)
            if running is None:
                return outcomes
            output = log.read_bytes()[before:].decode(errors="replace")
            kind = HUNG if status is None or "Timeout (" in output else CRASHED
            outcomes[running] = Outcome(kind, f"status {status}\n{output[-6000:]}")
        outcomes["(module)"] = Outcome(FAILED, f"still not through after {_MOST_STARTS} starts")
        return outcomes

    def _read(self, lines: Path, outcomes: Outcomes) -> str | None:
        """Adds the outcomes of the file. Returns the test that was running when the process ended, `None`
        after the end of the module."""
        running = "(before the first test)"
        finished = False
        for text in lines.read_text(encoding="utf-8").splitlines() if lines.exists() else []:
            line = json.loads(text)
            if "test" in line:
                outcomes[line["test"]] = Outcome(line["outcome"], line["detail"])
                running = "(after the last test)"
            elif "started" in line:
                running = line["started"]
            else:
                finished = True
        return None if finished else running
