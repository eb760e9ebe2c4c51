"""One long stream in one direction, every byte of it known: for tests in which an end disappears.

    python -m tests.apps.programs.stream {listen,connect} {send,receive} PORT [options]

A listener says "listening" when it can be connected to. A receiver compares what arrives with the pattern
of its seed. With --pause-after it stops reading there, says "paused", and goes on when it gets a line. At the
end of a stream either side prints "end " and a JSON object: the bytes moved, how it ended (eof, reset,
complete), and whether every byte was the right one.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import threading

from tests.apps.lib.data import blob

PERIOD = 1_048_583  # a prime, so that no power of two lines up with it
CHUNK = 65_536


class Pattern:
    """An endless stream of known bytes."""

    def __init__(self, seed: int) -> None:
        self._bytes = blob(PERIOD, seed) * 2

    def at(self, position: int, size: int) -> bytes:
        start = position % PERIOD
        return self._bytes[start : start + size]


def send(peer: socket.socket, options: argparse.Namespace) -> dict[str, object]:
    pattern, position, how = Pattern(options.seed), 0, "complete"
    try:
        while position < options.bytes:
            position += peer.send(pattern.at(position, min(CHUNK, options.bytes - position)))
    except (ConnectionResetError, BrokenPipeError):
        how = "reset"
    if options.stay:
        threading.Event().wait()
    return {"bytes": position, "how": how, "intact": True}


def receive(peer: socket.socket, options: argparse.Namespace) -> dict[str, object]:
    pattern, position, how, intact = Pattern(options.seed), 0, "eof", True
    pause = options.pause_after
    try:
        while data := peer.recv(CHUNK):
            intact = intact and data == pattern.at(position, len(data))
            position += len(data)
            if pause and position >= pause:
                pause = 0
                print("paused", position, flush=True)
                sys.stdin.readline()
    except ConnectionResetError:
        how = "reset"
    return {"bytes": position, "how": how, "intact": intact}


def serve(peer: socket.socket, options: argparse.Namespace) -> None:
    work = send if options.direction == "send" else receive
    with peer:
        result = work(peer, options)
    print("end " + json.dumps(result), flush=True)


def listen(options: argparse.Namespace) -> None:
    server = socket.create_server((options.host, options.port))
    print("listening", flush=True)
    while True:
        peer, _ = server.accept()
        threading.Thread(target=serve, args=(peer, options), daemon=True).start()


def connect(options: argparse.Namespace) -> None:
    source = (options.host, options.source_port) if options.source_port else None
    serve(socket.create_connection((options.host, options.port), source_address=source), options)
    sys.stdin.read()  # stay, so that the counters can be asked for


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=["listen", "connect"])
    parser.add_argument("direction", choices=["send", "receive"])
    parser.add_argument("port", type=int)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--source-port", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bytes", type=int, default=1 << 60, help="how many to send (default: endless)")
    parser.add_argument("--stay", action="store_true", help="do not close after the last byte")
    parser.add_argument("--pause-after", type=int, default=0)
    parsed = parser.parse_args()
    (listen if parsed.side == "listen" else connect)(parsed)
