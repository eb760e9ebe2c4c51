"""System calls of a round trip on a link, counted by strace: `python -m tests.apps.system_calls`.

Where the messages are there, the count is exact. Where both ends sleep it varies by a tenth: an end that the
other's message overtakes on its way to sleep needs not be woken.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.apps.lib.compiling import compile_program
from tests.apps.lib.paths import binaries


@dataclass(frozen=True)
class Case:
    """A program in C, and what it is counted with."""

    program: str
    #: Round trips of two runs. Their difference is counted, because both begin in the same way.
    few: int
    many: int
    #: How long a thread that waits may poll.
    poll_ms: int


CASES = {
    "awake": Case("instructions", 1_000, 51_000, 100),
    "asleep": Case("ping_pong", 500, 3_500, 0),
}


def calls(folder: Path, command: list[str | Path], **env: str) -> int:
    """System calls of all threads of a run."""
    trace = folder / "trace"
    words = ["strace", "-f", "-c", "-U", "calls,name", "-o", trace, *command]
    clean = {"PATH": "/usr/bin:/bin", "NETACC_CONF": "/dev/null"}
    subprocess.run(words, env=clean | env, check=True, stdout=subprocess.DEVNULL, timeout=120)
    totals = [line.split()[0] for line in trace.read_text().splitlines() if line.endswith("total")]
    return int(totals[-1])


def counted(folder: Path, command: list[str | Path], **env: str) -> Counter[str]:
    """System calls of all threads of a run, by their names."""
    calls(folder, command, **env)
    lines = [line.split() for line in (folder / "trace").read_text().splitlines()]
    return Counter({words[1]: int(words[0]) for words in lines if len(words) == 2 and words[0].isdigit()})


def of_round_trip(folder: Path, case: Case) -> float:
    """Of both ends, and of the library's own threads meanwhile."""
    program = compile_program(folder, case.program)
    launcher: list[str | Path] = [binaries() / "netacc_run", "-P", str(case.poll_ms), program]
    few, many = (calls(folder, [*launcher, str(trips)]) for trips in (case.few, case.many))
    return (many - few) / (case.many - case.few)


def main() -> None:
    """Prints the counts as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps({name: of_round_trip(Path(folder), case) for name, case in CASES.items()}))


if __name__ == "__main__":
    main()
