"""A UDP socket whose holder has got it from another program: `datagram_passed.py WAY`, and `... client PORT`.

WAY says how: in a message from a process that closes its own (`rights`) or keeps it (`rights-kept`); as a
program that is started with it by exec (`exec`), by a shell that is replaced (`shell`), as standard input
(`inetd`), or after such a program has ended (`after`). With `option`, `group` and `instance` something of the
first program's stays with it that only the kernel can honour. The holder prints its number, and answers until
it gets `END`. It wants to know the TTL, because the first program has said so. The client exchanges datagrams
until its input ends.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading

from tests.apps.programs.next_holder import NextHolder

#: linux/in.h, linux/udp.h; the module has no names for them.
IP_RECVTTL = 12
UDP_NO_CHECK6_TX = 101
#: No datagram takes longer.
PATIENCE_S = 20
END = b"end"
TTL = 77
#: For control messages.
ROOM = 100


def say(holder: int) -> None:
    print("holder", holder, flush=True)


def serve(one: socket.socket) -> None:
    """Answers each datagram, until the last one."""
    one.settimeout(PATIENCE_S)
    while True:
        data, control, _, source = one.recvmsg(10, ROOM)
        lives = [int.from_bytes(value, sys.byteorder) for _, _, value in control]
        assert lives == [TTL], lives
        one.sendto(data, source)
        if data == END:
            return


def take(one: socket.socket) -> None:
    say(os.getpid())
    serve(one)


def program(fd: int, what: str = "hold") -> list[str]:
    return [sys.executable, "-m", "tests.apps.programs.datagram_passed", what, str(fd)]


def by_rights(holder: NextHolder, one: socket.socket, keeps: bool) -> None:
    kept = one.dup() if keeps else None
    holder.give(one)
    if kept:
        kept.close()


def by_exec(one: socket.socket) -> None:
    one.set_inheritable(True)
    command = program(one.fileno())
    os.execv(command[0], command)


def by_shell(one: socket.socket) -> None:
    """The shell is a program of its own, which does not use the socket."""
    command = ["/bin/sh", "-c", 'exec "$@"', "sh", *program(one.fileno(), "serve")]
    child = subprocess.Popen(command, pass_fds=[one.fileno()])
    one.close()
    say(child.pid)
    assert child.wait() == 0


def by_inetd(one: socket.socket) -> None:
    fd = one.fileno()
    child = subprocess.Popen(program(0, "serve"), stdin=fd, stdout=fd, stderr=fd)
    one.close()
    say(child.pid)
    assert child.wait() == 0


def after(one: socket.socket) -> None:
    """This process holds it again once the program has ended that it has started with it."""
    subprocess.run(["/bin/true"], pass_fds=[one.fileno()], check=True)
    take(one)


def with_option(one: socket.socket) -> None:
    one.setsockopt(socket.SOL_UDP, UDP_NO_CHECK6_TX, 1)
    by_exec(one)


def in_group(one: socket.socket) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    by_exec(one)


def with_instance(one: socket.socket) -> None:
    """The next program could wait on it."""
    instance = select.epoll()
    instance.register(one, select.EPOLLIN)
    os.set_inheritable(instance.fileno(), True)
    by_exec(one)


WAYS = {
    "exec": by_exec,
    "shell": by_shell,
    "inetd": by_inetd,
    "after": after,
    "option": with_option,
    "group": in_group,
    "instance": with_instance,
}


def client(port: int) -> None:
    over = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, TTL)
        one.connect(("127.0.0.1", port))
        one.settimeout(PATIENCE_S)
        number = 0
        while not over.is_set():
            number += 1
            one.send(number.to_bytes(4, "big"))
            assert one.recv(10) == number.to_bytes(4, "big")
        one.send(END)
        assert one.recv(10) == END


def begin(way: str) -> None:
    by_message = way in ("rights", "rights-kept")
    holder = NextHolder(take) if by_message else None
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.setsockopt(socket.IPPROTO_IP, IP_RECVTTL, 1)
    one.bind(("127.0.0.1", 0))
    print("port", one.getsockname()[1], flush=True)
    if holder:
        by_rights(holder, one, way == "rights-kept")
    else:
        WAYS[way](one)


def main() -> None:
    match sys.argv[1:]:
        case ["client", port]:
            client(int(port))
        case ["hold", fd]:
            with socket.socket(fileno=int(fd)) as one:
                take(one)
        case ["serve", fd]:
            with socket.socket(fileno=int(fd)) as one:
                serve(one)
        case [way]:
            begin(way)


if __name__ == "__main__":
    main()
