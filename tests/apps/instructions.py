"""Instructions of a call in the library, counted by callgrind: `python -m tests.apps.instructions`."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from tests.apps.lib.paths import PROGRAMS
from tests.apps.test_sanitizers import accelerated

CALLS = ("send", "recv")
#: Round trips of two runs. Their difference is counted, because both begin in the same way.
FEW, MANY = 2_000, 22_000


def build(folder: Path) -> Path:
    """The program whose calls are counted."""
    built = folder / "instructions"
    flags = ["-std=gnu17", "-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *flags, "-o", built, PROGRAMS / "instructions.c"], check=True, timeout=60)
    return built


def of_call(folder: Path, program: Path, call: str) -> float:
    """Instructions of one call of a message of 64 bytes that is there, on a link."""
    few, many = (_collected(folder, program, call, round_trips) for round_trips in (FEW, MANY))
    return (many - few) / (2 * (MANY - FEW))


def _collected(folder: Path, program: Path, call: str, round_trips: int) -> int:
    """Instructions within `call`, and the functions that it calls, of a whole run."""
    profile = folder / "profile"
    flags = ["--tool=callgrind", f"--toggle-collect={call}", f"--callgrind-out-file={profile}"]
    done = accelerated(folder, ["valgrind", *flags, program, str(round_trips)])
    assert (done.status, done.out) == (0, "done\n"), done.err
    assert done.link_bytes >= 0.95 * 2 * 64 * round_trips
    totals = [line.split()[1] for line in profile.read_text().splitlines() if line.startswith("totals:")]
    return int(totals[-1])


def main() -> None:
    """Prints the counts as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        print(json.dumps({call: of_call(Path(folder), program, call) for call in CALLS}))


if __name__ == "__main__":
    main()
