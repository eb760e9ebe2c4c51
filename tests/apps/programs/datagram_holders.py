"""A UDP socket that gets another holder while datagrams are in its ring: `datagram_holders.py WAY`.

Prints what its holders have received, a line each: the name of the holder, and numbers. The datagrams come
from another process, which sends them to a receiver that is awake and does not read. Every other one asks for
a TTL and a type of service of its own, and the others have the socket's; each holder checks those.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys

from tests.apps.programs.next_holder import NextHolder

#: Enough for a flow to be made on a busy machine.
WARM = 600
#: Within one process there is no wait in between.
WARM_ALONE = 20000
NUMBERS = 120
#: Sent after the socket has another holder.
MORE = 30
#: No datagram takes longer.
PATIENCE_S = 20

#: linux/in.h; the module has no names for them.
IP_RECVTTL, IP_RECVTOS = 12, 13
#: For control messages.
ROOM = 100
#: Of the sending socket.
OWN = (66, 0x20)


def marks(number: int) -> tuple[int, int]:
    """The TTL and type of service of a datagram."""
    return OWN if number % 2 else (1 + number, 4 * (number % 60))


def send(one: socket.socket, number: int) -> None:
    ttl, tos = (struct.pack("i", value) for value in marks(number))
    asks = [(socket.IPPROTO_IP, socket.IP_TTL, ttl), (socket.IPPROTO_IP, socket.IP_TOS, tos)]
    one.sendmsg([number.to_bytes(4, "big")], [] if number % 2 else asks)


def sending(port: int) -> socket.socket:
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, OWN[0])
    one.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, OWN[1])
    one.connect(("127.0.0.1", port))
    return one


def receiving() -> socket.socket:
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.setsockopt(socket.IPPROTO_IP, IP_RECVTTL, 1)
    one.setsockopt(socket.IPPROTO_IP, IP_RECVTOS, 1)
    one.bind(("127.0.0.1", 0))
    return one


SENDER = f"""
import socket, sys
from tests.apps.programs.datagram_holders import send, sending
port, more, numbers = int(sys.stdin.readline()), {MORE}, {NUMBERS}
one = sending(port)
one.settimeout({PATIENCE_S})
for _ in range({WARM}):
    one.send(b"warm")
    one.recv(10)
for count in (numbers, more):
    if not sys.stdin.readline():
        sys.exit()
    first = 0 if count == numbers else numbers
    for number in range(first, first + count):
        send(one, number)
    print("sent", flush=True)
answer = one.recv(10)
print(answer.decode(), flush=True)
sys.stdin.readline()
"""


def numbers(one: socket.socket, count: int) -> list[int]:
    one.settimeout(PATIENCE_S)
    return [receive(one) for _ in range(count)]


def receive(one: socket.socket) -> int:
    data, control, _, _ = one.recvmsg(10, ROOM)
    number = int.from_bytes(data, "big")
    found = {kind: int.from_bytes(value, sys.byteorder) for _, kind, value in control}
    assert (found[socket.IP_TTL], found[socket.IP_TOS]) == marks(number), (number, found)
    return number


def show(name: str, found: list[int]) -> None:
    print(name, *found, flush=True)


class Sender:
    """The other process. It is started before there is a socket that it could inherit."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", SENDER]
        self.popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.popen.stdin is not None and self.popen.stdout is not None
        self.orders, self.answers = self.popen.stdin, self.popen.stdout

    def go_on(self, order: str = "") -> None:
        print(order, file=self.orders, flush=True)

    def has_said(self, expected: str) -> None:
        line = self.answers.readline().strip()
        assert line == expected, line

    def end(self) -> None:
        """Waits until it has left its counters, also if it is the child of another process."""
        self.orders.close()
        assert self.answers.read() == ""


def serve(one: socket.socket, sender: Sender) -> int:
    """The sender's port. Then there are datagrams that nobody has read."""
    sender.go_on(str(one.getsockname()[1]))
    for _ in range(WARM):
        _, source = one.recvfrom(10)
        one.sendto(b"warm", source)
    sender.go_on()
    sender.has_said("sent")
    return int(source[1])


def finish(one: socket.socket, sender: Sender, port: int, name: str) -> None:
    """A holder that reads all, and answers from the socket."""
    show(name, numbers(one, NUMBERS))
    sender.go_on()
    sender.has_said("sent")
    show(name, numbers(one, MORE))
    one.sendto(b"answer", ("127.0.0.1", port))
    sender.has_said("answer")
    sender.end()


