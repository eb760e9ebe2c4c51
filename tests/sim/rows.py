"""Rows of validation: a known figure and the simulator's; and the scenarios that are run for them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netacc_lab.sim import Point, SerialEngine, study


@dataclass(frozen=True)
class Row:
    """A figure that is known, and the simulator's figure."""

    what: str
    expected: float
    simulated: float
    unit: str
    #: How far it may be off, as a share of what is expected; None for a figure that is only reported.
    tolerance: float | None
    #: The expected figure is a bound: simulated may not be below ("least") or above ("most") it.
    bound: str = ""
    #: The least and most of the known figure in measurements that are alike. What lies between cannot be told
    #: from it.
    spread: tuple[float, float] | None = None

    @property
    def holds(self) -> bool:
        """Whether the figures agree, or the known one varies as much."""
        return self.agrees or self.is_within_spread

    @property
    def is_within_spread(self) -> bool:
        """Whether measurements that are alike have figures on both sides of the simulated one."""
        return self.spread is not None and self.spread[0] <= self.simulated <= self.spread[1]

    @property
    def agrees(self) -> bool:
        """Whether the figures agree."""
        if self.tolerance is None:
            return True
        slack = abs(self.expected) * self.tolerance
        if self.bound == "least":
            return self.simulated >= self.expected - slack
        if self.bound == "most":
            return self.simulated <= self.expected + slack
        return abs(self.simulated - self.expected) <= slack

    def line(self) -> str:
        """For a table."""
        ratio = self.simulated / self.expected if self.expected else float("nan")
        kind = {"least": "at least ", "most": "at most "}.get(self.bound, "")
        allowed = "-" if self.tolerance is None else f"{self.tolerance:.1%}"
        verdict = "yes" if self.agrees else "within the measured spread" if self.holds else "NO"
        spread = f" ({_number(self.spread[0])} to {_number(self.spread[1])})" if self.spread else ""
        return (
            f"| {self.what} | {kind}{_number(self.expected)}{spread} {self.unit} "
            f"| {_number(self.simulated)} {self.unit} | {ratio:.3f} | {allowed} | {verdict} |"
        )


def _number(value: float) -> str:
    """Shares and small figures need more digits than great ones."""
    return f"{value:,.3f}" if abs(value) < 10 else f"{value:,.1f}"


def simulate(folder: Path, **tables: dict[str, Any] | list[dict[str, Any]]) -> Point:
    """Runs a scenario that is given as its tables, with its seeds."""
    text = 'question = "Does simulation agree with known figures?"\n'
    for name, table in tables.items():
        for each in table if isinstance(table, list) else [table]:
            brackets = f"[[{name}]]" if isinstance(table, list) else f"[{name.replace('__', '.')}]"
            lines = "".join(f"{key} = {_toml(value)}\n" for key, value in each.items())
            text += f"\n{brackets}\n{lines}"
    file = folder / "validation.toml"
    file.write_text(text)
    found = study(file, sweep={}, engine=SerialEngine(), folder=folder / "runs")
    assert not found.failures, found.failures
    return found.points[0]


def _toml(value: object) -> str:
    """A value; tables are written in line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def mean(point: Point, group: str, figure: str) -> float:
    metas = [next(g for g in run.meta["groups"] if g["name"] == group) for run in point.runs]
    return float(sum(meta[figure] for meta in metas) / len(metas))


def table(name: str, rows: list[Row], what: str) -> str:
    """Markdown."""
    head = "| what | expected | simulated | ratio | allowed | holds |\n| --- | --- | --- | --- | --- | --- |"
    return "\n".join([f"## {name}", what, "", head, *(row.line() for row in rows)])
