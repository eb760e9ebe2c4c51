"""Flows: a list of messages in the form of the HPCC authors' simulator.

The first line of a file is the number of flows. Each other line is `src dst pg dport size start`: hosts,
priority group, port, bytes, and seconds. Priority and port mean nothing here. The first flow starts with the
measured span.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path

from netacc_lab.sim.errors import refuse

#: Fields of a line.
FIELDS = 6
#: A message has at most so many bytes.
MOST_BYTES = 2**31 - 1


@dataclass(frozen=True)
class Flow:
    """One message."""

    src: int
    dst: int
    bytes: int
    start_ns: int


def read(path: Path, hosts: int) -> list[Flow]:
    """The flows of a file, in order of time. Raises ScenarioError for what is none."""
    try:
        lines = [line.split() for line in path.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise refuse(path, "", f"cannot be read: {error}") from None
    if not lines or len(lines[0]) != 1 or not lines[0][0].isdigit():
        raise refuse(path, "line 1", "is not the number of flows")
    count = int(lines[0][0])
    if count != len(lines) - 1 or count == 0:
        raise refuse(path, "line 1", f"{count} flows, but {len(lines) - 1} lines of flows")
    found = [_flow(fields, f"flow {number}", hosts, path) for number, fields in enumerate(lines[1:])]
    first = min(flow.start_ns for flow in found)
    moved = [Flow(flow.src, flow.dst, flow.bytes, flow.start_ns - first) for flow in found]
    return sorted(moved, key=lambda flow: flow.start_ns)


def _flow(fields: list[str], name: str, hosts: int, path: Path) -> Flow:
    if len(fields) != FIELDS:
        raise refuse(path, name, f"has {len(fields)} fields: src dst pg dport size start are needed")
    try:
        src, dst, _, _, size = (int(field) for field in fields[:-1])
        start = Decimal(fields[-1]) * 10**9
    except (ValueError, InvalidOperation):
        raise refuse(path, name, "has a field that is no number") from None
    if not (0 <= src < hosts and 0 <= dst < hosts) or src == dst:
        raise refuse(path, name, f"goes from host {src} to host {dst}: two of 0 to {hosts - 1}")
    if not 1 <= size <= MOST_BYTES:
        raise refuse(path, name, f"has {size} bytes: from 1 to {MOST_BYTES}")
    if not start.is_finite() or start < 0:
        raise refuse(path, name, f"starts at {fields[-1]}")
    return Flow(src, dst, size, round(start))