def in_child(one: socket.socket, sender: Sender, port: int) -> None:
    child = os.fork()
    if child == 0:
        finish(one, sender, port, "child")
        os._exit(0)
    sender.orders.close()
    assert os.waitpid(child, 0)[1] == 0


def in_both(one: socket.socket, sender: Sender, port: int) -> None:
    """The parent reads a part before and a part after the child does."""
    show("parent", numbers(one, 10))
    child = os.fork()
    if child == 0:
        show("child", numbers(one, 50))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    show("parent", numbers(one, NUMBERS - 60))
    sender.go_on()
    sender.has_said("sent")
    show("parent", numbers(one, MORE))
    one.sendto(b"answer", ("127.0.0.1", port))
    sender.has_said("answer")
    sender.end()


def in_daemon(one: socket.socket, sender: Sender, port: int) -> None:
    """The parent ends at once."""
    done, finished = os.pipe()
    if os.fork() == 0:
        middle = os.fork()
        if middle == 0:
            os.close(done)
            finish(one, sender, port, "daemon")
            os._exit(0)
        os._exit(0)
    one.close()
    sender.orders.close()
    os.close(finished)
    assert os.read(done, 1) == b""


def pair() -> tuple[socket.socket, socket.socket]:
    """Within one process: a socket with unread datagrams, and the one that has sent them."""
    one = receiving()
    other = sending(one.getsockname()[1])
    for _ in range(WARM_ALONE):
        other.send(b"warm")
        one.recv(10)
    for number in range(NUMBERS):
        send(other, number)
    return one, other


def after_others() -> None:
    """Other flows are made after the sender has closed its socket, and before its datagrams are read."""
    one, other = pair()
    other.close()
    others = [pair() for _ in range(3)]
    show("reader", numbers(one, NUMBERS))
    del others


def in_child_of_both() -> None:
    """The sockets at both ends of the flow are inherited, and the parent ends."""
    one, _other = pair()
    done, finished = os.pipe()
    if os.fork() == 0:
        os.close(done)
        show("child", numbers(one, NUMBERS))
        os._exit(0)
    one.close()
    os.close(finished)
    assert os.read(done, 1) == b""


def by_exec_of_both(keeps_sender: bool) -> None:
    """The program is replaced while it has both ends. The next one has the receiver, or both."""
    one, other = pair()
    one.set_inheritable(True)
    other.set_inheritable(keeps_sender)
    command = [sys.executable, "-m", "tests.apps.programs.datagram_holders", "read", str(one.fileno())]
    os.execv(command[0], command)


def reading(one: socket.socket, sender: Sender) -> list[str]:
    """A program that reads, and waits until the sender has ended."""
    numbers = [one.fileno(), sender.answers.fileno()]
    for number in numbers:
        os.set_inheritable(number, True)
    command = [sys.executable, "-m", "tests.apps.programs.datagram_holders", "read"]
    return [*command, *map(str, numbers)]


def by_exec(one: socket.socket, sender: Sender, port: int) -> None:
    del port
    command = reading(one, sender)
    os.execv(command[0], command)


def by_spawn(one: socket.socket, sender: Sender, port: int) -> None:
    del port
    command = reading(one, sender)
    child = os.posix_spawn(command[0], command, os.environ)
    sender.orders.close()
    assert os.waitpid(child, 0)[1] == 0


def by_rights(one: socket.socket, sender: Sender, holder: NextHolder) -> None:
    holder.give(one)
    sender.end()


def read_all(one: socket.socket) -> None:
    show("reader", numbers(one, NUMBERS))


def read(fd: int) -> None:
    with socket.socket(fileno=fd) as one:
        read_all(one)


WAYS = {
    "child": in_child,
    "both": in_both,
    "daemon": in_daemon,
    "exec": by_exec,
    "spawn": by_spawn,
}


def main() -> None:
    way = sys.argv[1]
    if way == "read":
        read(int(sys.argv[2]))
        if len(sys.argv) == 3:
            return
        with os.fdopen(int(sys.argv[3]), encoding="utf-8") as answers:
            assert answers.read() == ""
        return
    if way == "alone":
        in_child_of_both()
        return
    if way.startswith("exec-of-both"):
        by_exec_of_both(way == "exec-of-both")
        return
    if way == "left":
        after_others()
        return
    holder = NextHolder(read_all) if way == "rights" else None
    sender = Sender()
    one = receiving()
    port = serve(one, sender)
    if holder:
        by_rights(one, sender, holder)
    else:
        WAYS[way](one, sender, port)


if __name__ == "__main__":
    main()
