"""Calls on UDP sockets of two processes: prints what each of them answers, for comparison.

The child sends and receives as the parent tells it by pipe, so the calls before a call decide its outcome.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import select
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Callable

LONG = 5
WARMING = 100


class Peer:
    """The other process: it executes lines of Python, and answers with a value."""

    def __init__(self) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, "peer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def do(self, code: str) -> object:
        assert self.popen.stdin is not None and self.popen.stdout is not None
        self.popen.stdin.write(code + "\n")
        self.popen.stdin.flush()
        return json.loads(self.popen.stdout.readline())

    def end(self) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        assert self.popen.wait(30) == 0


def peer() -> None:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("127.0.0.1", 0))
    s.settimeout(20)
    for line in sys.stdin:
        print(json.dumps(eval(line, {"s": s, "socket": socket})), flush=True)


def outcome(call: Callable[[], object]) -> object:
    """The value of a call, or its error's name."""
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno] if error.errno else type(error).__name__


def readable(one: socket.socket, wait: float) -> int:
    return len(select.select([one], [], [], wait)[0])


def waiting_bytes(one: socket.socket) -> int:
    answer = fcntl.ioctl(one, termios.FIONREAD, struct.pack("i", 0))
    return int(struct.unpack("i", answer)[0])


def main() -> None:
    other = Peer()
    port = other.do("s.getsockname()[1]")
    mine = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    mine.bind(("127.0.0.1", 0))
    mine.settimeout(20)
    me = mine.getsockname()
    to = ("127.0.0.1", port)
    send = f"s.sendto(%s, ('127.0.0.1', {me[1]}))"

    def here(data: bytes) -> None:
        """The other one sends, and it has arrived. One before it wakes this process, so it takes the ring."""
        assert other.do(send % b"wake") == 4
        assert other.do(send % data) == len(data)
        assert readable(mine, 20) == 1
        assert mine.recv(10) == b"wake"

    def exchange(number: int) -> None:
        """Each way, a datagram that wakes and one that follows it."""
        mine.sendto(b"wake", to)
        mine.sendto(b"%d" % number, to)
        assert other.do("[s.recv(100).decode(), s.recv(100).decode()]") == ["wake", str(number)]
        here(b"%d" % number)
        assert mine.recv(100) == b"%d" % number

    # Until there are flows in both directions, and some more.
    for i in range(WARMING):
        exchange(i)

    found: list[list[object]] = []
    here(b"0123456789")
    # One that is behind it.
    assert other.do(send % b"abc") == 3
    found.append(["length", waiting_bytes(mine)])
    # It waits for room alone, whatever is there to read.
    found.append(["room", len(select.select([], [mine], [], 20)[1])])
    found.append(["peek", mine.recv(3, socket.MSG_PEEK).decode()])
    found.append(["short", mine.recvmsg(4)[2] == socket.MSG_TRUNC])
    found.append(["behind", mine.recv(100).decode()])
    here(b"0123456789")
    found.append(["truncated", mine.recv_into(bytearray(4), 4, socket.MSG_TRUNC)])
    here(b"")
    found.append(["empty", mine.recvfrom(10)[0].decode(), readable(mine, 0)])
    here(b"source")
    found.append(["source", mine.recvfrom(10)[1] == to])
    here(b"vector")
    first, second = bytearray(2), bytearray(10)
    found.append(["vector", mine.recvmsg_into([first, second])[0], (first + second[:4]).decode()])
    mine.setblocking(False)
    found.append(["would block", outcome(lambda: mine.recv(10))])
    mine.setblocking(True)
    found.append(["none", outcome(lambda: mine.recv(10, socket.MSG_DONTWAIT))])
    mine.settimeout(20)
    found.append(["too long", outcome(lambda: mine.sendto(bytes(65_508), to))])
    libc = ctypes.CDLL(None, use_errno=True)
    bad = libc.send(mine.fileno(), ctypes.c_void_p(8), 10, 0)
    found.append(["no destination", bad, errno.errorcode[ctypes.get_errno()]])

    mine.connect(to)
    bad = libc.send(mine.fileno(), ctypes.c_void_p(8), 10, 0)
    found.append(["bad address", bad, errno.errorcode[ctypes.get_errno()]])
    for i in range(WARMING):
        exchange(i)
    # One by a name that differs, while the socket is connected.
    mine.sendmsg([b"by ", b"name"], [], 0, to)
    found.append(["by name", other.do("s.recv(100).decode()")])
    # A control message: only the kernel takes it. The order stays.
    mine.send(b"before")
    mine.sendmsg([b"marked"], [(socket.IPPROTO_IP, socket.IP_TTL, struct.pack("i", 9))])
    mine.send(b"after")
    found.append(["control", *[other.do("s.recv(100).decode()") for _ in range(3)]])

    copy = mine.dup()
    mine.close()
    copy.send(b"by a copy")
    found.append(["copy", other.do("s.recv(100).decode()")])
    child = os.fork()
    if child == 0:
        copy.send(b"by a child")
        os._exit(0)
    os.waitpid(child, 0)
    found.append(["child", other.do("s.recv(100).decode()")])
    copy.send(b"by its parent")
    found.append(["parent", other.do("s.recv(100).decode()")])
    here_again = other.do(f"s.sendto(b'to both', ('127.0.0.1', {copy.getsockname()[1]}))")
    found.append(["to both", here_again, copy.recv(100).decode()])

    other.do("s.close()")
    with contextlib.suppress(ConnectionRefusedError):
        for _ in range(LONG):
            copy.send(b"to nobody")
        found.append(["nobody", "was refused nothing"])
    found.append(["ended"])
    other.end()
    for line in found:
        print(json.dumps(line))


if __name__ == "__main__":
    peer() if sys.argv[1:] == ["peer"] else main()
