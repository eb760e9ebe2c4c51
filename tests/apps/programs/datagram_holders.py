"""A UDP socket that gets another holder while datagrams are in its ring: `datagram_holders.py WAY`.

`datagram_holders.py WAY ADDRESS PORT` waits for the sender, `datagram_holders.py sender ADDRESS PORT`, on
another host.

Prints what its holders have received, a line each: the name of the holder, and numbers. The datagrams come
from another process, which sends them to a receiver that is awake and does not read.
"""

from __future__ import annotations

import array
import os
import socket
import subprocess
import sys
from typing import IO

#: Enough for a flow to be made on a busy machine.
WARM = 600
WARM_BETWEEN_HOSTS = 50
#: Within one process there is no wait in between.
WARM_ALONE = 20000
NUMBERS = 120
#: Sent after the socket has another holder.
MORE = 30
#: No datagram takes longer.
PATIENCE_S = 20

Source = tuple[str, int]


def send(orders: IO[str], answers: IO[str]) -> None:
    """The sender: its orders are a line each, the first one with the receiver's address and port."""
    address, port, warm = orders.readline().split()
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.connect((address, int(port)))
    one.settimeout(PATIENCE_S)
    for _ in range(int(warm)):
        one.send(b"warm")
        one.recv(10)
    for count in (NUMBERS, MORE):
        if not orders.readline():
            return
        first = 0 if count == NUMBERS else NUMBERS
        for number in range(first, first + count):
            one.send(number.to_bytes(4, "big"))
        print("sent", file=answers, flush=True)
    answer = one.recv(10)
    print(answer.decode(), file=answers, flush=True)
    orders.readline()


def numbers(one: socket.socket, count: int) -> list[int]:
    one.settimeout(PATIENCE_S)
    return [int.from_bytes(one.recv(10), "big") for _ in range(count)]


def show(name: str, found: list[int]) -> None:
    print(name, *found, flush=True)


class Sender:
    """The other process. It is started before there is a socket to inherit, or is on another host."""

    def __init__(self, orders: IO[str], answers: IO[str], warm: int) -> None:
        self.orders, self.answers, self.warm = orders, answers, warm

    @classmethod
    def here(cls) -> Sender:
        command = [sys.executable, "-m", "tests.apps.programs.datagram_holders", "sender"]
        popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert popen.stdin is not None and popen.stdout is not None
        return cls(popen.stdin, popen.stdout, WARM)

    @classmethod
    def there(cls, address: str, port: int) -> Sender:
        """It makes two connections to us, for orders and answers: each ends by itself, as a pipe does."""
        with socket.create_server((address, port)) as listener:
            print("ready", flush=True)
            (orders, _), (answers, _) = listener.accept(), listener.accept()
        with orders, answers:
            return cls(orders.makefile("w"), answers.makefile("r"), WARM_BETWEEN_HOSTS)

    def go_on(self, order: str = "") -> None:
        print(order, file=self.orders, flush=True)

    def has_said(self, expected: str) -> None:
        line = self.answers.readline().strip()
        assert line == expected, line

    def end(self) -> None:
        """Waits until it has left its counters, also if it is the child of another process."""
        self.orders.close()
        assert self.answers.read() == ""


def serve(one: socket.socket, sender: Sender) -> Source:
    """The sender's address. Then there are datagrams that nobody has read."""
    address, own_port = one.getsockname()
    sender.go_on(f"{address} {own_port} {sender.warm}")
    source = ("", 0)
    for _ in range(sender.warm):
        source = one.recvfrom(10)[1]
        one.sendto(b"warm", source)
    sender.go_on()
    sender.has_said("sent")
    return source


def finish(one: socket.socket, sender: Sender, source: Source, name: str) -> None:
    """A holder that reads all, and answers from the socket."""
    show(name, numbers(one, NUMBERS))
    sender.go_on()
    sender.has_said("sent")
    show(name, numbers(one, MORE))
    one.sendto(b"answer", source)
    sender.has_said("answer")
    sender.end()


