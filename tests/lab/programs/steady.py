"""A conversation that goes on until it is stopped, with any faults of the link beneath.

`serve ADDRESS PORT` echoes one connection after the other. `ask ADDRESS PORT FILE` sends numbered blocks
with their digests, compares what comes back, and keeps FILE, as JSON: how many blocks came, and the longest
that one took. It ends when FILE.stop exists, or with what went wrong with the connection.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import time
from pathlib import Path

BLOCK = 4096


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


def block(number: int) -> bytes:
    """A block that is like no other, with its digest."""
    body = number.to_bytes(8, "big") * (BLOCK // 8 - 4)
    return body + hashlib.sha256(body).digest()


def serve(address: str, port: int) -> None:
    with socket.create_server((address, port)) as listener:
        print("listening as", os.getpid(), flush=True)
        while True:
            connection, _ = listener.accept()
            while part := connection.recv(65536):
                connection.sendall(part)


def run_client(address: str, port: int, file: Path) -> None:
    stop = Path(f"{file}.stop")
    progress = Path(f"{file}.new")
    number, longest, failed = 0, 0.0, ""
    with socket.create_connection((address, port)) as connection:
        while not stop.exists() and not failed:
            begun = time.monotonic()
            sent = block(number)
            try:
                connection.sendall(sent)
                if read(connection, BLOCK) != sent:
                    sys.exit(f"block {number} differs from what was sent")
                number += 1
            except OSError as error:
                failed = type(error).__name__
            longest = max(longest, time.monotonic() - begun)
            progress.write_text(json.dumps({"blocks": number, "longest": longest, "pid": os.getpid()}))
            progress.rename(file)
    print(json.dumps({"blocks": number, "longest": longest, "error": failed}), flush=True)
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    _, role, address, port, *rest = sys.argv
    if role == "serve":
        serve(address, int(port))
    else:
        run_client(address, int(port), Path(rest[0]))
