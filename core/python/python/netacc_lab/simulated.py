"""The differential runner with the core in a simulation on one side: a seed decides a run, its faults too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from netacc_lab.differential import Differential, Verdict
from netacc_lab.executors import BrokenPromise, HarnessExecutor, Ns3Executor
from netacc_lab.program import Difference, Mix, Program, Trace
from netacc_lab.strategies import Draw, Profile, from_seed

FAULTS_PER_MILLE = (0, 1, 5, 30)  # by seed: none, and so many of the scheduler's turns

# The operations that a simulation has a model of.
MIXES = {
    "harness": (Mix.DATA, Mix.SHARING),
    "ns3": (Mix.DATA, Mix.READINESS, Mix.ENDINGS, Mix.SHARING, Mix.ALL),
}


def with_faults(seed: int, profile: Profile = Profile.FAST, mixes: tuple[Mix, ...] = tuple(Mix)) -> Draw:
    """The program of a seed, on a network and devices whose faults the seed draws."""
    draw = from_seed(seed, profile, mixes)
    faults = FAULTS_PER_MILLE[seed % len(FAULTS_PER_MILLE)]
    config = replace(draw.shape.config, fault_per_mille=faults)
    return replace(draw, shape=replace(draw.shape, config=config))


@dataclass(frozen=True)
class Promise(Difference):
    """The core itself broke a promise, at any step."""

    what: str = ""

    @property
    def signature(self) -> str:
        return f"broken promise: {self.what.partition(':')[0]}"

    def describe(self) -> str:
        return f"broken promise: {self.what}"


class Simulated(Differential):
    """The oracle, and the core alone (`harness`) or in ns-3 (`ns3`).

    `seed` is that of the next run; half of the harness's are on modelled NICs.
    """

    def __init__(self, binaries: Path, kind: str, *, ns3: Path | None = None, seed: int = 0) -> None:
        super().__init__(binaries, name=kind, accelerated=False)
        self.seed = seed
        self._ns3 = Ns3Executor(ns3) if kind == "ns3" and ns3 else None

    def check(self, program: Program) -> Verdict:
        """One program, with the present seed."""
        oracle = self._oracle.run(program)
        executor = self._ns3 or HarnessExecutor(preset="nic" if self.seed % 2 else "")
        executor.seed = self.seed
        try:
            found = executor.run(program, oracle)
        except BrokenPromise as broken:
            nothing: dict[str, Any] = {}
            promise = Promise(len(program.steps) - 1, nothing, nothing, nothing, str(broken))
            absent = Trace('{"outcomes":[],"app_bytes":0,"kernel_bytes":0}')
            return Verdict(program, oracle, absent, [promise])
        return self._judge(program, oracle, found)

    def check_all(self, programs: Iterable[Program]) -> Iterator[tuple[int, Verdict]]:
        """Programs with successive seeds, from the present one on."""
        first = self.seed
        for index, program in enumerate(programs):
            self.seed = first + index
            yield index, self.check(program)

    def close(self) -> None:
        super().close()
        if self._ns3:
            self._ns3.close()
