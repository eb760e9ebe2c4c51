"""An echo server that shares its one connection with processes that it forks or starts, or hands it over.

    python -m tests.apps.programs.forking_server PORT SCENARIO

Messages have MESSAGE bytes. Before it closes its last descriptor, the last serving process sends FAREWELL.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable

MESSAGE = 1000
FAREWELL = b"bye!"
BEFORE = 300  # messages that the parent serves before it forks
TURNS = 100  # messages that each of two processes serves in turn


def serve(connection: socket.socket, messages: int | None = None) -> None:
    """Echo so many messages, or all until the end of stream."""
    while messages is None or messages > 0:
        message = connection.recv(MESSAGE, socket.MSG_WAITALL)
        if not message:
            break
        connection.sendall(message)
        messages = messages - 1 if messages is not None else None


def finish(connection: socket.socket) -> None:
    """Serve the rest and send FAREWELL."""
    serve(connection)
    connection.sendall(FAREWELL)
    connection.close()


def fork(child: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            child()
            status = 0
        finally:
            os._exit(status)
    return pid


def reap(pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"a child ended with {status}"


def handed_over(connection: socket.socket) -> None:
    """Accept, fork, close in the parent, as PostgreSQL, Apache and OpenSSH do."""
    pid = fork(lambda: finish(connection))
    connection.close()
    reap(pid)


def handed_over_late(connection: socket.socket) -> None:
    """The connection has been used, and is on its link, when it changes hands."""
    serve(connection, BEFORE)
    handed_over(connection)


def handed_over_twice(connection: socket.socket) -> None:
    """As `daemon` does it: the child that uses the connection is a grandchild."""
    serve(connection, BEFORE)

    def child() -> None:
        pid = fork(lambda: finish(connection))
        connection.close()
        reap(pid)

    pid = fork(child)
    connection.close()
    reap(pid)


def in_turns(connection: socket.socket) -> None:
    """Parent and child serve in turn, over and over, then the parent alone."""
    serve(connection, BEFORE)
    to_child, to_parent = os.pipe(), os.pipe()

    def child() -> None:
        for _ in range(TURNS):
            os.read(to_child[0], 1)
            serve(connection, 1)
            os.write(to_parent[1], b".")

    pid = fork(child)
    for _ in range(TURNS):
        serve(connection, 1)
        os.write(to_child[1], b".")
        os.read(to_parent[0], 1)
    reap(pid)
    finish(connection)


def kept_unused(connection: socket.socket) -> None:
    """A child holds the connection all the time, as Redis's does while it saves, and never uses it."""
    serve(connection, BEFORE)
    end = os.pipe()

    def child() -> None:
        os.close(end[1])
        os.read(end[0], 1)

    pid = fork(child)
    serve(connection)
    os.close(end[1])
    reap(pid)
    connection.sendall(FAREWELL)
    connection.close()


def last_one_ends(connection: socket.socket) -> None:
    """The parent closes first, and ends; only the child's farewell may be followed by the end of stream."""
    serve(connection, BEFORE)
    closed = os.pipe()

    def child() -> None:
        os.close(closed[1])
        os.read(closed[0], 1)  # until the parent is gone
        finish(connection)

    fork(child)
    connection.close()
    os._exit(0)


def wait_unread(connection: socket.socket) -> None:
    """Return once a whole message is there; it stays unread."""
    connection.recv(MESSAGE, socket.MSG_WAITALL | socket.MSG_PEEK)


def continued(*words: str) -> list[str]:
    """How to start this program anew, to go on with a connection."""
    return [sys.executable, "-m", "tests.apps.programs.forking_server", *words]


def replaced(connection: socket.socket) -> None:
    """The process is replaced by a new program, with a message unread."""
    serve(connection, BEFORE)
    wait_unread(connection)
    connection.set_inheritable(True)
    words = continued("continue", str(connection.fileno()))
    os.execv(words[0], words)


def started(connection: socket.socket) -> None:
    """Another program is started (by posix_spawn or vfork) and gets the connection, with a message unread."""
    serve(connection, BEFORE)
    wait_unread(connection)
    with connection:
        words = continued("continue", str(connection.fileno()))
        program = subprocess.Popen(words, pass_fds=[connection.fileno()])
    assert program.wait() == 0


def passed(connection: socket.socket) -> None:
    """The connection is sent to another process, with a message unread, and closed here."""
    serve(connection, BEFORE)
    here, there = socket.socketpair()
    program = subprocess.Popen(continued("receive", str(there.fileno())), pass_fds=[there.fileno()])
    wait_unread(connection)
    with connection, here:
        socket.send_fds(here, [b"."], [connection.fileno()])
    assert program.wait() == 0


def go_on(words: list[str]) -> None:
    """The work of this program when another has started it."""
    number = int(words[1])
    if words[0] == "continue":
        connection = socket.socket(fileno=number)
    else:
        with socket.socket(fileno=number) as channel:
            _, (received,), _, _ = socket.recv_fds(channel, 1, 1)
        connection = socket.socket(fileno=received)
    finish(connection)


SCENARIOS = {
    function.__name__: function
    for function in (
        *(handed_over, handed_over_late, handed_over_twice, in_turns, kept_unused, last_one_ends),
        *(replaced, started, passed),
    )
}


def main() -> None:
    if sys.argv[1] in ("continue", "receive"):
        return go_on(sys.argv[1:])
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    connection, _ = listener.accept()
    return SCENARIOS[sys.argv[2]](connection)


if __name__ == "__main__":
    main()
