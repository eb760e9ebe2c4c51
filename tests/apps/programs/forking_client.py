"""Talks to a forking_server: so many messages, each compared with its echo; then a half-close, a farewell.

python -m tests.apps.programs.forking_client PORT MESSAGES
"""

from __future__ import annotations

import socket
import sys

from tests.apps.lib.client import Stopwatch
from tests.apps.lib.data import blob
from tests.apps.programs.forking_server import FAREWELL, MESSAGE


def main() -> None:
    watch = Stopwatch()
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
        for number in range(int(sys.argv[2])):
            message = blob(MESSAGE, number)
            connection.sendall(message)
            answer = connection.recv(MESSAGE, socket.MSG_WAITALL)
            assert answer == message, f"message {number} came back as {len(answer)} other bytes"
            watch.count(2 * MESSAGE)
        connection.shutdown(socket.SHUT_WR)
        farewell = b""
        while data := connection.recv(MESSAGE):
            farewell += data
        assert farewell == FAREWELL, f"instead of a farewell: {farewell!r}"
        watch.finish()


if __name__ == "__main__":
    main()
