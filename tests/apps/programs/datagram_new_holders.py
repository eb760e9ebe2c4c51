"""A UDP socket that gets another holder while flows to it are being made from another host.

`receive ADDRESS PORT WAY` prints what the new holder has received: a line for each datagram that no program
has sent, and their count. `send ADDRESS PORT` sends to it from several sockets.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time

from tests.apps.programs.next_holder import NextHolder

SOCKETS = 8
#: Of each socket. All fit into the receiver's buffer.
NUMBERS = 16
#: Between two of them, so that a flow is made meanwhile.
PAUSE_S = 0.01
#: No datagram takes longer.
PATIENCE_S = 20
#: For what comes after the last one.
REST_S = 0.3

RECORD = struct.Struct(">4sII")
MARK = b"ours"


def finish(one: socket.socket) -> None:
    """The new holder: reads everything."""
    missing = {(sender, number) for sender in range(SOCKETS) for number in range(1, NUMBERS)}
    foreign = 0
    one.settimeout(PATIENCE_S)
    try:
        while True:
            data = one.recv(2000)
            if len(data) == RECORD.size and data[:4] == MARK:
                missing.discard(RECORD.unpack(data)[1:])
            else:
                foreign += 1
                print("foreign", data.hex(), flush=True)
            if not missing:
                one.settimeout(REST_S)
    except TimeoutError:
        print(f"missing {len(missing)}, foreign {foreign}", flush=True)


def by_fork(one: socket.socket) -> None:
    child = os.fork()
    if child == 0:
        finish(one)
        os._exit(0)
    one.close()
    assert os.waitpid(child, 0)[1] == 0


def by_exec(one: socket.socket) -> None:
    one.set_inheritable(True)
    command = [sys.executable, "-m", "tests.apps.programs.datagram_new_holders", "hold", str(one.fileno())]
    os.execv(command[0], command)


def receive(address: str, port: int, way: str) -> None:
    holder = NextHolder(finish) if way == "rights" else None
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.bind((address, port))
    one.settimeout(PATIENCE_S)
    listener = socket.create_server((address, port))
    print("ready", flush=True)
    control, _ = listener.accept()
    # The kernel has brought a datagram from each of them, so flows are granted.
    for _ in range(SOCKETS):
        one.recv(2000)
    control.send(b"x")
    # They have sent everything, and nothing of it is read.
    assert control.recv(1) == b"x"
    listener.close()
    control.close()
    if holder:
        holder.give(one)
    else:
        {"fork": by_fork, "exec": by_exec}[way](one)


def send(address: str, port: int) -> None:
    control = socket.create_connection((address, port))
    ones = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(SOCKETS)]
    for sender, one in enumerate(ones):
        one.connect((address, port))
        one.send(RECORD.pack(MARK, sender, 0))
    assert control.recv(1) == b"x"
    for number in range(1, NUMBERS):
        for sender, one in enumerate(ones):
            one.send(RECORD.pack(MARK, sender, number))
        time.sleep(PAUSE_S)
    control.send(b"x")
    # Until the new holder has read everything.
    assert sys.stdin.read() == ""


def main() -> None:
    match sys.argv[1:]:
        case ["receive", address, port, way]:
            receive(address, int(port), way)
        case ["send", address, port]:
            send(address, int(port))
        case ["hold", fd]:
            with socket.socket(fileno=int(fd)) as one:
                finish(one)


if __name__ == "__main__":
    main()
