"""Control messages that say to which address a datagram was sent: prints what calls answer, for comparison.

The other process sends pairs of datagrams. The first one wakes this process, so the second one can take
the ring.
"""

from __future__ import annotations

import json
import select
import socket
import struct
from typing import NamedTuple

from tests.apps.programs.datagram_calls import WARMING, Peer

# Python has no name for it.
IP_PKTINFO = 8
ROOM = 100


class Kind(NamedTuple):
    """A socket, the option, its control message, and one that asks for 127.0.0.1 as source."""

    family: int
    level: int
    option: int
    message: int
    asks: bytes


LOCAL = socket.inet_aton("127.0.0.1")
KINDS = [
    Kind(socket.AF_INET, socket.IPPROTO_IP, IP_PKTINFO, IP_PKTINFO, struct.pack("i4s4s", 0, LOCAL, bytes(4))),
    Kind(
        socket.AF_INET6,
        socket.IPPROTO_IPV6,
        socket.IPV6_RECVPKTINFO,
        socket.IPV6_PKTINFO,
        socket.inet_pton(socket.AF_INET6, "::ffff:127.0.0.1") + bytes(4),
    ),
]


def run(kind: Kind) -> None:
    other = Peer()
    mine = socket.socket(kind.family, socket.SOCK_DGRAM)
    if kind.family == socket.AF_INET6:
        mine.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    mine.setsockopt(kind.level, kind.option, 1)
    mine.bind(("", 0))
    port = mine.getsockname()[1]
    theirs = other.do("s.getsockname()[1]")
    to = ("127.0.0.1", theirs) if kind.family == socket.AF_INET else ("::ffff:127.0.0.1", theirs)

    def here(address: str = "127.0.0.1") -> None:
        """There is a datagram, which came after another one."""
        assert other.do(f"[s.sendto(one, ({address!r}, {port})) for one in (b'wake', b'info')]") == [4, 4]
        assert select.select([mine], [], [], 20)[0]
        assert mine.recvmsg(10, ROOM)[0] == b"wake"

    def show(what: str, room: int) -> None:
        data, messages, flags, source = mine.recvmsg(10, room)
        found = [(level, message, data.hex()) for level, message, data in messages]
        print(json.dumps([what, data.decode(), found, flags, source[:2] == to]))

    for _ in range(WARMING):
        here()
        mine.recvmsg(10, ROOM)
    for what, room in (("whole", ROOM), ("cut", socket.CMSG_LEN(8)), ("header", 15), ("none", 0)):
        here()
        show(what, room)
    here("127.0.0.2")
    show("another address", ROOM)
    for _ in range(WARMING):
        here()
        mine.recvmsg(10, ROOM)
    here()
    show("again", ROOM)
    answers = []
    for _ in range(WARMING):
        for data in (b"wake", b"answer"):
            mine.sendmsg([data], [(kind.level, kind.message, kind.asks)], 0, to)
        answers.append(other.do("[str(s.recvfrom(100)) for _ in range(2)]"))
    (answer,) = {str(answer).replace(str(port), "port") for answer in answers}
    print(json.dumps(["answers", answer]))
    mine.setsockopt(kind.level, kind.option, 0)
    for _ in range(WARMING):
        here()
        mine.recvmsg(10, ROOM)
    here()
    show("switched off", ROOM)
    other.end()


def main() -> None:
    for kind in KINDS:
        run(kind)
    print(json.dumps(["ended"]))


if __name__ == "__main__":
    main()
