"""The manners of our own clients: report on one line, then wait to be dismissed.

A client that has ended cannot be asked for its counters, so it stays until its standard input is closed.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass

DONE = "done "


@dataclass(frozen=True)
class Report:
    """The work of a client, all of it verified."""

    requests: int
    payload_bytes: int
    seconds: float


class Stopwatch:
    """Counts a client's work."""

    def __init__(self) -> None:
        self.requests = 0
        self.payload_bytes = 0
        self._began = time.perf_counter()

    def count(self, payload_bytes: int, requests: int = 1) -> None:
        self.requests += requests
        self.payload_bytes += payload_bytes

    def finish(self) -> None:
        """Print the report and wait until the test needs this process no more."""
        report = Report(self.requests, self.payload_bytes, time.perf_counter() - self._began)
        print(DONE + json.dumps(asdict(report)), flush=True)
        sys.stdin.read()


def read_report(line: str) -> Report:
    return Report(**json.loads(line.removeprefix(DONE)))
