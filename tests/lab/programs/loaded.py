"""The libraries for RDMA devices that a process has loaded: `loaded.py HERE FAR PORT`.

Prints, as JSON, those that are mapped at the beginning, with a listener, with a connection within the host,
and in the end, when a connection to another host has been used until they are there, or for a minute.
There `echo.py` answers.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

LIBRARIES = ("libibverbs", "librdmacm")
SECONDS = 60
EMPTY_MESSAGE = bytes(4)


def loaded() -> list[str]:
    maps = Path("/proc/self/maps").read_text()
    return [name for name in LIBRARIES if name in maps]


def main(here: str, far: str, port: int) -> None:
    seen = {"beginning": loaded()}
    with socket.create_server((here, 0)) as listener:
        seen["listener"] = loaded()
        address = listener.getsockname()
        with socket.create_connection(address) as near, listener.accept()[0] as accepted:
            for _ in range(20):
                near.sendall(b"x")
                accepted.sendall(accepted.recv(1))
                near.recv(1)
            seen["near"] = loaded()
    with socket.create_connection((far, port)) as connection:
        until = time.monotonic() + SECONDS
        while len(loaded()) < len(LIBRARIES) and time.monotonic() < until:
            connection.sendall(EMPTY_MESSAGE)
            connection.recv(len(EMPTY_MESSAGE))
        seen["far"] = loaded()
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
