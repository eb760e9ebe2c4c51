"""Executors: they run programs and return traces."""

from __future__ import annotations

import json
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
        """The program's trace. `expect` is the oracle's: bytes that arrived there at once are waited for."""

    def close(self) -> None:
        """Ends the processes that it started."""


@dataclass(frozen=True)
class Host:
    """A machine that runs some of a program's processes, reached by a command."""

    #: Runs the words after it there, with our input and output: `("ssh", "eri1")`.
    reach: tuple[str, ...]
    address: str
    address6: str = ""
    #: The folder of netacc-exec and netacc_run there.
    binaries: Path = Path("target/release")
    #: `reach` makes a line of the words after it for a shell there, as ssh does: they are quoted for that.
    quoted: bool = False

    def argv(self, words: Sequence[str]) -> list[str]:
        """The command that runs these words there."""
        return [*self.reach, shlex.join(words)] if self.quoted else [*self.reach, *words]


@dataclass(frozen=True)
class Far:
    """Machines in the place of addresses of this one."""

    hosts: tuple[Host, ...]
    #: For listeners. A port plus 20000 is to be one too, as links are found by that.
    ports: str = "20000-29999"
    #: How many times slower than an ordinary machine they are: in emulation about ten.
    slowness: int = 1
    #: The time that the network and a kernel at its other end need to answer.
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
            options += ["--host", shlex.join(host.argv(agent))]
        return options


class LineProcess:
    """A program that answers each line of its input with one of its output. Started at the first."""

    def __init__(self, name: str, command: list[str], env: Mapping[str, str] | None = None) -> None:
        self._name = name
        self._command = command
        self._env = env
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int | None:
        """While it runs."""
        return self._process.pid if self._process else None

    def send(self, line: str) -> None:
        """Several may be under way."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self._env
            )
        assert self._process.stdin
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ExecutorError(f"{self._name} ended with {self._process.wait()}") from None

    def receive(self) -> str:
        assert self._process
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            raise ExecutorError(f"{self._name} ended with {self._process.wait()}")
        return line.rstrip("\n")

    def exchange(self, line: str) -> str:
        self.send(line)
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
            # Then the coordinator is no program under test.
            options += far.options(env or {}, accelerated=bool(launcher))
            launcher = ()
        clean = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("NACC_", "NETACC_", "LD_PRELOAD"))
        }
        command = [str(word) for word in (*launcher, executable, *options)]
        self._process = LineProcess(name, command, clean | dict(env or {}))

    @property
    def pid(self) -> int | None:
        """Of the coordinator, while it runs."""
        return self._process.pid

    def send(self, program: Program, expect: Trace | None = None) -> None:
        """Hand over a program, to `receive` its trace later: several may be under way."""
        self._process.send(f'{{"program":{program.text},"expect":{expect.text if expect else "null"}}}')

    def receive(self) -> Trace:
        """The next trace."""
        trace = Trace(self._process.receive())
        if '"trouble"' in trace.text and trace.data.get("trouble"):
            raise ExecutorError(f"{self.name}: {trace.data['trouble']}")
        return trace

    def run(self, program: Program, expect: Trace | None = None) -> Trace:
        self.send(program, expect)
        return self.receive()

    def close(self) -> None:
        self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Ns3Executor:
    """The core on modelled NICs, on simulated hosts in ns-3: `netacc-ns3-exec`, deterministic.

    TCP is ns-3's own: the packets of connections that are not promoted cross the same network. With `tcp`
    "memory" the scheduler delivers their bytes, as for `HarnessExecutor` with the preset "nic"; on the same
    seed both then go the same way, to the nanosecond.
    """

    def __init__(
        self, executable: Path | str, *, seed: int = 0, mutant: str = "", tcp: str = "simulated"
    ) -> None:
        self.name = "ns3"
        self.seed = seed
        self.mutant = mutant
        self.tcp = tcp
        self.state = ""  # the streams as they stood where a step was given up
        self.network = ""  # a hash over the deliveries of the network and their times
        self.tcp_bytes = 0  # that ns-3's TCP has brought
        self._process = LineProcess("ns3", [str(executable)])

    def run(self, program: Program, expect: Trace | None = None) -> Trace:
        """Raises BrokenPromise where the core itself was caught."""
        mutant = json.dumps(self.mutant or None)
        expected = expect.text if expect else "null"
        answer = json.loads(
            self._process.exchange(
                f'{{"program":{program.text},"expect":{expected},"seed":{self.seed},"mutant":{mutant},'
                f'"tcp":{json.dumps(self.tcp)}}}'
            )
        )
        self.state, self.network = answer["state"], answer["network"] or ""
        self.tcp_bytes = answer["tcp_bytes"]
        if answer["broken"]:
            raise BrokenPromise(answer["broken"])
        return Trace(json.dumps(answer["trace"]))

    def close(self) -> None:
        self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class HarnessExecutor:
    """The core alone, under the seeded scheduler of `sim/harness`, in this process; deterministic.

    Operations without a model are `unsupported` in its traces, and counted. `preset` chooses the devices:
    "nic" for modelled NICs on a network with times, losses and reordering; empty for in-memory ones, drawn
    from the seed.
    """

    def __init__(self, *, seed: int = 0, mutant: str = "", preset: str = "") -> None:
        self.name = f"harness {preset}".strip()
        self.preset = preset
        self.seed = seed
        self.mutant = mutant
        self.state = ""  # the streams as they stood where a step was given up
        self.network = ""  # a hash over the deliveries of the network and their times, where it has times
        self.steps = 0
        self.unsupported = 0

    def run(self, program: Program, expect: Trace | None = None) -> Trace:
        """Raises BrokenPromise where the core itself was caught."""
        text, broken, self.state, self.network = _native.simulate(
            program.text, self.seed, expect.text if expect else "", self.mutant, self.preset
        )
        if broken:
            raise BrokenPromise(broken)
        trace = Trace(text)
        self.steps += len(trace.outcomes)
        self.unsupported += sum(outcome.get("skipped") == "unsupported" for outcome in trace.outcomes)
        return trace

    def close(self) -> None:
        """Does nothing: no process or file is open."""
