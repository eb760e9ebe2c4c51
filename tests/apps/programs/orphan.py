"""A process that is killed while its forked child holds its connection.

    python -m tests.apps.programs.orphan PORT --pause-after N

Reads N bytes of the stream that tests.apps.programs.stream sends, says "paused" and waits for a line. Then it
forks, and is killed. The child reads on, and says how that ended as tests.apps.programs.stream does.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys

from tests.apps.programs.stream import CHUNK, Pattern


def inherit(peer: socket.socket, position: int, pattern: Pattern, parent: int) -> None:
    """The child: reads on once no process has the other end of the pipe any more."""
    os.read(parent, 1)
    how, intact = "eof", True
    try:
        while data := peer.recv(CHUNK):
            intact = intact and data == pattern.at(position, len(data))
            position += len(data)
    except ConnectionResetError:
        how = "reset"
    print("end " + json.dumps({"bytes": position, "how": how, "intact": intact}), flush=True)


def own(options: argparse.Namespace) -> None:
    peer = socket.create_connection(("127.0.0.1", options.port))
    pattern, position = Pattern(1), 0
    while position < options.pause_after:
        position += len(peer.recv(min(CHUNK, options.pause_after - position)))
    print("paused", flush=True)
    sys.stdin.readline()
    alive, lifeline = os.pipe()
    if os.fork() == 0:
        os.close(lifeline)
        inherit(peer, position, pattern, alive)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--pause-after", type=int, required=True)
    parsed = parser.parse_args()
    # The test waits for the end of this program: the process that is killed is a child.
    if os.fork() == 0:
        own(parsed)
    os.wait()
    sys.stdin.read()
