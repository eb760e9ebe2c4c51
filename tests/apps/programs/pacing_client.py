"""A client whose writes must be taken where `poll` has reported room: for many young connections, a
few messages each. Prints how many were not, which natively is none. `pacing_client.py PORT CONNECTIONS`"""

from __future__ import annotations

import select
import socket
import sys

MESSAGES = 12


def ready(connection: socket.socket, events: int) -> None:
    poller = select.poll()
    poller.register(connection, events)
    assert poller.poll(30_000), "not ready in time"


def converse(port: int) -> int:
    refused = 0
    with socket.socket() as connection:
        connection.setblocking(False)
        connection.connect_ex(("127.0.0.1", port))
        for i in range(MESSAGES):
            message = b"%064d" % i
            ready(connection, select.POLLOUT)
            try:
                assert connection.send(message) == len(message)
            except BlockingIOError:
                refused += 1
                ready(connection, select.POLLOUT)
                connection.sendall(message)
            received = b""
            while len(received) < len(message):
                ready(connection, select.POLLIN)
                received += connection.recv(len(message) - len(received))
            assert received == message
    return refused


if __name__ == "__main__":
    print(sum(converse(int(sys.argv[1])) for _ in range(int(sys.argv[2]))))
