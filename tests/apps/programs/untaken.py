"""A server that accepts on command, and a client that sends in the meantime."""

from __future__ import annotations

import itertools
import socket
import sys
import threading

MESSAGES = 400
MESSAGE = b"m" * 100


def serve(port: int) -> None:
    """One connection, read until its end."""
    listener = socket.create_server(("127.0.0.1", port))
    print("listening", flush=True)
    sys.stdin.readline()
    connection, _ = listener.accept()
    print("accepted", flush=True)

    def read() -> None:
        while connection.recv(65536):
            pass

    threading.Thread(target=read, daemon=True).start()
    sys.stdin.read()


def send(port: int) -> None:
    """Some messages, and some more for each line."""
    connection = socket.create_connection(("127.0.0.1", port))
    pause = threading.Event()
    for times in itertools.count(1):
        for _ in range(MESSAGES):
            connection.sendall(MESSAGE)
            # The helper has something to do in between.
            pause.wait(0.001)
        print("sent", times, flush=True)
        if not sys.stdin.readline():
            return


if __name__ == "__main__":
    {"serve": serve, "send": send}[sys.argv[1]](int(sys.argv[2]))
