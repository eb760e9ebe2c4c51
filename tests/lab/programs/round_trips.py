"""Round trips of a few bytes, and their cost in system calls.

`serve ADDRESS PORT` echoes one connection after the other. `ask ADDRESS PORT ROUNDS COUNT` asks in rounds of
COUNT, and prints for each how many calls of the kind of write(2) a round trip took, by the kernel's count.
With the kernel's sockets that is none (they have send(2)); an RDMA device's doorbell is one, where the kernel
is in it.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

MESSAGE = b"x" * 64


def written() -> int:
    """Calls so far."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["syscw"])


def serve(address: str, port: int) -> None:
    with socket.create_server((address, port)) as listener:
        print("listening", flush=True)
        while True:
            connection, _ = listener.accept()
            while part := connection.recv(65536):
                connection.sendall(part)


def run_client(address: str, port: int, rounds: int, count: int) -> None:
    with socket.create_connection((address, port)) as connection:
        for _ in range(rounds):
            before = written()
            for _ in range(count):
                connection.sendall(MESSAGE)
                left = len(MESSAGE)
                while left > 0:
                    left -= len(connection.recv(left))
            print((written() - before) / count, flush=True)


if __name__ == "__main__":
    _, role, where, at, *rest = sys.argv
    if role == "serve":
        serve(where, int(at))
    else:
        run_client(where, int(at), *map(int, rest))
