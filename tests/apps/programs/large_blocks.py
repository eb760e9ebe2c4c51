"""A server that reads large blocks and returns their digest, and a client that writes them.

large_blocks serve PORT
large_blocks send PORT CONNECTIONS BLOCKS
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import threading

BLOCK = 1 << 20
#: Exchanges before the blocks, so that the connection is on its link.
EXCHANGES = 200
OK = b"ok"


def serve(port: int) -> None:
    with socket.create_server(("127.0.0.1", port), backlog=64) as listener:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=answer, args=(connection,), daemon=True).start()


def answer(connection: socket.socket) -> None:
    digest, buffer = hashlib.sha256(), bytearray(BLOCK)
    with connection:
        for _ in range(EXCHANGES):
            connection.sendall(connection.recv(1))
        while n := connection.recv_into(buffer):
            digest.update(memoryview(buffer)[:n])
        connection.sendall(digest.digest())


def send(port: int, connections: int, blocks: int) -> None:
    digests = [hashlib.sha256() for _ in range(connections)]
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
    for connection in sockets:
        for _ in range(EXCHANGES):
            connection.sendall(b"x")
            connection.recv(1)
    print("linked", flush=True)
    sys.stdin.readline()
    block = os.urandom(BLOCK + blocks)
    for number in range(blocks):
        for connection, digest in zip(sockets, digests, strict=True):
            # Of many alignments and lengths.
            piece = memoryview(block)[number : BLOCK + number * 1021 % 8192]
            connection.sendall(piece)
            digest.update(piece)
    print("written", flush=True)
    sys.stdin.readline()
    for connection, digest in zip(sockets, digests, strict=True):
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(64, socket.MSG_WAITALL) == digest.digest(), "what arrived is not what was sent"
        connection.close()
    print("right", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        send(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
