"""How long collective operations took."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass

from netacc_lab.sim.store import Recorded


@dataclass(frozen=True)
class Completion:
    """How long a collective operation took."""

    group: str
    hosts: int
    #: Until the last host had the answer to its last message.
    nanoseconds: int
    #: Bytes of the busiest sender over that time: the bus bandwidth of nccl-tests, but for `tree`.
    bits_per_s: float


def completions(runs: Iterable[Recorded]) -> list[Completion]:
    """Of each run and collective operation; those whose messages were not all answered are left out."""
    return [each for run in runs for each in _of_run(run)]


def _of_run(run: Recorded) -> list[Completion]:
    path = run.folder / "samples.csv"
    if not path.exists():
        return []
    found, first = [], 0
    for group in run.meta["scenario"]["groups"]:
        ends = [(c["client"], c["server"]) for c in group["clients"] for _ in range(c["connections"])]
        numbers = range(first, first + len(ends))
        first += len(ends)
        if group["arrival"]["kind"] != "after":
            continue
        requests = group["arrival"]["requests"]
        with path.open(newline="") as opened:
            answered = [
                int(row["end_ns"]) for row in csv.DictReader(opened) if int(row["conversation"]) in numbers
            ]
        if len(answered) < sum(map(len, requests)):
            continue
        took = max(answered) - group["start_ns"]
        sent: dict[int, int] = {}
        for (source, _), messages in zip(ends, requests, strict=True):
            sent[source] = sent.get(source, 0) + sum(message["bytes"] for message in messages)
        found.append(Completion(group["name"], len(sent), took, max(sent.values()) * 8e9 / took))
    return found
