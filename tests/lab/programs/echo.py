"""Blocking sockets.

`serve`, `threaded`, `prefork` and `forking ADDRESS PORT` send back all bytes: one connection after
the other, each in a thread, two at a time in processes that accept for themselves, each in a process of its
own that did not accept it.
`ask ADDRESS PORT COUNT [CONNECTIONS [ROUNDS]]` compares, on that many connections at a time, so often anew.
`answer-in-turn ADDRESS PORT` and `ask-in-turn ADDRESS PORT COUNT CONNECTIONS` have one thread each, which
blocks on one connection until that is through with its messages, and leaves it open when it goes on to the
next.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import threading


def listen(address: str, port: int) -> socket.socket:
    """A listener, of the address's family."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family)


def read(connection: socket.socket, count: int) -> bytes:
    """Exactly so many bytes, or fewer at the end."""
    parts = []
    while count > 0 and (part := connection.recv(count)):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def check(number: int, answer: bytes, message: bytes) -> None:
    """Ends the program if the answer is not the message: an end of the stream is no wrong byte."""
    if answer != message[: len(answer)]:
        sys.exit(f"answer {number} differs from what was sent")
    if len(answer) < len(message):
        sys.exit(f"answer {number} ends after {len(answer)} of {len(message)} bytes")


def answer(connection: socket.socket) -> None:
    while header := read(connection, 4):
        connection.sendall(header + read(connection, int.from_bytes(header, "big")))


def serve(address: str, port: int) -> None:
    """One connection after the other; a message is its length in four bytes, and so many."""
    with listen(address, port) as listener:
        print("listening as", os.getpid(), flush=True)
        while True:
            connection, _ = listener.accept()
            answer(connection)
            # Kept open, so that its counters can be read.


def answer_in_turn(address: str, port: int) -> None:
    """A connection is left open, and not read any more, after its first empty message."""
    left_open = []
    with listen(address, port) as listener:
        print("listening as", os.getpid(), flush=True)
        while True:
            connection, _ = listener.accept()
            while length := int.from_bytes(header := read(connection, 4), "big"):
                connection.sendall(header + read(connection, length))
            left_open.append(connection)


def request_in_turn(address: str, port: int, count: int, connections: int) -> None:
    """All connections stay open until the process is ended."""
    left_open = []
    message = (1000).to_bytes(4, "big") + bytes(1000)
    for _ in range(connections):
        connection = socket.create_connection((address, port))
        for number in range(count):
            connection.sendall(message)
            check(number, read(connection, len(message)), message)
        connection.sendall(bytes(4))
        left_open.append(connection)
    print("answered as", os.getpid(), flush=True)
    signal.pause()


def threaded(address: str, port: int) -> None:
    """A thread for each connection."""
    with listen(address, port) as listener:
        print("listening as", os.getpid(), flush=True)
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=answer, args=(connection,), daemon=True).start()


def prefork(address: str, port: int) -> None:
    """Two processes on one listener. Each takes the next connection when it is through with one."""
    with listen(address, port) as listener:
        for _ in range(2):
            if os.fork() == 0:
                while True:
                    connection, _ = listener.accept()
                    answer(connection)
        print("listening as", os.getpid(), flush=True)
        os.wait()


def forking(address: str, port: int) -> None:
    """A process for each connection."""
    with listen(address, port) as listener:
        print("listening as", os.getpid(), flush=True)
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                answer(connection)
                # Its counters can be read.
                signal.pause()
            connection.close()


def run_client(address: str, port: int, count: int, connections: int = 1, rounds: int = 1) -> None:
    """Messages of many lengths, larger than the rings too, and of other bytes on each connection."""
    draw = random.Random(7)
    for _ in range(rounds):
        opened = [socket.create_connection((address, port)) for _ in range(connections)]
        for number in range(count):
            length = draw.choice([1, 100, 4000, 20_000, 300_000 if number % 50 == 0 else 500])
            messages = [length.to_bytes(4, "big") + draw.randbytes(length) for _ in opened]
            for connection, message in zip(opened, messages, strict=True):
                connection.sendall(message)
            for connection, message in zip(opened, messages, strict=True):
                check(number, read(connection, len(message)), message)
        for connection in opened:
            connection.close()
    print(f"{count} answers as asked", flush=True)


if __name__ == "__main__":
    _, role, address, port, *rest = sys.argv
    if role.startswith("ask"):
        {"ask": run_client, "ask-in-turn": request_in_turn}[role](address, int(port), *map(int, rest))
    else:
        {
            "serve": serve,
            "threaded": threaded,
            "prefork": prefork,
            "forking": forking,
            "answer-in-turn": answer_in_turn,
        }[role](address, int(port))
