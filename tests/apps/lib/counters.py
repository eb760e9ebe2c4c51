"""The library's counters, read with netacc_ss."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.apps.lib.paths import binaries
from tests.apps.lib.process import Process


@dataclass(frozen=True)
class Socket:
    """One line of `netacc_ss -s sock`."""

    fd: int
    local: str
    remote: str
    path: str
    reason: str
    listening: bool


@dataclass
class Counters:
    """Totals of one or several processes, over open and closed connections."""

    rx_bytes_link: int = 0
    tx_bytes_link: int = 0
    rx_bytes_tcp: int = 0
    tx_bytes_tcp: int = 0
    streams_promoted: int = 0
    streams_demoted: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    sockets: list[Socket] = field(default_factory=list)
    processes: int = 0

    @property
    def link_bytes(self) -> int:
        return self.rx_bytes_link + self.tx_bytes_link

    @property
    def tcp_bytes(self) -> int:
        return self.rx_bytes_tcp + self.tx_bytes_tcp

    @property
    def all_bytes(self) -> int:
        return self.link_bytes + self.tcp_bytes

    @property
    def link_share(self) -> float:
        return self.link_bytes / self.all_bytes if self.all_bytes else 0.0

    def add(self, other: Counters) -> None:
        for name in _TOTALS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.reasons += other.reasons
        self.sockets += other.sockets
        self.processes += other.processes

    def since(self, before: Counters) -> Counters:
        """The increase since `before`, of the same processes. Sockets are the current ones."""
        totals = {name: getattr(self, name) - getattr(before, name) for name in _TOTALS}
        return Counters(**totals, reasons=self.reasons - before.reasons, sockets=self.sockets)

    def describe(self) -> str:
        reasons = ", ".join(f"{reason} x{count}" for reason, count in sorted(self.reasons.items())) or "none"
        return (
            f"link {self.link_bytes} B (rx {self.rx_bytes_link}, tx {self.tx_bytes_link}), "
            f"tcp {self.tcp_bytes} B (rx {self.rx_bytes_tcp}, tx {self.tx_bytes_tcp}), "
            f"promoted {self.streams_promoted}, demoted {self.streams_demoted}, reasons: {reasons}"
        )


_TOTALS = (
    "rx_bytes_link",
    "tx_bytes_link",
    "rx_bytes_tcp",
    "tx_bytes_tcp",
    "streams_promoted",
    "streams_demoted",
)


def parse(text: str) -> Counters:
    """Read the output of `netacc_ss -s all --json` for one process. An absent counter was never used."""
    data: dict[str, Any] = json.loads(text)
    return Counters(
        **{name: int(data["cnt"].get(name, 0)) for name in _TOTALS},
        reasons=Counter({str(reason): int(count) for reason, count in data["reasons"].items() if count}),
        sockets=[
            Socket(
                fd=int(item["fd"]),
                local=str(item["local"]),
                remote=str(item["remote"]),
                path=str(item["path"]),
                reason=str(item.get("reason") or ""),
                listening=bool(item.get("listening", False)),
            )
            for item in data["sock"]
        ],
        processes=1,
    )


def query(pid: int) -> Counters | None:
    """The counters of one process; None when it does not answer (gone, or not accelerated)."""
    command = [str(binaries() / "netacc_ss"), "-p", str(pid), "-s", "all", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return parse(result.stdout) if result.returncode == 0 else None


def totals(process: Process) -> Counters:
    """The counters of a process and all that descend from it. At least one of them must answer."""
    counters = sum_of(member.pid for member in process.family())
    assert counters.processes, f"netacc_ss got no answer from {process.name}, pid {process.pid}"
    return counters


def sum_of(pids: Iterable[int]) -> Counters:
    total = Counters()
    for pid in pids:
        if counters := query(pid):
            total.add(counters)
    return total


def last_of(process: Process, *, until: Process | None = None) -> Counters:
    """Watch a process and its descendants until it (or `until`) ends; their counters as they were last seen.

    For processes that cannot be made to stay: a benchmark that ends with its work, a backend that ends
    with its client.
    """
    seen: dict[int, Counters] = {}
    while (until or process).poll() is None:
        time.sleep(0.02)  # leaves the processor to the watched process
        for member in process.family():
            if counters := query(member.pid):
                seen[member.pid] = counters
    total = Counters()
    for counters in seen.values():
        total.add(counters)
    return total
