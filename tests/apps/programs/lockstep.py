"""An echo server for one connection, and a client that makes one round for each line that it gets. So two
connections are at the same position of their streams for as long as a test wants.

    python -m tests.apps.programs.lockstep {listen,connect} ADDRESS PORT SEED
"""

from __future__ import annotations

import random
import socket
import sys

MESSAGE_BYTES = 64
#: The client's port.
SOURCE_PORT = 50123


def receive(connection: socket.socket) -> bytes:
    return connection.recv(MESSAGE_BYTES, socket.MSG_WAITALL)


def listen(address: str, port: int) -> None:
    listener = socket.create_server((address, port))
    print("listening", flush=True)
    connection, _ = listener.accept()
    while message := receive(connection):
        connection.sendall(message)


def connect(address: str, port: int, seed: int) -> None:
    """Says "right" or "wrong" after each round."""
    source = random.Random(seed)
    connection = socket.create_connection((address, port), source_address=("", SOURCE_PORT))
    for _ in sys.stdin:
        message = source.randbytes(MESSAGE_BYTES)
        connection.sendall(message)
        print("right" if receive(connection) == message else "wrong", flush=True)


if __name__ == "__main__":
    side, host, number, seed = sys.argv[1:]
    listen(host, int(number)) if side == "listen" else connect(host, int(number), int(seed))
