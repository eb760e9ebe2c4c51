"""Instructions of a call in the library, counted by callgrind: `python -m tests.apps.instructions`."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from tests.apps.lib.compiling import compile_program
from tests.apps.lib.paths import binaries
from tests.apps.lib.tracing import traced

CALLS = ("send", "recv")
#: Sends a message from two buffers.
VECTOR = "writev"
#: Round trips of two runs. Their difference is counted, because both begin in the same way.
FEW, MANY = 2_000, 22_000
#: Short connections of two runs, and the requests of each.
FEW_SHORT, MANY_SHORT, REQUESTS = 200, 6_200, 2
#: For a run, under callgrind on a busy machine.
_TIMEOUT = 120


def build(folder: Path, name: str = "instructions") -> Path:
    """The program whose calls are counted, or another one."""
    return compile_program(folder, name)


def of_call(folder: Path, program: Path, call: str) -> float:
    """Instructions of one call of a message of 64 bytes that is there, on a link."""
    return _of_message(folder, program, Counting((call,)))


def of_call_on_tcp(folder: Path, program: Path, call: str) -> float:
    """As `of_call`, on a connection that stays on TCP for now; without the C library's own function."""
    return _of_message(folder, program, Counting((call,), on_link=False))


def of_vector(folder: Path, program: Path, *, on_link: bool) -> float:
    """As `of_call` and `of_call_on_tcp`, of a message of 64 bytes that is sent from two buffers."""
    return _of_message(folder, program, Counting((VECTOR,), on_link=on_link))


def of_message(folder: Path, program: Path, window_end: int | None) -> float:
    """Instructions of a send and of the receive that finds its message. With a `window_end`, a trace runs."""
    return _of_message(folder, program, Counting(CALLS, window_end))


def of_connection(folder: Path, short: Path) -> float:
    """Instructions of a short connection, both ends together: of the program `short`, all included."""
    few, many = (_of_run(folder, short, connections) for connections in (FEW_SHORT, MANY_SHORT))
    return (many - few) / (MANY_SHORT - FEW_SHORT)


def _of_run(folder: Path, short: Path, connections: int) -> int:
    profile = folder / "profile"
    valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={profile}"]
    counting = Counting(())
    command = [str(binaries() / "netacc_run"), *valgrind, str(short), str(connections), str(REQUESTS)]
    env = counting.environment() | {"NETACC_CONF": "/dev/null"}
    subprocess.run(command, env=env, capture_output=True, check=True, timeout=_TIMEOUT)
    return _total(profile)


@dataclass(frozen=True)
class Counting:
    """What is counted: in which calls, while which trace runs, and on which path."""

    calls: tuple[str, ...]
    window_end: int | None = None
    on_link: bool = True

    def launcher(self) -> list[str]:
        """The words that start a program."""
        return [str(binaries() / "netacc_run"), *(["-F", "1"] if self.on_link else [])]

    def environment(self) -> dict[str, str]:
        """For the program."""
        dropped = ("LD_PRELOAD", "NACC_", "NETACC_")
        clean = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
        return clean if self.on_link else clean | {"NACC_PROMOTE_AFTER": "1000000"}


def _of_message(folder: Path, program: Path, counting: Counting) -> float:
    few, many = (_collected(folder, program, counting, round_trips) for round_trips in (FEW, MANY))
    return (many - few) / (2 * (MANY - FEW))


def _collected(folder: Path, program: Path, counting: Counting, round_trips: int) -> int:
    """Instructions within the calls, and the functions that they call, of a whole run."""
    profile, counted = folder / "profile", folder / "counted"
    counted.unlink(missing_ok=True)
    toggles = [f"--toggle-collect={call}" for call in counting.calls]
    valgrind = ["valgrind", "--tool=callgrind", *toggles, f"--callgrind-out-file={profile}"]
    started = subprocess.Popen(
        [*counting.launcher(), *valgrind, program, str(round_trips), *({VECTOR} & set(counting.calls))],
        env=counting.environment() | {"NETACC_EXIT_STATS": str(counted)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with started:
        assert started.stdout is not None
        ready = started.stdout.readline()
        end = counting.window_end
        with nullcontext() if end is None else traced(started.pid, end):
            out, err = started.communicate("\n", timeout=_TIMEOUT)
    assert (started.returncode, ready + out) == (0, "ready\ndone\n"), err
    path = "tx_bytes_link" if counting.on_link else "tx_bytes_tcp"
    moved = sum(json.loads(line)["cnt"][path] for line in counted.read_text().splitlines())
    assert moved >= 0.95 * 2 * 64 * round_trips
    return _total(profile)


def _total(profile: Path) -> int:
    totals = [line.split()[1] for line in profile.read_text().splitlines() if line.startswith("totals:")]
    return int(totals[-1])


def main() -> None:
    """Prints the counts as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        for path, count in (("link", of_call), ("tcp", of_call_on_tcp)):
            print(json.dumps({"path": path} | {call: count(Path(folder), program, call) for call in CALLS}))
        vectors = {path: of_vector(Path(folder), program, on_link=path == "link") for path in ("link", "tcp")}
        print(json.dumps({"vector": vectors}))
        print(json.dumps({"short connection": of_connection(Path(folder), build(Path(folder), "short"))}))


if __name__ == "__main__":
    main()
