"""What runs programs."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Host:
    """A machine that runs some of a program's processes, reached by a command."""

    #: Runs the words after it there, with our input and output: `("ssh", "eri1")`.
    reach: tuple[str, ...]
    address: str
    address6: str = ""
    #: The folder of netacc-exec and netacc_run there.
    binaries: Path = Path("target/release")


@dataclass(frozen=True)
class Far:
    """Machines in the place of addresses of this one."""

    hosts: tuple[Host, ...]
    #: For listeners. A port plus 20000 is to be one too, as links are found by that.
    ports: str = "20000-29999"
    #: How many times slower than an ordinary machine they are: in emulation about ten.
    slowness: int = 1
    #: What the network and a kernel at its other end need to answer.
    settle_ms: int = 2
    #: More variables for the library there.
    env: Mapping[str, str] = field(default_factory=dict)

    def options(self, env: Mapping[str, str], *, accelerated: bool) -> list[str]:
        """Options of a coordinator here that has an agent on each host."""
        world = ["--slowness", str(self.slowness), "--settle-ms", str(self.settle_ms)]
        options = list(world)
        for host in self.hosts:
            variables = [f"{name}={value}" for name, value in {**env, **self.env}.items()]
            launcher = ["env", *variables, str(host.binaries / "netacc_run")] if accelerated else []
            agent = [*launcher, str(host.binaries / "netacc-exec"), "--agent"]
            agent += ["--addresses", ",".join(host.address for host in self.hosts)]
            if all(host.address6 for host in self.hosts):
                agent += ["--addresses6", ",".join(host.address6 for host in self.hosts)]
            agent += ["--ports", self.ports, *world]
            options += ["--host", shlex.join([*host.reach, *agent])]
        return options


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
        far: Far | None = None,
    ) -> None:
        """Under `launcher` the library is tested; with `far` on those hosts, by their own launcher."""
        self.name = name
        options = ["--fresh"] * fresh + ["--kernel-only"] * (not launcher)
        if far:
            # What coordinates is no program under test then.
            options += far.options(env or {}, accelerated=bool(launcher))
            launcher = ()
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

    What it has no model of is `unsupported` in its traces, and counted. `preset` is what the devices are:
    "nic" for modelled NICs on a network with times, losses and reordering; empty for in-memory ones, drawn
    from the seed.
    """

    def __init__(self, *, seed: int = 0, mutant: str = "", preset: str = "") -> None:
        self.name = f"harness {preset}".strip()
        self.preset = preset
        self.seed = seed
        self.mutant = mutant
        self.state = ""  # the streams as they stood where a step was given up
        self.steps = 0
        self.unsupported = 0

    def run(self, program: Program, expect: Trace | None = None) -> Trace:
        """Raises BrokenPromise where the core itself was caught."""
        text, broken, self.state = _native.simulate(
            program.text, self.seed, expect.text if expect else "", self.mutant, self.preset
        )
        if broken:
            raise BrokenPromise(broken)
        trace = Trace(text)
        self.steps += len(trace.outcomes)
        self.unsupported += sum(outcome.get("skipped") == "unsupported" for outcome in trace.outcomes)
        return trace

    def close(self) -> None:
        """Nothing is open."""
