"""What runs programs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from netacc_lab import _native
from netacc_lab.program import Program, Trace


class ExecutorError(Exception):
    """The executor itself failed; nothing is known of the program."""


class BrokenPromise(Exception):  # noqa: N818
    """The simulated core broke one of its own promises."""


class Executor(Protocol):
    """Runs programs one after another: real processes, the simulated core, another machine."""

    name: str

    def run(self, program: Program, expect: Trace | None = None) -> Trace:
        """The program's trace. `expect` is the oracle's: what arrived there at once is waited for."""

    def close(self) -> None:
        """Ends what it started."""


class ProcessExecutor:
    """`netacc-exec`, natively or under a launcher. One tree of processes serves many programs."""

    def __init__(
        self,
        executable: Path | str,
        *,
        name: str = "tcp",
        launcher: Sequence[Path | str] = (),
        env: Mapping[str, str] | None = None,
        fresh: bool = False,
    ) -> None:
        self.name = name
        options = ["--fresh"] * fresh + ["--kernel-only"] * (not launcher)
        self._command = [str(word) for word in (*launcher, executable, *options)]
        clean = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("NACC_", "NETACC_", "LD_PRELOAD"))
        }
        self._env = clean | dict(env or {})
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int | None:
        """Of the coordinator, while it runs."""
        return self._process.pid if self._process else None

    def send(self, program: Program, expect: Trace | None = None) -> None:
        """Hand over a program, to `receive` its trace later: several may be under way."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self._env
            )
        assert self._process.stdin
        expected = expect.text if expect else "null"
        try:
            self._process.stdin.write(f'{{"program":{program.text},"expect":{expected}}}\n')
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ExecutorError(f"{self.name} ended with {self._process.wait()}") from None

    def receive(self) -> Trace:
        """The next trace."""
        assert self._process
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            raise ExecutorError(f"{self.name} ended with {self._process.wait()}")
        trace = Trace(line.rstrip("\n"))
        if '"trouble"' in line and trace.data.get("trouble"):
            raise ExecutorError(f"{self.name}: {trace.data['trouble']}")
        return trace

    def run(self, program: Program, expect: Trace | None = None) -> Trace:
        self.send(program, expect)
        return self.receive()

    def close(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        assert process.stdin
        assert process.stdout
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class HarnessExecutor:
    """The core alone, under the seeded scheduler of `sim/harness`, in this process; deterministic.

    What it has no model of is `unsupported` in its traces, and counted.
    """

    def __init__(self, *, seed: int = 0, mutant: str = "") -> None:
        self.name = "harness"
        self.seed = seed
        self.mutant = mutant
        self.state = ""  # the streams as they stood where a step was given up
        self.steps = 0
        self.unsupported = 0

    def run(self, program: Program, expect: Trace | None = None) -> Trace:
        """Raises BrokenPromise where the core itself was caught."""
        text, broken, self.state = _native.simulate(
            program.text, self.seed, expect.text if expect else "", self.mutant
        )
        if broken:
            raise BrokenPromise(broken)
        trace = Trace(text)
        self.steps += len(trace.outcomes)
        self.unsupported += sum(outcome.get("skipped") == "unsupported" for outcome in trace.outcomes)
        return trace

    def close(self) -> None:
        """Nothing is open."""