def in_child(one: socket.socket, sender: Sender, source: Source) -> None:
    child = os.fork()
    if child == 0:
        finish(one, sender, source, "child")
        os._exit(0)
    sender.orders.close()
    assert os.waitpid(child, 0)[1] == 0


def in_both(one: socket.socket, sender: Sender, source: Source) -> None:
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
    one.sendto(b"answer", source)
    sender.has_said("answer")
    sender.end()


def in_daemon(one: socket.socket, sender: Sender, source: Source) -> None:
    """The parent ends at once."""
    done, finished = os.pipe()
    if os.fork() == 0:
        middle = os.fork()
        if middle == 0:
            os.close(done)
            finish(one, sender, source, "daemon")
            os._exit(0)
        os._exit(0)
    one.close()
    sender.orders.close()
    os.close(finished)
    assert os.read(done, 1) == b""


def pair() -> tuple[socket.socket, socket.socket]:
    """Within one process: a socket with unread datagrams, and the one that has sent them."""
    one, other = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    one.bind(("127.0.0.1", 0))
    other.connect(one.getsockname())
    for _ in range(WARM_ALONE):
        other.send(b"warm")
        one.recv(10)
    for number in range(NUMBERS):
        other.send(number.to_bytes(4, "big"))
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


def reading(one: socket.socket, sender: Sender) -> list[str]:
    """A program that reads, and waits until the sender has ended."""
    numbers = [one.fileno(), sender.answers.fileno()]
    for number in numbers:
        os.set_inheritable(number, True)
    command = [sys.executable, "-m", "tests.apps.programs.datagram_holders", "read"]
    return [*command, *map(str, numbers)]


def by_exec(one: socket.socket, sender: Sender, source: Source) -> None:
    del source
    command = reading(one, sender)
    os.execv(command[0], command)


def by_spawn(one: socket.socket, sender: Sender, source: Source) -> None:
    del source
    command = reading(one, sender)
    child = os.posix_spawn(command[0], command, os.environ)
    sender.orders.close()
    assert os.waitpid(child, 0)[1] == 0


def by_rights(one: socket.socket, sender: Sender, source: Source, other: socket.socket) -> None:
    """To a process that was there before."""
    del source
    fds = array.array("i", [one.fileno()])
    other.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
    one.close()
    assert other.recv(1) == b""
    sender.end()


def receive_socket() -> tuple[socket.socket, int]:
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child:
        theirs.close()
        return ours, child
    ours.close()
    _, ((_, _, data), *_), _, _ = theirs.recvmsg(1, 100)
    read(int.from_bytes(data[:4], sys.byteorder))
    os._exit(0)


def read(fd: int) -> None:
    with socket.socket(fileno=fd) as one:
        show("reader", numbers(one, NUMBERS))


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
        with os.fdopen(int(sys.argv[3]), encoding="utf-8") as answers:
            assert answers.read() == ""
        return
    if way == "alone":
        in_child_of_both()
        return
    if way == "left":
        after_others()
        return
    if way == "sender" and len(sys.argv) == 2:
        send(sys.stdin, sys.stdout)
        return
    between_hosts = (sys.argv[2], int(sys.argv[3])) if len(sys.argv) > 2 else None
    if way == "sender" and between_hosts:
        with (
            socket.create_connection(between_hosts) as orders,
            socket.create_connection(between_hosts) as answers,
        ):
            send(orders.makefile("r"), answers.makefile("w"))
        return
    receiver = receive_socket() if way == "rights" else None
    sender = Sender.there(*between_hosts) if between_hosts else Sender.here()
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.bind(between_hosts or ("127.0.0.1", 0))
    source = serve(one, sender)
    if receiver:
        by_rights(one, sender, source, receiver[0])
        assert os.waitpid(receiver[1], 0)[1] == 0
    else:
        WAYS[way](one, sender, source)


if __name__ == "__main__":
    main()
