#!/usr/bin/env python3
"""What waking costs: how fast a path can be at best when both ends sleep in epoll_wait and nothing spins.

Two processes, each on a processor of its own, play ping-pong: with event descriptors alone, which carry no
bytes, and over kernel TCP with 64 bytes. Rounds are interleaved. The ratio of the two is the least that any
path through shared memory can reach as long as it sleeps in the kernel: what is left is the waking of an idle
processor.

    results/wakeups.py [--rounds 5] [--trips 20000] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

SIZE = 64
Trip = Callable[[], None]


def watch(fd: int, events: int) -> select.epoll:
    """An instance that watches one descriptor."""
    instance = select.epoll(1)
    instance.register(fd, events)
    return instance


def eventfd_ends() -> list[tuple[Trip, Trip]]:
    """For each end: wake the other one, sleep until woken."""
    fds = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(2)]

    def end(own: int, other: int) -> tuple[Trip, Trip]:
        instance = watch(own, select.EPOLLIN | select.EPOLLET)
        return lambda: os.eventfd_write(other, 1), lambda: (instance.poll(), None)[1]

    return [end(fds[0], fds[1]), end(fds[1], fds[0])]


def tcp_ends() -> list[tuple[Trip, Trip]]:
    """For each end: send a message, sleep until there is one and read it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    message = bytes(SIZE)

    def end(own: socket.socket) -> tuple[Trip, Trip]:
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        instance = watch(own.fileno(), select.EPOLLIN)

        def receive() -> None:
            instance.poll()
            own.recv(SIZE)

        return lambda: (own.send(message), None)[1], receive

    return [end(client), end(server)]


def median_us(ends: list[tuple[Trip, Trip]], trips: int, processors: list[int]) -> float:
    """The median round trip in microseconds, between two processes on two processors."""
    (send, receive), (answer, await_request) = ends
    child = os.fork()
    if child == 0:
        os.sched_setaffinity(0, {processors[0]})
        for _ in range(trips):
            await_request()
            answer()
        os._exit(0)
    os.sched_setaffinity(0, {processors[1]})
    times = []
    for _ in range(trips):
        begun = time.perf_counter_ns()
        send()
        receive()
        times.append(time.perf_counter_ns() - begun)
    os.waitpid(child, 0)
    os.sched_setaffinity(0, set(processors))
    return statistics.median(times) / 1000


def main() -> int:
    """Measure, print, and write the JSON if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trips", type=int, default=20_000)
    parser.add_argument("--json", metavar="FILE", type=Path)
    arguments = parser.parse_args()
    processors = sorted(os.sched_getaffinity(0))[:2]
    if len(processors) < 2:
        print("wakeups.py: needs two processors", file=sys.stderr)
        return 1
    rounds = []
    for number in range(arguments.rounds):
        eventfd = median_us(eventfd_ends(), arguments.trips, processors)
        tcp = median_us(tcp_ends(), arguments.trips, processors)
        rounds.append({"eventfd_us": eventfd, "tcp_us": tcp, "ratio": eventfd / tcp})
        print(f"round {number + 1}: event descriptors {eventfd:.1f} us, TCP {tcp:.1f} us")
    ratios = [found["ratio"] for found in rounds]
    summary = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
    print(f"event descriptors to TCP: {summary['median']:.2f}x ({summary['min']:.2f}..{summary['max']:.2f})")
    if arguments.json:
        found = {"size": SIZE, "trips": arguments.trips, "rounds": rounds, "ratio": summary}
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
