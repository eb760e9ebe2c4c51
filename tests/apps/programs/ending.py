"""One of two processes ends while the other has not read everything.

    python -m tests.apps.programs.ending hold PORT
    python -m tests.apps.programs.ending leave PORT HANDLED

`hold` sends back what it receives. `leave` exchanges a byte with it at each line, and repeats the line; at
"leave" it sends once more and ends by `_exit` with status 3. From then on a handler that runs writes its
signal, as one byte, to the file HANDLED.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys

STATUS = 3
SIGNALS = (signal.SIGUSR1, signal.SIGTERM)


def hold(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as listener:
        peer, _ = listener.accept()
    with contextlib.suppress(ConnectionError):
        while data := peer.recv(1):
            peer.sendall(data)


def leave(port: int, handled: str) -> None:
    peer = socket.create_connection(("127.0.0.1", port))
    wakeup = os.open(handled, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK)
    for number in SIGNALS:
        # The interpreter's own handler, in C, writes at once; this one would run later.
        signal.signal(number, lambda *_: None)
    while (line := sys.stdin.readline().strip()) != "leave":
        peer.sendall(b"x")
        assert peer.recv(1) == b"x"
        print(line, flush=True)
    peer.sendall(b"unread")
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    os._exit(STATUS)


if __name__ == "__main__":
    if sys.argv[1] == "hold":
        hold(int(sys.argv[2]))
    else:
        leave(int(sys.argv[2]), sys.argv[3])
