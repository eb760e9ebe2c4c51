"""An echo server for one connection, which waits before it reads.

python -m tests.apps.programs.echo_by {epoll,poll,select} PORT
"""

from __future__ import annotations

import select
import socket
import sys
from collections.abc import Callable


def waiting(way: str, connection: socket.socket) -> Callable[[], object]:
    """A function that returns when the connection is readable."""
    match way:
        case "epoll":
            epoll = select.epoll()
            epoll.register(connection, select.EPOLLIN)
            return epoll.poll
        case "poll":
            poll = select.poll()
            poll.register(connection, select.POLLIN)
            return poll.poll
        case _:
            return lambda: select.select([connection], [], [])


def main(way: str, port: int) -> None:
    connection, _ = socket.create_server(("127.0.0.1", port)).accept()
    wait = waiting(way, connection)
    while True:
        wait()
        if not (message := connection.recv(4096)):
            return
        connection.sendall(message)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
