"""A client whose server is killed, again and again, while it writes where `poll` reports room.

Prints how many writes returned EAGAIN, which natively is none, and stays until its input ends.
`bereaved_client.py PORT ROUNDS`"""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import time

from tests.apps.programs.pacing_client import ready

CONNECTIONS = 8
MESSAGE = b"x" * 64
SERVER = "tests.apps.programs.echo_server"


def converse(connection: socket.socket) -> None:
    """Enough for it to get onto a link."""
    for _ in range(20):
        connection.sendall(MESSAGE)
        received = b""
        while len(received) < len(MESSAGE):
            ready(connection, select.POLLIN)
            received += connection.recv(len(MESSAGE) - len(received))


def connect(port: int) -> socket.socket:
    deadline = time.monotonic() + 30
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port))
            connection.setblocking(False)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "nobody listens"
            time.sleep(0.01)
        else:
            return connection


def write(connection: socket.socket) -> tuple[bool, bool]:
    """Whether the write returned EAGAIN, and whether it was the last one."""
    ready(connection, select.POLLOUT)
    try:
        connection.send(MESSAGE)
    except BlockingIOError:
        return True, False
    except ConnectionError:
        return False, True
    return False, False


def lose(port: int) -> int:
    """A server that is killed; how many writes to it returned EAGAIN."""
    refused = 0
    with subprocess.Popen([sys.executable, "-m", SERVER, str(port)]) as server:
        living = [connect(port) for _ in range(CONNECTIONS)]
        for connection in living:
            converse(connection)
        server.kill()
        while living:
            for connection in tuple(living):
                waits, over = write(connection)
                refused += waits
                if over:
                    living.remove(connection)
                    connection.close()
    return refused


if __name__ == "__main__":
    print("refused", sum(lose(int(sys.argv[1])) for _ in range(int(sys.argv[2]))), flush=True)
    sys.stdin.read()
