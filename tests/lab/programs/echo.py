"""Blocking sockets: `serve ADDRESS PORT` answers with what it is sent; `ask ADDRESS PORT COUNT` compares."""

from __future__ import annotations

import os
import random
import socket
import sys


def read(connection: socket.socket, count: int) -> bytes:
    """Exactly so many bytes, or fewer at the end."""
    parts = []
    while count > 0 and (part := connection.recv(count)):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def serve(address: str, port: int) -> None:
    """One connection after the other; a message is its length in four bytes, and so many."""
    with socket.create_server((address, port)) as listener:
        print("listening as", os.getpid(), flush=True)
        while True:
            connection, _ = listener.accept()
            while header := read(connection, 4):
                connection.sendall(header + read(connection, int.from_bytes(header, "big")))
            # Kept open, so that what it counted can be asked for.


def ask(address: str, port: int, count: int) -> None:
    """Messages of many lengths, larger than the rings too."""
    draw = random.Random(7)
    with socket.create_connection((address, port)) as connection:
        for number in range(count):
            length = draw.choice([1, 100, 4000, 20_000, 300_000 if number % 50 == 0 else 500])
            message = length.to_bytes(4, "big") + draw.randbytes(length)
            connection.sendall(message)
            if read(connection, len(message)) != message:
                sys.exit(f"answer {number} differs from what was sent")
    print(f"{count} answers as asked")


if __name__ == "__main__":
    _, role, address, port, *rest = sys.argv
    if role == "serve":
        serve(address, int(port))
    else:
        ask(address, int(port), int(rest[0]))
