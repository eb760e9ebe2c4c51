"""Bursts of datagrams and their answers, until a file says stop. Lost ones are left out.

`serve ADDRESS PORT`, or `ask ADDRESS PORT STOP_FILE`. Each prints its process id first.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

BURST = 8
#: After that an answer is lost.
PATIENCE_S = 0.2


def main() -> None:
    what, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    if what == "serve":
        one.bind((address, port))
        print(os.getpid(), flush=True)
        while True:
            data, source = one.recvfrom(2000)
            one.sendto(data, source)
    one.connect((address, port))
    one.settimeout(PATIENCE_S)
    print(os.getpid(), flush=True)
    number, stop = 0, Path(sys.argv[4])
    while not stop.exists():
        number += 1
        for _ in range(BURST):
            one.send(number.to_bytes(4, "big"))
        for _ in range(BURST):
            try:
                one.recv(2000)
            except (TimeoutError, ConnectionRefusedError):
                break


if __name__ == "__main__":
    main()
