"""A trace as `netacc trace` begins it, whose window a test holds open or shut."""

from __future__ import annotations

import array
import fcntl
import json
import mmap
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

#: core/config/src/trace.rs has the layout of the memory.
_MAGIC, _CLOCK_TSC = 0x6E65_7461_6363_7401, 1
_BYTES = (512 + (1 << 18) * 6) * 8
#: The end of a window, in ticks: none is open, or one for as long as the test runs.
SHUT, OPEN = 0, 1 << 62
_PATIENCE_S = 30


@contextmanager
def traced(pid: int, window_end: int) -> Iterator[None]:
    """Traces a process of this host, which is accelerated."""
    descriptor = os.memfd_create("trace", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, _BYTES)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        with mmap.mmap(descriptor, _BYTES) as memory:
            memory[:24] = struct.pack("QQQ", _MAGIC, _CLOCK_TSC, window_end)
            _begin(pid, descriptor)
            try:
                yield
            finally:
                memory[16:24] = struct.pack("Q", SHUT)
                # The process may have ended.
                with suppress(ConnectionRefusedError):
                    assert not _ask(pid, b"UNTRACE\n")
    finally:
        os.close(descriptor)


def _begin(pid: int, descriptor: int) -> None:
    """Waits for the trace of another tool to end: that of an exporter takes milliseconds."""
    deadline = time.monotonic() + _PATIENCE_S
    while not _ask(pid, b"TRACE\n", descriptor):
        assert time.monotonic() < deadline, f"another tool traces {pid}"
        time.sleep(0.002)


def _ask(pid: int, request: bytes, *descriptors: int) -> bool:
    """Whether the process is traced then."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(30)
        asking.connect(f"\0netacc-ss/{pid}")
        rights = array.array("i", descriptors)
        asking.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else [])
        with asking.makefile("rb") as answer:
            return bool(json.loads(answer.read())["traced"])
