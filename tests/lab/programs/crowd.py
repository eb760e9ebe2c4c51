"""Many connections that are open at once, each with checked exchanges.

`serve ADDRESS PORT` answers all clients, in one thread. `ask ADDRESS PORT CONNECTIONS ROUNDS` opens so
many, with one exchange on each as it is opened, and then goes round them so often; at last it asks on all
before it reads an answer. It says how many answers came. Both may have as many descriptors as they need,
where they are allowed to say so.
"""

from __future__ import annotations

import os
import resource
import selectors
import socket
import sys

DESCRIPTORS = 20_000  # for ten thousand connections, and other files


def read(connection: socket.socket, count: int) -> bytes:
    """Exactly so many bytes."""
    parts = []
    while count > 0:
        part = connection.recv(count)
        if not part:
            sys.exit("the connection ended")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def message(number: int, turn: int) -> bytes:
    """A request that no other connection makes, nor this one at another time."""
    return f"{number:06}.{turn:04};".encode() * 4


def serve(address: str, port: int) -> None:
    with (
        socket.create_server((address, port), backlog=4096) as listener,
        selectors.EpollSelector() as selector,
    ):
        selector.register(listener, selectors.EVENT_READ)
        print("listening as", os.getpid(), flush=True)
        while True:
            for key, _ in selector.select():
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if connection is listener:
                    selector.register(listener.accept()[0], selectors.EVENT_READ)
                elif part := connection.recv(4096):
                    connection.sendall(part)
                else:
                    selector.unregister(connection)
                    connection.close()


def run_client(address: str, port: int, count: int, rounds: int) -> None:
    answers = 0
    connections: list[socket.socket] = []

    def check(number: int, turn: int) -> int:
        want = message(number, turn)
        if read(connections[number], len(want)) != want:
            sys.exit(f"connection {number} answers something else in turn {turn}")
        return 1

    for number in range(count):
        connections.append(socket.create_connection((address, port)))
        connections[number].sendall(message(number, 0))
        answers += check(number, 0)
    for turn in range(1, rounds + 1):
        for number, connection in enumerate(connections):
            connection.sendall(message(number, turn))
            answers += check(number, turn)
    for number, connection in enumerate(connections):
        connection.sendall(message(number, rounds + 1))
    answers += sum(check(number, rounds + 1) for number in range(count))
    print(f"{answers} answers as asked")


if __name__ == "__main__":
    _, role, address, port, *rest = sys.argv
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if os.geteuid() == 0:
        limit = max(limit, DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    if role == "serve":
        serve(address, int(port))
    else:
        run_client(address, int(port), *map(int, rest))
