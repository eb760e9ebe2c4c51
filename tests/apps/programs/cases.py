"""Small situations in which the kernel's behaviour is definite: `python -m tests.apps.programs.cases NAME`
prints the outcome of one, the same natively and accelerated. Each was once different."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable

#: Long for anything on one machine, short for a test.
PATIENCE = 10.0


def pair() -> tuple[socket.socket, socket.socket]:
    """A connection within the process, used often enough to be on a link if it can be."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    for _ in range(10):
        client.sendall(b"to")
        server.sendall(server.recv(2))
        client.recv(2)
        time.sleep(0.01)
    return client, server


def echo_in_child(listener: socket.socket) -> int:
    """A process that sends back what it receives, and closes at the end of it. To be killed."""
    child = os.fork()
    if child == 0:
        connection, _ = listener.accept()
        while data := connection.recv(65536):
            connection.sendall(data)
        connection.close()
        # It is the close that the other side must notice, not the end of this process.
        time.sleep(2 * PATIENCE)
        os._exit(0)
    return child


def leave(how: Callable[[], None]) -> None:
    """A process ends without closing its connection: its peer reads everything, and then the end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if os.fork() == 0:
            client = socket.create_connection(listener.getsockname())
            for _ in range(10):
                client.sendall(b"x" * 100)
                time.sleep(0.01)
            client.sendall(b"y" * 100_000)
            how()
        server, _ = listener.accept()
    received = 0
    while received < 1000:
        received += len(server.recv(100))
    # The other process is gone before the rest is read.
    os.wait()
    try:
        while data := server.recv(65536):
            received += len(data)
        print(received, "end of stream")
    except OSError as error:
        print(received, error)


def leave_by_exit() -> None:
    leave(lambda: ctypes.CDLL(None).exit(0))


def leave_at_once() -> None:
    leave(lambda: os._exit(0))


def leave_by_exec() -> None:
    leave(lambda: os.execv("/bin/true", ["true"]))


def write_to_closed() -> None:
    """A program that goes on writing to a closed socket gets an error, also if it was not reading then."""
    client, server = pair()
    client.sendall(b"never read")
    client.close()
    try:
        for _ in range(100_000):
            server.sendall(b"z" * 100)
        print("wrote everything")
    except (ConnectionResetError, BrokenPipeError):
        print("told")


def end_after_late_read() -> None:
    """An event loop begins to watch a connection whose bytes have waited for long, reads them, ends its
    direction, and waits for the other to end."""
    listener = socket.create_server(("127.0.0.1", 0))
    child = echo_in_child(listener)
    client = socket.create_connection(listener.getsockname())
    client.setblocking(False)
    epoll = select.epoll()
    epoll.register(client, select.EPOLLOUT)
    epoll.poll(PATIENCE)
    # Time for the other side to accept: it is looked for once.
    time.sleep(0.2)
    client.send(b"early")
    epoll.unregister(client)
    time.sleep(0.5)
    epoll.register(client, select.EPOLLIN)
    epoll.poll(PATIENCE)
    print(client.recv(100))
    client.shutdown(socket.SHUT_WR)
    print(client.recv(100) if epoll.poll(PATIENCE) else "not told")
    os.kill(child, signal.SIGKILL)


def many_events() -> None:
    """As many events as the program asks for, and never more."""
    client, server = pair()
    epoll = select.epoll()
    epoll.register(server, select.EPOLLIN)
    client.sendall(b"!")
    others = [socket.socketpair() for _ in range(400)]
    for a, b in others:
        epoll.register(a, select.EPOLLIN)
        b.send(b"!")
    time.sleep(0.1)
    seen: set[int] = set()
    for _ in range(3):
        seen.update(fd for fd, _ in epoll.poll(PATIENCE, 500))
    print(len(seen))
    # While a stream on a link keeps the instance busy, not each wait asks the kernel: one may report less.
    print(
        max(len(epoll.poll(PATIENCE, 300)) for _ in range(32)),
        max(len(epoll.poll(PATIENCE, 1)) for _ in range(32)),
    )


CASES = {
    f.__name__: f
    for f in (
        leave_by_exit,
        leave_at_once,
        leave_by_exec,
        write_to_closed,
        end_after_late_read,
        many_events,
    )
}

if __name__ == "__main__":
    CASES[sys.argv[1]]()
    sys.stdout.flush()
