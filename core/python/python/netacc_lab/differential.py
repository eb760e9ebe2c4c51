"""The differential runner: a program on the oracle and on another executor, and the verdict."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from netacc_lab.executors import ExecutorError, Far, ProcessExecutor
from netacc_lab.program import Config, Difference, Program, Shape, Trace, compare, generate

WINDOW = 6  # programs under way at once: enough that neither side waits for the other


@dataclass(frozen=True)
class Verdict:
    """The result of one program."""

    program: Program
    oracle: Trace
    found: Trace
    differences: list[Difference]
    stable: bool = True  # the oracle agrees with itself

    @property
    def failed(self) -> bool:
        return self.stable and bool(self.differences)

    @property
    def signature(self) -> str:
        return self.differences[0].signature if self.differences else ""


@dataclass(frozen=True)
class OpenFindings:
    """Differences that are known and not fixed: by signature, in programs with certain operations."""

    entries: tuple[tuple[str, str, frozenset[str]], ...] = ()

    @staticmethod
    def load(path: Path) -> OpenFindings:
        entries = json.loads(path.read_text())
        return OpenFindings(
            tuple((item["signature"], item["finding"], frozenset(item.get("with", ()))) for item in entries)
        )

    @property
    def signatures(self) -> frozenset[str]:
        return frozenset(signature for signature, _, _ in self.entries)

    def explain(self, verdict: Verdict) -> str | None:
        """The finding that a failure belongs to."""
        until = verdict.differences[0].step
        operations = {str(step["op"]) for step in verdict.program.steps[: until + 1]}
        for signature, finding, needed in self.entries:
            if signature == verdict.signature and (not needed or needed & operations):
                return finding
        return None


@dataclass
class Tally:
    """Counts of a run."""

    programs: int = 0
    steps: int = 0
    failed: int = 0
    unstable: int = 0
    app_bytes: int = 0
    kernel_bytes: int = 0
    moved: int = 0  # programs with bytes that the kernel did not carry
    seconds: float = 0.0
    signatures: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)  # the label of the first program of each signature
    features: Counter[str] = field(default_factory=Counter)  # programs that use each
    failed_with: Counter[str] = field(default_factory=Counter)  # programs that differ and use each

    def add(self, label: str, verdict: Verdict) -> None:
        """Counts a program; `label` is the command that replays it."""
        data = verdict.found.data
        features = verdict.program.features
        self.features.update(features)
        self.programs += 1
        self.steps += len(data["outcomes"])
        self.app_bytes += data["app_bytes"]
        self.kernel_bytes += min(data["kernel_bytes"], data["app_bytes"])
        # A switch itself costs a few records on the kernel's side, so few bytes prove nothing.
        self.moved += data["kernel_bytes"] + 1 < data["app_bytes"]
        self.unstable += not verdict.stable
        if verdict.failed:
            self.failed += 1
            self.signatures[verdict.signature] += 1
            self.first.setdefault(verdict.signature, label)
            self.failed_with.update(features)

    def document(self) -> dict[str, object]:
        """For a file."""
        return {name: getattr(self, name) for name in vars(self)}

    @staticmethod
    def of(document: Mapping[str, Any]) -> Tally:
        """The counts that `document` has made a file of."""
        tally = Tally()
        for name, empty in vars(Tally()).items():
            setattr(tally, name, type(empty)(document[name]))
        return tally

    def describe(self) -> str:
        rate = self.programs / self.seconds if self.seconds else 0.0
        off = 1 - self.kernel_bytes / self.app_bytes if self.app_bytes else 0.0
        return (
            f"{self.programs} programs, {self.steps} steps in {self.seconds:.1f} s ({rate:.0f} programs/s); "
            f"{self.failed} differ, {self.unstable} unstable; {self.moved} programs moved bytes off the "
            f"kernel's TCP, {off:.0%} of {self.app_bytes / 1e6:.0f} MB"
        )

    def describe_features(self) -> str:
        """A line for each feature: how many programs use it, and how many of those differ."""
        width = max((len(name) for name in self.features), default=0)
        return "\n".join(
            f"  {name:{width}}  {count:8} programs  {self.failed_with[name]:6} differ"
            for name, count in sorted(self.features.items(), key=lambda item: (-item[1], item[0]))
        )


class Differential:
    """Holds the executors: the oracle, and one of the other kind for each setting of the library."""

    def __init__(
        self,
        binaries: Path,
        *,
        name: str = "shm",
        log: Path | None = None,
        accelerated: bool = True,
        far: Far | None = None,
        executable: Path | None = None,
    ) -> None:
        """`far`: both the oracle and the other one run on those hosts, not on addresses of this machine.

        `executable` is another netacc-exec than that of the binaries.
        """
        self._binaries = binaries
        self._executable = executable or binaries / "netacc-exec"
        self._name = name
        self._log = log
        self._accelerated = accelerated
        self._far = far
        self._oracle = ProcessExecutor(self._executable, far=far)
        self._others: dict[Config, ProcessExecutor] = {}

    def other(self, config: Config) -> ProcessExecutor:
        """The executor under test for a setting."""
        if config in self._others:
            return self._others[config]
        env = config.environment()
        if self._log:
            env["NACC_LOG_PATH"] = str(self._log)
        launcher = [self._binaries / "netacc_run"] if self._accelerated else []
        made = ProcessExecutor(self._executable, name=self._name, launcher=launcher, env=env, far=self._far)
        self._others[config] = made
        return made

    def check(self, program: Program) -> Verdict:
        """One program, thoroughly: where the two differ the oracle is asked again."""
        oracle = self._oracle.run(program)
        found = self._run(self.other(program.config), program, oracle)
        return self._judge(program, oracle, found)

    def _run(self, other: ProcessExecutor, program: Program, oracle: Trace) -> Trace:
        try:
            return other.run(program, oracle)
        except ExecutorError:
            # A crash is a difference at every step.
            other.close()
            return Trace('{"outcomes":[],"app_bytes":0,"kernel_bytes":0}')

    def _judge(self, program: Program, oracle: Trace, found: Trace) -> Verdict:
        differences = compare(program, oracle, found)
        if not differences:
            return Verdict(program, oracle, found, differences)
        for _ in range(2):
            again = self._oracle.run(program)
            if compare(program, oracle, again) or any(o.get("stuck") for o in again.outcomes):
                return Verdict(program, oracle, found, differences, stable=False)
        return Verdict(program, oracle, found, differences)

    def check_all(self, programs: Iterable[Program]) -> Iterator[tuple[int, Verdict]]:
        """Many programs, both sides busy at once. Verdicts come with the index, not always in order."""
        source = enumerate(programs)
        requested: deque[tuple[int, Program]] = deque()
        tried: deque[tuple[int, Program, Trace, ProcessExecutor]] = deque()
        suspects: list[tuple[int, Program, Trace, Trace]] = []
        exhausted = False
        while True:
            while not exhausted and not suspects and len(requested) + len(tried) < WINDOW:
                numbered = next(source, None)
                if numbered is None:
                    exhausted = True
                    break
                self._oracle.send(numbered[1])
                requested.append(numbered)
            if requested:
                index, program = requested.popleft()
                oracle = self._oracle.receive()
                other = self.other(program.config)
                other.send(program, oracle)
                tried.append((index, program, oracle, other))
                if len(tried) < WINDOW // 2 and not exhausted:
                    continue
            if tried:
                index, program, oracle, other = tried.popleft()
                try:
                    found = other.receive()
                except ExecutorError:
                    other.close()
                    found = Trace('{"outcomes":[],"app_bytes":0,"kernel_bytes":0}')
                    for _, again, expect, _ in (t for t in tried if t[3] is other):
                        other.send(again, expect)
                if '"stuck"' in found.text or compare(program, oracle, found):
                    # Judged when nothing else is under way: the oracle is asked in between.
                    suspects.append((index, program, oracle, found))
                else:
                    yield index, Verdict(program, oracle, found, [])
            if suspects and not requested and not tried:
                for index, program, oracle, found in suspects:
                    yield index, self._judge(program, oracle, found)
                suspects.clear()
            if exhausted and not requested and not tried and not suspects:
                return

    def close(self) -> None:
        self._oracle.close()
        for other in self._others.values():
            other.close()
        self._others.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def shrink(
    program: Program,
    shape: Shape,
    decisions: Sequence[int],
    fails: Callable[[Program], bool],
    *,
    budget_s: float = 30.0,
) -> Program:
    """A smaller program that still fails: fewer decisions and a plainer shape first, then fewer steps."""
    deadline = time.monotonic() + budget_s

    def works(candidate: Program) -> bool:
        return time.monotonic() < deadline and fails(candidate)

    best = list(decisions)
    for plainer in (
        {"processes": 1},
        {"processes": 2},
        {"hosts": 1},
        {"connections": 1},
        {"connections": 2},
        {"config": Config()},
    ):
        candidate = replace(shape, **plainer)
        if candidate != shape and works(generate(candidate, best)):
            shape = candidate
    size = max(1, len(best) // 2)
    while size:
        start = 0
        while start < len(best):
            candidate_decisions = best[:start] + best[start + size :]
            if works(generate(shape, candidate_decisions)):
                best = candidate_decisions
            else:
                start += size
        size //= 2
    program = generate(shape, best) if works(generate(shape, best)) else program
    return shrink_steps(program, works)


def shrink_steps(program: Program, works: Callable[[Program], bool]) -> Program:
    """Leaves out steps, the last first, as long as the program still fails."""
    for index in itertools.count(1):
        steps = program.steps
        if index > len(steps):
            return program
        step = steps[-index]
        if "background" in step or step["op"] in ("join", "fork"):
            continue
        try:
            candidate = program.with_steps(steps[: len(steps) - index] + steps[len(steps) - index + 1 :])
        except ValueError:
            continue
        if works(candidate):
            program = candidate
    raise AssertionError("count() never ends")
