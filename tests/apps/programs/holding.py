"""Connections that are opened one after the other, and kept; no thread waits for more than one of them.

    python -m tests.apps.programs.holding server PORT
    python -m tests.apps.programs.holding client PORT

The client opens a connection at each line, exchanges a byte on it, and says "exchanged" and how many there
are; at the next line it leaves that connection alone. The server blocks on the newest one.
"""

from __future__ import annotations

import socket
import sys

MORE, LAST = b"m", b"l"


def serve(port: int) -> None:
    kept = []
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            peer, _ = listener.accept()
            kept.append(peer)
            while data := peer.recv(1):
                peer.sendall(data)
                if data == LAST:
                    break


def client(port: int) -> None:
    kept: list[socket.socket] = []
    for _ in sys.stdin:
        for byte in (LAST, MORE):
            if byte == MORE:
                kept.append(socket.create_connection(("127.0.0.1", port)))
            if kept:
                kept[-1].sendall(byte)
                assert kept[-1].recv(1) == byte
        print(f"exchanged {len(kept)}", flush=True)


if __name__ == "__main__":
    (serve if sys.argv[1] == "server" else client)(int(sys.argv[2]))
