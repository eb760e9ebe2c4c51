"""A connection whose request for a link is never answered: the work of the process meanwhile.

`ADDRESS PORT LINK_PORT NETACC_SS`: exchanges bytes with an echo server until the kernel has an unanswered
request to the port for links; then forks, reads its own counters, and goes on. Prints its steps, and
whether the request is still unanswered after that.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

MESSAGE = bytes(range(256))
#: As /proc/net/tcp has it.
SYN_SENT = "02"


def talk(connection: socket.socket) -> None:
    connection.sendall(MESSAGE)
    got = b""
    while len(got) < len(MESSAGE):
        part = connection.recv(len(MESSAGE) - len(got))
        if not part:
            sys.exit("the server has gone")
        got += part
    if got != MESSAGE:
        sys.exit("an answer differs from what was sent")


def is_connecting(port: int) -> bool:
    """Whether the kernel waits for an answer from that port of any host."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()][1:]
    return any(remote.endswith(f":{port:04X}") and state == SYN_SENT for _, _, remote, state, *_ in rows)


def main(address: str, port: int, link_port: int, netacc_ss: str) -> None:
    with socket.create_connection((address, port)) as connection:
        while not is_connecting(link_port):
            talk(connection)
        child = os.fork()
        if child == 0:
            os._exit(7)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != 7:
            sys.exit(f"the child ended with {status}")
        print("forked", flush=True)
        subprocess.run(
            [netacc_ss, "-p", str(os.getpid()), "-s", "cnt"], stdout=subprocess.DEVNULL, check=True
        )
        print("counted", flush=True)
        talk(connection)
        if is_connecting(link_port):
            print("still asking", flush=True)


if __name__ == "__main__":
    _, address, port, link_port, netacc_ss = sys.argv
    main(address, int(port), int(link_port), netacc_ss)
