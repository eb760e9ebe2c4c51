"""Connections to several servers that echo, opened at once and closed at once.

    python -m tests.apps.programs.many_peers CONNECTIONS PORT...

Opens so many connections to each port, exchanges bytes on each, and says "exchanged". At a line it closes
them all, and says "closed".
"""

from __future__ import annotations

import socket
import sys

ROUNDS = 3


def main(count: int, ports: list[int]) -> None:
    opened = [socket.create_connection(("127.0.0.1", port)) for port in ports for _ in range(count)]
    for _ in range(ROUNDS):
        for connection in opened:
            connection.sendall(b"x")
            assert connection.recv(1) == b"x"
    print("exchanged", flush=True)
    for _ in sys.stdin:
        for connection in opened:
            connection.close()
        print("closed", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(port) for port in sys.argv[2:]])
