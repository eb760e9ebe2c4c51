"""libc-test, the tests of musl's authors: functions of the C library and old faults, as static programs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.suites.outcomes import ABSENT, CRASHED, FAILED, HUNG, PASSED, Outcome, Outcomes
from tests.suites.runs import Mode

_COMPILER = ["musl-gcc", "-static", "-std=c99", "-D_POSIX_C_SOURCE=200809L", "-D_XOPEN_SOURCE=700", "-w"]
_LIBRARIES = ["-lpthread", "-lm", "-lrt"]
#: What the runner of the tests consists of; not a part of the others.
_RUNNER = "runtest.c"


@dataclass(frozen=True)
class LibcTest:
    """A file is a test. Those that need shared libraries, or do not compile with this musl, are absent."""

    name: str
    #: The sources.
    folder: Path
    #: Seconds for one file.
    limit: float = 60.0

    def run(self, mode: Mode, folder: Path, only: Iterable[str] | None = None) -> Outcomes:
        folder.mkdir(parents=True, exist_ok=True)
        wanted = None if only is None else set(only)
        files = [*self.folder.glob("src/functional/*.c"), *self.folder.glob("src/regression/*.c")]
        named = {f"{file.parent.name}/{file.stem}": file for file in sorted(files)}
        chosen = {name: file for name, file in named.items() if wanted is None or name in wanted}
        return {name: self._one(file, mode, folder) for name, file in chosen.items()}

    def _one(self, file: Path, mode: Mode, folder: Path) -> Outcome:
        program = folder.parent / f"{file.parent.name}-{file.stem}"
        if not program.exists():
            common = [path for path in self.folder.glob("src/common/*.c") if path.name != _RUNNER]
            include = f"-I{self.folder / 'src/common'}"
            sources = [str(path) for path in (file, *common)]
            words = [*_COMPILER, include, "-o", str(program), *sources, *_LIBRARIES]
            built = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
            if built.returncode != 0:
                return Outcome(ABSENT, built.stderr)
        log = folder / f"{program.name}.log"
        log.unlink(missing_ok=True)
        status = mode.run([str(program)], log, self.limit)
        output = log.read_text(encoding="utf-8", errors="replace")
        if status is None:
            return Outcome(HUNG, output)
        # The launcher says so in the output; then the test would prove nothing.
        if "it stays on TCP" in output:
            return Outcome(ABSENT, output)
        kind = PASSED if status == 0 else CRASHED if status < 0 else FAILED
        return Outcome(kind, output)
