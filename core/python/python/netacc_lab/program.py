"""Programs and traces, as Python has them: thin, typed views of the JSON that executors read and write."""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from netacc_lab import _native

Outcome = dict[str, Any]


class Mix(enum.Enum):
    """The mix of operations of a program."""

    DATA = "data"
    READINESS = "readiness"
    ENDINGS = "endings"
    SHARING = "sharing"
    ALL = "all"


@dataclass(frozen=True, order=True)
class Config:
    """How the library under test is set; kernel TCP does not care."""

    conn_per_qp: int = 1
    ring_bytes: int = 65536
    promote_after: int = 0
    fault_per_mille: int = 0

    def environment(self) -> dict[str, str]:
        """The library's own names for the settings that it has."""
        return {
            "NACC_SOR_CONN_PER_QP": str(self.conn_per_qp),
            "NACC_RING_SIZE": str(self.ring_bytes),
            "NACC_PROMOTE_AFTER": str(self.promote_after),
        }


@dataclass(frozen=True)
class Shape:
    """The frame of a generated program."""

    processes: int = 2
    hosts: int = 1
    connections: int = 1
    mix: Mix = Mix.ALL
    warm: int = 12
    most_bytes: int = 2000
    threads: bool = True
    config: Config = field(default_factory=Config)

    def json(self) -> str:
        return json.dumps(asdict(self) | {"mix": self.mix.value})


@dataclass(frozen=True)
class Program:
    """A checked program. `text` is its JSON on one line."""

    text: str

    @staticmethod
    def parse(text: str) -> Program:
        """Raises ValueError where the text is not a sound program."""
        return Program(_native.normalise(text))

    @staticmethod
    def load(path: Path) -> Program:
        return Program.parse(path.read_text())

    @staticmethod
    def from_bytes(data: bytes) -> Program:
        """The program that an input of a fuzzer stands for (`netacc_program::Drawn`). Any bytes will do."""
        return Program(_native.from_bytes(data))

    @property
    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.text)
        return data

    @property
    def features(self) -> frozenset[str]:
        """The features that the program uses, for summaries: operations, and properties of all of them."""
        found = set()
        for step in self.steps:
            operation = str(step["op"])
            found.add(operation)
            if "background" in step:
                found.add("threads")
            if operation in ("send", "recv"):
                found |= {
                    f"{operation} by {step['call']}",
                    *(f"MSG_{flag.upper()}" for flag in step["flags"]),
                }
            if operation == "set":
                found.add(f"set {step['option']}")
            if step.get("select"):
                found.add("select")
            for flag in ("edge", "oneshot"):
                if step.get("interest", {}).get(flag):
                    found.add(flag)
        return frozenset(found)

    @property
    def steps(self) -> list[dict[str, Any]]:
        steps: list[dict[str, Any]] = self.data["steps"]
        return steps

    @property
    def config(self) -> Config:
        return Config(**self.data["config"])

    def with_steps(self, steps: Sequence[dict[str, Any]]) -> Program:
        return Program.parse(json.dumps(self.data | {"steps": list(steps)}))

    def spread(self) -> Program | None:
        """The same on two hosts, a process on each in turn; None where no connection is between them then."""
        together = list(range(8))  # by process: the first of those that share a host

        def join(p: int, q: int) -> None:
            first, other = sorted((together[p], together[q]))
            together[:] = [first if group == other else group for group in together]

        listeners: dict[int, int] = {}
        edges: list[tuple[int, int]] = []
        for step in self.steps:
            match step["op"]:
                case "fork":
                    join(step["p"], step["child"])
                case "pass":
                    join(step["p"], step["q"])
                case "listen":
                    listeners[step["l"]] = step["p"]
                case "connect" if step["l"] in listeners:
                    edges.append((step["p"], listeners[step["l"]]))
        groups = sorted(set(together[: len(self.data["hosts"])]))
        hosts = [groups.index(together[p]) % 2 for p in range(len(self.data["hosts"]))]
        if all(groups.index(together[p]) % 2 == groups.index(together[q]) % 2 for p, q in edges):
            return None
        return Program.parse(json.dumps(self.data | {"hosts": hosts}))

    def pretty(self) -> str:
        """JSON with a step on each line: how regressions are kept."""
        data = self.data
        steps = ",\n    ".join(json.dumps(step) for step in data.pop("steps"))
        head = ",\n  ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in data.items())
        return f'{{\n  {head},\n  "steps": [\n    {steps}\n  ]\n}}\n'


@dataclass(frozen=True)
class Trace:
    """The outcomes of a program. `text` is its JSON on one line."""

    text: str

    @property
    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.text)
        return data

    @property
    def outcomes(self) -> list[Outcome]:
        outcomes: list[Outcome] = self.data["outcomes"]
        return outcomes


@dataclass(frozen=True)
class Difference:
    """A step on which an executor and the oracle disagree."""

    step: int
    op: dict[str, Any]
    expected: Outcome
    found: Outcome

    @property
    def signature(self) -> str:
        """The kind of difference, for counting: mostly the same for the same bug."""

        def kind(outcome: Outcome, other: Outcome) -> str:
            if outcome.get("stuck"):
                return "stuck"
            if outcome.get("wrong"):
                return "wrong bytes"
            if outcome.get("skipped"):
                return "skipped"
            if outcome.get("errno"):
                return str(outcome["errno"])
            if outcome.get("end") and not other.get("end"):
                return "end"
            if outcome.get("events", {}) != other.get("events", {}):
                mine = {bit for bits in outcome.get("events", {}).values() for bit in bits.split("|")}
                theirs = {bit for bits in other.get("events", {}).values() for bit in bits.split("|")}
                return "+".join(sorted(mine - theirs)) or "no more"
            return "less" if outcome.get("ret", 0) < other.get("ret", 0) else "ok"

        name = str(self.op["op"])
        if self.op.get("flags", {}).get("peek"):
            name += " peek"
        if name in ("get", "set"):
            name += f" {self.op['option']}"
        return f"{name}: {kind(self.expected, self.found)} -> {kind(self.found, self.expected)}"

    def describe(self) -> str:
        lines = (f"step {self.step} {json.dumps(self.op)}", f"  oracle {json.dumps(self.expected)}")
        return "\n".join((*lines, f"  found  {json.dumps(self.found)}"))


def generate(shape: Shape, decisions: Sequence[int]) -> Program:
    """The program that a shape and a list of decisions (64-bit numbers) give. Any list will do."""
    return Program(_native.generate(shape.json(), list(decisions)))


def compare(program: Program, oracle: Trace, other: Trace) -> list[Difference]:
    """The differences in order; later ones may be consequences of the first."""
    found = json.loads(_native.compare(program.text, oracle.text, other.text))
    steps = program.steps
    return [Difference(d["step"], steps[d["step"]], d["expected"], d["found"]) for d in found]
