"""A UDP socket that a process forks with before any datagram has come: `datagram_returns.py WAY`.

Another process exchanges datagrams with it. WAY says who holds the socket then: the child alone (`child`),
the parent alone after its child has ended (`parent`), or both (`both`). With `options` the child alone does,
and its parent has set an option in between. Each holder prints the sum of the numbers that it has got.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

#: linux/in.h; the module has no name for it.
IP_RECVTTL = 12

EXCHANGES = 3000
#: Of these the holder besides the last one takes some.
FIRST = 5
#: No datagram takes longer.
PATIENCE_S = 20
#: For control messages.
ROOM = 100

CLIENT = f"""
import socket, sys
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 77)
one.connect(("127.0.0.1", int(sys.stdin.readline())))
one.settimeout({PATIENCE_S})
for number in range({EXCHANGES}):
    one.send(number.to_bytes(4, "big"))
    assert one.recv(10) == number.to_bytes(4, "big")
"""


def echo(one: socket.socket, count: int, shows_ttl: bool = False) -> int:
    """The sum of the numbers."""
    total = 0
    for _ in range(count):
        data, control, _, source = one.recvmsg(10, ROOM)
        lives = [int.from_bytes(value, sys.byteorder) for _, _, value in control]
        assert lives == [77] * shows_ttl, lives
        total += int.from_bytes(data, "big")
        one.sendto(data, source)
    return total


def main() -> None:
    way = sys.argv[1]
    client = subprocess.Popen([sys.executable, "-c", CLIENT], stdin=subprocess.PIPE, text=True)
    assert client.stdin is not None
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.settimeout(PATIENCE_S)
    one.bind(("127.0.0.1", 0))
    port = one.getsockname()[1]
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        client.stdin.close()
        os.close(tell)
        assert os.read(ready, 1) == b""
        print(echo(one, FIRST if way == "parent" else EXCHANGES, shows_ttl=way == "options"), flush=True)
        os._exit(0)
    os.close(ready)
    if way == "options":
        one.setsockopt(socket.IPPROTO_IP, IP_RECVTTL, 1)
    if way in ("child", "options"):
        one.close()
    os.close(tell)
    print(port, file=client.stdin, flush=True)
    assert os.waitpid(child, 0)[1] == 0
    if way == "parent":
        print(echo(one, EXCHANGES - FIRST), flush=True)
    client.stdin.close()
    assert client.wait() == 0


if __name__ == "__main__":
    main()
