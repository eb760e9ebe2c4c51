"""Ports and readiness."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.apps.lib.process import Process

LISTEN = "0A"  # TCP_LISTEN as /proc/net/tcp prints it
# The service's link port is its port + 20000 by rule, so ports are taken from below 45536.
HIGHEST_PORT = 65535 - 20000


def free_port() -> int:
    """A port that was free a moment ago, as the kernel chose it."""
    refused: list[socket.socket] = []
    try:
        while True:
            probe = socket.socket()
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
            # Held until one fits, so that the kernel cannot offer the same port again.
            refused.append(probe)
            if port <= HIGHEST_PORT:
                return port
    finally:
        for probe in refused:
            probe.close()


def is_listening(port: int, net: Path = Path("/proc/net")) -> bool:
    """Does anybody listen on the port? Asks the kernel, so the server under test sees no stray connection."""
    for table in ("tcp", "tcp6"):
        path = net / table
        if not path.exists():
            continue
        for line in path.read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and int(fields[1].rsplit(":", 1)[1], 16) == port:
                return True
    return False


def is_bound(port: int, net: Path = Path("/proc/net")) -> bool:
    """Has a UDP socket the port?"""
    tables = [net / table for table in ("udp", "udp6")]
    lines = [line for path in tables if path.exists() for line in path.read_text().splitlines()[1:]]
    return any(int(line.split()[1].rsplit(":", 1)[1], 16) == port for line in lines)


def wait_listening(port: int, process: Process, timeout_s: float = 20.0) -> None:
    """Return when the port is open. Fails at once when the process that should open it has ended."""
    _wait(is_listening, port, process, timeout_s)


def wait_bound(port: int, process: Process, timeout_s: float = 20.0) -> None:
    """As `wait_listening`, for UDP."""
    _wait(is_bound, port, process, timeout_s)


def _wait(is_there: Callable[[int, Path], bool], port: int, process: Process, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    net = Path(f"/proc/{process.pid}/net")
    while not is_there(port, net):
        if process.poll() is not None:
            raise AssertionError(f"{process.name} ended with {process.poll()} before it listened on {port}")
        if time.monotonic() > deadline:
            raise AssertionError(f"{process.name} does not listen on {port} after {timeout_s} s")
        time.sleep(0.01)


def inside(namespace: str) -> list[str]:
    """What comes before a command that runs in a network namespace."""
    return ["ip", "netns", "exec", namespace]
