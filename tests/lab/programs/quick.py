"""How long connections take, each from its beginning to some answers.

`serve ADDRESS PORT` echoes, a thread for each connection. `ask ADDRESS PORT CONNECTIONS ANSWERS` makes one
connection after the other, compares what comes back, and prints the seconds of each as JSON.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time

MESSAGE = bytes(range(256)) * 2


def read(connection: socket.socket, count: int) -> bytes:
    """Exactly so many bytes, or fewer at the end."""
    parts = []
    while count > 0 and (part := connection.recv(count)):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def echo(connection: socket.socket) -> None:
    with connection:
        while part := connection.recv(65536):
            connection.sendall(part)


def serve(address: str, port: int) -> None:
    with socket.create_server((address, port)) as listener:
        print("listening as", os.getpid(), flush=True)
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=echo, args=(connection,), daemon=True).start()


def run_client(address: str, port: int, connections: int, answers: int) -> None:
    taken = []
    for _ in range(connections):
        begun = time.monotonic()
        with socket.create_connection((address, port)) as connection:
            for _ in range(answers):
                connection.sendall(MESSAGE)
                if read(connection, len(MESSAGE)) != MESSAGE:
                    sys.exit("an answer differs from what was sent")
        taken.append(round(time.monotonic() - begun, 3))
    print(json.dumps(taken), flush=True)


if __name__ == "__main__":
    _, role, address, port, *rest = sys.argv
    if role == "serve":
        serve(address, int(port))
    else:
        run_client(address, int(port), *map(int, rest))
