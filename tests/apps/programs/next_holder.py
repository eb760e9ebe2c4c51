"""A process that waits for a socket in a message (SCM_RIGHTS), and uses it."""

from __future__ import annotations

import array
import os
import socket
import sys
from collections.abc import Callable


class NextHolder:
    """The process, which was there before the socket."""

    def __init__(self, use: Callable[[socket.socket], None]) -> None:
        self._ours, theirs = socket.socketpair()
        self._child = os.fork()
        if self._child:
            theirs.close()
            return
        self._ours.close()
        _, ((_, _, data), *_), _, _ = theirs.recvmsg(1, 100)
        with socket.socket(fileno=int.from_bytes(data[:4], sys.byteorder)) as one:
            use(one)
        os._exit(0)

    def give(self, one: socket.socket) -> None:
        """The process has the socket alone from now on. Returns when it has ended."""
        fds = array.array("i", [one.fileno()])
        self._ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        one.close()
        assert os.waitpid(self._child, 0)[1] == 0
