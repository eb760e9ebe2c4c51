"""A stream in one direction that goes on until it is stopped.

`drain ADDRESS PORT` takes one connection, and prints how many bytes came and their digest. `pour ADDRESS PORT
FILE` sends until FILE.stop exists, keeps its process id in FILE, and prints the same of what it sent.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from pathlib import Path

PART = 64 << 10


def drain(address: str, port: int) -> None:
    digest, count = hashlib.sha256(), 0
    with socket.create_server((address, port)) as listener:
        print("listening", flush=True)
        connection, _ = listener.accept()
        with connection:
            while part := connection.recv(PART):
                digest.update(part)
                count += len(part)
    print(count, digest.hexdigest(), flush=True)


def pour(address: str, port: int, file: Path) -> None:
    stop = Path(f"{file}.stop")
    digest, count = hashlib.sha256(), 0
    with socket.create_connection((address, port)) as connection:
        file.write_text(str(os.getpid()))
        while not stop.exists():
            part = count.to_bytes(8, "big") * (PART // 8)
            connection.sendall(part)
            digest.update(part)
            count += len(part)
    print(count, digest.hexdigest(), flush=True)


if __name__ == "__main__":
    _, role, address, port, *rest = sys.argv
    if role == "drain":
        drain(address, int(port))
    else:
        pour(address, int(port), Path(rest[0]))
