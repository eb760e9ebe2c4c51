"""A receive that sleeps while the peer resets the connection:
`python -m tests.apps.programs.reset_sleeper CALL PATH`.

Prints what the call comes to: the name of an error, or the number of bytes. Before, messages go there and
back: until they take a link, if `PATH` is "link".
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.apps.programs.ended import kernel_carried

#: For anything, on a busy machine.
PATIENCE = 60.0
#: At least so many exchanges.
ROUNDS = 40
MESSAGE, LAST = b"x" * 64, b"." * 64
CALLS: dict[str, Callable[[socket.socket], int]] = {
    "recv": lambda connection: len(connection.recv(10)),
    "recv-all": lambda connection: len(connection.recv(10, socket.MSG_WAITALL)),
    "recv-peek": lambda connection: len(connection.recv(10, socket.MSG_PEEK)),
    "recvmsg": lambda connection: len(connection.recvmsg(10)[0]),
    "read": lambda connection: len(os.read(connection.fileno(), 10)),
    "readv": lambda connection: os.readv(connection.fileno(), [bytearray(4), bytearray(6)]),
}


def outcome(call: Callable[[socket.socket], int], connection: socket.socket) -> str:
    try:
        return str(call(connection))
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def exchange(connection: socket.socket, message: bytes) -> int:
    """Bytes of it that the kernel has carried."""
    before = kernel_carried(connection.fileno())
    connection.sendall(message)
    assert connection.recv(len(message), socket.MSG_WAITALL) == message
    return kernel_carried(connection.fileno()) - before


def reset(address: tuple[str, int], path: str, about_to_sleep: int) -> None:
    """The peer, a child process."""
    with socket.create_connection(address) as connection:
        deadline = time.monotonic() + PATIENCE
        for count in range(1_000_000):
            carried = exchange(connection, MESSAGE)
            if count >= ROUNDS and (path == "tcp" or carried == 0):
                break
            assert time.monotonic() < deadline, "no link comes"
        exchange(connection, LAST)
        assert os.read(about_to_sleep, 1)
        deadline = time.monotonic() + PATIENCE
        state = Path(f"/proc/{os.getppid()}/stat")
        while state.read_text().rpartition(") ")[2][0] != "S":
            assert time.monotonic() < deadline, "the receive does not sleep"
            os.sched_yield()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def main() -> None:
    name, path = sys.argv[1:]
    about_to_sleep, tell = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        child = os.fork()
        if child == 0:
            reset(listener.getsockname(), path, about_to_sleep)
            os._exit(0)
        connection, _ = listener.accept()
    message = MESSAGE
    while message != LAST:
        message = connection.recv(64, socket.MSG_WAITALL)
        connection.sendall(message)
    os.write(tell, b"x")
    print(outcome(CALLS[name], connection), connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    print(outcome(CALLS[name], connection))
    assert os.waitpid(child, 0)[1] == 0


main()
