"""Outcomes of tests, how two runs of a suite are compared, and the list of differences that have a reason."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PASSED = "passed"
FAILED = "failed"
SKIPPED = "skipped"
#: The time for one test was over.
HUNG = "hung"
#: The process died.
CRASHED = "crashed"
#: The run does not have the test.
ABSENT = "absent"

#: By test.
Outcomes = dict[str, "Outcome"]


@dataclass(frozen=True)
class Outcome:
    """How a test ended, and its output."""

    kind: str
    detail: str = ""


@dataclass(frozen=True)
class Listed:
    """A difference that is accepted for its reason."""

    suite: str
    test: str
    reason: str

    def matches(self, suite: str, test: str) -> bool:
        if suite != self.suite:
            return False
        return test.startswith(self.test[:-1]) if self.test.endswith("*") else test == self.test


@dataclass
class Difference:
    """A test that ended differently. The kinds are those of all rounds."""

    test: str
    native: list[str]
    accelerated: list[str]
    detail: str = ""
    reason: str = ""

    @property
    def is_flaky_natively(self) -> bool:
        """Natively the test itself is not sure of its outcome, and the accelerated ones are among those."""
        kinds = set(self.native) - {ABSENT}
        return len(kinds) > 1 and set(self.accelerated) <= kinds

    @property
    def is_accepted(self) -> bool:
        return bool(self.reason) or self.is_flaky_natively


@dataclass
class Result:
    """A suite's two runs, compared."""

    suite: str
    #: It has TCP connections that should be on links.
    has_connections: bool = False
    native: Outcomes = field(default_factory=dict)
    accelerated: Outcomes = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return self.proves_something and all(d.is_accepted for d in self.differences)

    @property
    def proves_something(self) -> bool:
        # A module that cannot be imported proves nothing, however alike it fails; nor does one on TCP twice.
        ran = any(o.kind == PASSED for o in self.native.values())
        return ran and (self.counters["tx_bytes_link"] > 0 or not self.has_connections)

    @property
    def link_share(self) -> float:
        link = self.counters["tx_bytes_link"] + self.counters["rx_bytes_link"]
        tcp = self.counters["tx_bytes_tcp"] + self.counters["rx_bytes_tcp"]
        return link / (link + tcp) if link + tcp else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "suite": self.suite,
            "good": self.is_good,
            "seconds": {mode: round(s, 1) for mode, s in self.seconds.items()},
            "counters": dict(self.counters),
            "link_share": round(self.link_share, 4),
            "native": kinds(self.native),
            "accelerated": kinds(self.accelerated),
            "differences": [
                {
                    "test": d.test,
                    "native": d.native,
                    "accelerated": d.accelerated,
                    "accepted": d.is_accepted,
                    "reason": d.reason,
                    "detail": d.detail[-2000:],
                }
                for d in self.differences
            ],
        }


def kinds(outcomes: Outcomes) -> dict[str, int]:
    return dict(sorted(Counter(o.kind for o in outcomes.values()).items()))


def differing(native: Outcomes, accelerated: Outcomes) -> list[str]:
    """Tests that did not end alike; a test of only one run is among them."""
    return [
        test
        for test in dict.fromkeys([*native, *accelerated])
        if kind_of(native, test) != kind_of(accelerated, test)
    ]


def kind_of(outcomes: Outcomes, test: str) -> str:
    outcome = outcomes.get(test)
    return outcome.kind if outcome else ABSENT


def read_listed(path: Path) -> list[Listed]:
    """The file of accepted differences; the format is in README.md beside it."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    if unknown := data.keys() - {"difference"}:
        raise ValueError(f"{path.name}: unknown key {', '.join(sorted(unknown))}")
    listed = []
    for entry in data.get("difference", []):
        texts = {key: entry.get(key) for key in ("suite", "test", "reason")}
        if entry.keys() != texts.keys() or not all(isinstance(t, str) and t.strip() for t in texts.values()):
            raise ValueError(f"{path.name}: an entry needs suite, test and reason, and nothing else: {entry}")
        listed.append(Listed(**texts))
    return listed


def reason_for(listed: Iterable[Listed], suite: str, test: str) -> str:
    return next((entry.reason for entry in listed if entry.matches(suite, test)), "")
