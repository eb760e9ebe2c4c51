"""Instructions of a call in the library, counted by callgrind: `python -m tests.apps.instructions`."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from contextlib import nullcontext
from pathlib import Path

from tests.apps.lib.paths import PROGRAMS, binaries
from tests.apps.lib.tracing import traced

CALLS = ("send", "recv")
#: Round trips of two runs. Their difference is counted, because both begin in the same way.
FEW, MANY = 2_000, 22_000
#: For a run, under callgrind on a busy machine.
_TIMEOUT = 120


def build(folder: Path) -> Path:
    """The program whose calls are counted."""
    built = folder / "instructions"
    flags = ["-std=gnu17", "-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *flags, "-o", built, PROGRAMS / "instructions.c"], check=True, timeout=60)
    return built


def of_call(folder: Path, program: Path, call: str) -> float:
    """Instructions of one call of a message of 64 bytes that is there, on a link."""
    return _of_message(folder, program, (call,), None)


def of_message(folder: Path, program: Path, window_end: int | None) -> float:
    """Instructions of a send and of the receive that finds its message. With a `window_end`, a trace runs."""
    return _of_message(folder, program, CALLS, window_end)


def _of_message(folder: Path, program: Path, calls: tuple[str, ...], window_end: int | None) -> float:
    few, many = (_collected(folder, program, calls, round_trips, window_end) for round_trips in (FEW, MANY))
    return (many - few) / (2 * (MANY - FEW))


def _collected(
    folder: Path, program: Path, calls: tuple[str, ...], round_trips: int, window_end: int | None
) -> int:
    """Instructions within `calls`, and the functions that they call, of a whole run."""
    profile, counted = folder / "profile", folder / "counted"
    counted.unlink(missing_ok=True)
    toggles = [f"--toggle-collect={call}" for call in calls]
    valgrind = ["valgrind", "--tool=callgrind", *toggles, f"--callgrind-out-file={profile}"]
    started = subprocess.Popen(
        [binaries() / "netacc_run", "-F", "1", *valgrind, program, str(round_trips)],
        env=_environment() | {"NETACC_EXIT_STATS": str(counted)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with started:
        assert started.stdout is not None
        ready = started.stdout.readline()
        with nullcontext() if window_end is None else traced(started.pid, window_end):
            out, err = started.communicate("\n", timeout=_TIMEOUT)
    assert (started.returncode, ready + out) == (0, "ready\ndone\n"), err
    link_bytes = sum(json.loads(line)["cnt"]["tx_bytes_link"] for line in counted.read_text().splitlines())
    assert link_bytes >= 0.95 * 2 * 64 * round_trips
    totals = [line.split()[1] for line in profile.read_text().splitlines() if line.startswith("totals:")]
    return int(totals[-1])


def _environment() -> dict[str, str]:
    dropped = ("LD_PRELOAD", "NACC_", "NETACC_")
    return {key: value for key, value in os.environ.items() if not key.startswith(dropped)}


def main() -> None:
    """Prints the counts as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        print(json.dumps({call: of_call(Path(folder), program, call) for call in CALLS}))


if __name__ == "__main__":
    main()
