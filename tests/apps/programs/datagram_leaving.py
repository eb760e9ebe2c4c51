"""UDP senders that end right after their last datagram, and a receiver that sleeps for each one.

`receive ADDRESS PORT HOW ROUNDS` ends once it has received each datagram once. `send ADDRESS PORT WARM_MS
ROUNDS END...` sends from a new socket in each round, and ends in one of these ways after the other.
"""

from __future__ import annotations

import ctypes
import os
import random
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable

#: Datagrams of a round, in bursts. The receiver falls asleep after some of them.
NUMBERS, BURST = 24, 6
#: Between bursts.
PAUSE_US = 300
#: The number of a datagram that is answered: it is there for a flow to be made.
ANSWERED = 1 << 31
#: No datagram takes longer.
PATIENCE_S = 20

RECORD = struct.Struct(">II")


def in_recv(one: socket.socket) -> Callable[[], None]:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", PATIENCE_S, 0))
    return lambda: None


def in_poll(one: socket.socket) -> Callable[[], None]:
    poll = select.poll()
    poll.register(one, select.POLLIN)

    def wait() -> None:
        assert poll.poll(PATIENCE_S * 1000)

    return wait


def in_epoll(one: socket.socket) -> Callable[[], None]:
    epoll = select.epoll()
    epoll.register(one, select.EPOLLIN)

    def wait() -> None:
        assert epoll.poll(PATIENCE_S)

    return wait


WAYS = {"recv": in_recv, "poll": in_poll, "epoll": in_epoll}


def receive(one: socket.socket, how: str, rounds: int) -> None:
    missing = {(number, datagram) for number in range(rounds) for datagram in range(NUMBERS)}
    wait = WAYS[how](one)
    try:
        while missing:
            wait()
            data, source = one.recvfrom(100)
            found = RECORD.unpack(data)
            if found[1] == ANSWERED:
                one.sendto(data, source)
            else:
                # It fails for one that comes twice.
                missing.remove(found)
    except (AssertionError, BlockingIOError):
        print("missing", sorted(missing), flush=True)
        sys.exit(1)
    print(f"received {rounds * NUMBERS}", flush=True)


def send(to: tuple[str, int], number: int, warm_s: float, chosen: random.Random) -> socket.socket:
    """A socket that has sent the datagrams of a round."""
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.connect(to)
    one.settimeout(PATIENCE_S)
    until = time.monotonic() + warm_s
    while time.monotonic() < until:
        one.send(RECORD.pack(number, ANSWERED))
        assert one.recv(100) == RECORD.pack(number, ANSWERED)
    for datagram in range(NUMBERS):
        if datagram % BURST == 0:
            until = time.monotonic() + chosen.randrange(PAUSE_US) / 1e6
            while time.monotonic() < until:
                pass
        one.send(RECORD.pack(number, datagram))
    return one


def by_fork(one: socket.socket) -> None:
    """The socket has another holder, which does nothing with it."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    one.close()
    os._exit(0)


def by_close(one: socket.socket) -> None:
    one.close()


def by_connect(one: socket.socket) -> None:
    """The socket goes on, and sends elsewhere."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((one.getsockname()[0], 0))
        one.connect(other.getsockname())
        one.send(b"elsewhere")
        assert other.recv(100) == b"elsewhere"
        one.close()


ENDS: dict[str, Callable[[socket.socket], object]] = {
    "close": by_close,
    "connect": by_connect,
    "exit": lambda _: ctypes.CDLL(None).exit(0),
    "_exit": lambda _: os._exit(0),
    "exec": lambda _: os.execv("/bin/true", ["true"]),
    "fork": by_fork,
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
}
#: The sender's process goes on.
STAYING = {"close", "connect"}


def main() -> None:
    what, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if what == "receive":
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.bind((address, port))
            print("ready", flush=True)
            receive(one, sys.argv[4], int(sys.argv[5]))
        return
    warm_s, rounds, ends = int(sys.argv[4]) / 1000, int(sys.argv[5]), sys.argv[6:]
    chosen = random.Random(5)
    for number in range(rounds):
        end = ends[number % len(ends)]
        chosen.random()
        if end in STAYING:
            ENDS[end](send((address, port), number, warm_s, chosen))
            continue
        child = os.fork()
        if child == 0:
            ENDS[end](send((address, port), number, warm_s, chosen))
        os.waitpid(child, 0)
    print("sent", flush=True)


if __name__ == "__main__":
    main()
