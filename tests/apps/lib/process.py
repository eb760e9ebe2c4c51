"""Processes under test: started in a group of their own, with their output kept, and cleaned up for sure."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LOG_TAIL_BYTES = 8000  # of one log in the report of a failure; arbitrary


@dataclass(frozen=True)
class ProcessId:
    """A pid together with its start time: the pair is never used again, a pid alone may be."""

    pid: int
    started: int

    def alive(self) -> bool:
        return self in _table()


@dataclass(frozen=True)
class Relation:
    """Whom a process belongs to."""

    parent: int
    session: int


@dataclass
class Process:
    """A running program. Use `Lab.start`, which also stops it."""

    name: str
    argv: Sequence[str]
    popen: subprocess.Popen[str]
    stdout_path: Path
    stderr_path: Path
    accelerated: bool
    started: int
    logs: list[Path] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.popen.pid

    def poll(self) -> int | None:
        return self.popen.poll()

    def wait(self, timeout_s: float = 60.0) -> int:
        """The exit status; an AssertionError when it does not end in time."""
        try:
            return self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {timeout_s} s") from None

    def finish(self, timeout_s: float = 60.0) -> str:
        """Wait for success and return the standard output."""
        status = self.wait(timeout_s)
        assert status == 0, f"{self.name} ended with status {status}"
        return self.stdout()

    def stdout(self) -> str:
        return self.stdout_path.read_text(errors="replace")

    def stderr(self) -> str:
        return self.stderr_path.read_text(errors="replace")

    def wait_line(self, start: str, timeout_s: float = 60.0) -> str:
        """The first whole line of standard output that begins so, as soon as it is there."""
        deadline = time.monotonic() + timeout_s
        while True:
            ended = self.poll() is not None
            for line in self.stdout().splitlines(keepends=True):
                if line.startswith(start) and line.endswith("\n"):
                    return line.rstrip("\n")
            assert not ended, f"{self.name} ended with {self.poll()} and never printed {start!r}"
            assert time.monotonic() < deadline, f"{self.name} did not print {start!r} in {timeout_s} s"
            time.sleep(0.01)

    def send_line(self, line: str) -> None:
        """One line to its standard input (for processes started with `interactive=True`)."""
        assert self.popen.stdin
        self.popen.stdin.write(line + "\n")
        self.popen.stdin.flush()

    def end_input(self) -> None:
        """Close its standard input: the sign to our own clients that they may go."""
        if self.popen.stdin:
            self.popen.stdin.close()

    def family(self) -> list[ProcessId]:
        """The process and all that descend from it, the eldest first."""
        children: dict[int, list[ProcessId]] = {}
        table = _table()
        for process, relation in table.items():
            children.setdefault(relation.parent, []).append(process)
        found = [process for process in table if process.pid == self.pid]
        for process in found:  # grows while it is walked
            found.extend(children.get(process.pid, []))
        return found

    def session(self) -> list[ProcessId]:
        """The processes in the session that this one began; none when its pid has a new owner."""
        table = _table()
        if any(process.pid == self.pid and process.started != self.started for process in table):
            return []
        return [process for process, relation in table.items() if relation.session == self.pid]

    def kill(self) -> None:
        """SIGKILL to the process itself, as the out-of-memory killer would."""
        self.popen.kill()
        self.popen.wait()

    def stop(self, patience_s: float = 5.0) -> None:
        """End it and its descendants, politely first. Touches nothing that this process did not start."""
        mine = dict.fromkeys(self.family())
        self.end_input_quietly()
        if self.poll() is None:
            self.popen.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(patience_s)
        # Some may have been orphaned (they are still in our session), others have left the session
        # (PostgreSQL's backends do; they are known from before).
        mine |= dict.fromkeys(self.session())
        for member in mine:
            if member.alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member.pid, signal.SIGKILL)
        self.popen.wait()

    def end_input_quietly(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.end_input()

    def report(self) -> str:
        """Command, status and the end of every log."""
        status = self.poll()
        text = [f"$ {' '.join(self.argv)}", f"[{'running' if status is None else f'status {status}'}]"]
        for path in (self.stdout_path, self.stderr_path, *self.logs):
            if path.exists() and path.stat().st_size:
                text += [f"--- {path.name}", _tail(path)]
        return "\n".join(text)


def start(
    name: str,
    argv: Sequence[str],
    *,
    folder: Path,
    accelerated: bool,
    env: Mapping[str, str],
    interactive: bool,
) -> Process:
    """Start a program in its own session, with standard output and error in files below `folder`."""
    stdout_path, stderr_path = folder / f"{name}.stdout", folder / f"{name}.stderr"
    with stdout_path.open("w") as stdout, stderr_path.open("w") as stderr:
        popen = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE if interactive else subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=dict(env),
            cwd=folder,
            text=True,
            start_new_session=True,
        )
    # It is not reaped before this reads, so the entry is there even if the program has ended.
    own = next(process for process, _ in _stats() if process.pid == popen.pid)
    return Process(name, argv, popen, stdout_path, stderr_path, accelerated, own.started)


def _table() -> dict[ProcessId, Relation]:
    """Every process that still runs."""
    return {process: relation for process, relation in _stats() if relation}


def _stats() -> Iterator[tuple[ProcessId, Relation | None]]:
    """Every process; without a relation when it is a zombie."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        # The name in parentheses may hold anything, so count from its end.
        state, parent, _, session, *rest = stat.rpartition(")")[2].split()
        relation = None if state == "Z" else Relation(int(parent), int(session))
        yield ProcessId(int(entry.name), started=int(rest[15])), relation


def _tail(path: Path) -> str:
    data = path.read_bytes()
    cut = "" if len(data) <= LOG_TAIL_BYTES else "[...]\n"
    return cut + data[-LOG_TAIL_BYTES:].decode(errors="replace").rstrip()
