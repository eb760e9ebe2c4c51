"""A process with UDP sockets, for `test_datagrams.py`: carries out orders, one JSON line each, and answers.

Sockets have names. An answer is a value, or the name of an error. A datagram is its bytes in hexadecimal,
flags, the port from which it comes, and the control messages that name its destination.
"""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import sys
from collections.abc import Callable
from typing import Any

#: Python has no name for it.
IP_PKTINFO = 8
#: For a datagram to arrive that was sent before: mostly microseconds, but a process may have to wait.
PATIENCE_MS = 2
LONG = 1 << 16
INFOS = {(socket.IPPROTO_IP, IP_PKTINFO), (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO)}
sockets: dict[str, socket.socket] = {}


def new(name: str, kind: str) -> int:
    """Its port."""
    family = socket.AF_INET6 if kind == "dual" else socket.AF_INET
    one = socket.socket(family, socket.SOCK_DGRAM)
    if kind == "dual":
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    one.bind(("127.0.0.1" if kind == "bound" else "", 0))
    sockets[name] = one
    return int(one.getsockname()[1])


def address(name: str, ip: str, port: int) -> tuple[str, int]:
    mapped = sockets[name].family == socket.AF_INET6
    return (f"::ffff:{ip}" if mapped else ip), port


def send(name: str, how: str, data: str, ip: str, port: int) -> int:
    one, content, to = sockets[name], bytes.fromhex(data), address(name, ip, port)
    match how:
        case "sendto":
            return one.sendto(content, to)
        case "parts":
            return one.sendmsg([content[:7], content[7:]], [], 0, to)
        case "marked":
            return one.sendmsg([content], [(socket.IPPROTO_IP, socket.IP_TOS, bytes([8, 0, 0, 0]))], 0, to)
        case _:
            return one.send(content)


def receive(name: str, how: str) -> list[Any]:
    one = sockets[name]
    polled = select.poll()
    polled.register(one, select.POLLIN)
    polled.poll(PATIENCE_MS)
    length, flags = (3, 0) if how == "short" else (LONG, socket.MSG_PEEK if how == "peek" else 0)
    data, messages, found, source = one.recvmsg(length, 200, flags | socket.MSG_DONTWAIT)
    infos = [(*message[:2], message[2].hex()) for message in messages if message[:2] in INFOS]
    return [data.hex(), found, source[1] if source else 0, infos]


def drain(name: str, expected: int) -> list[list[Any]]:
    """All that there is; waits for as many."""
    found: list[list[Any]] = []
    polled = select.poll()
    polled.register(sockets[name], select.POLLIN)
    while polled.poll(PATIENCE_MS if len(found) < expected else 0):
        try:
            found.append(receive(name, "whole"))
        except BlockingIOError:
            # There is a state to report, and no datagram: it was shut down.
            break
        except OSError as error:
            found.append([errno.errorcode[error.errno or 0]])
        else:
            if not found[-1][2]:
                # Without a source it is the end, and not a datagram.
                break
    return found


def wait(name: str, how: str) -> bool:
    one = sockets[name]
    match how:
        case "poll":
            polled = select.poll()
            polled.register(one, select.POLLIN)
            return bool(polled.poll(PATIENCE_MS))
        case "epoll":
            with select.epoll() as instance:
                instance.register(one, select.EPOLLIN)
                return bool(instance.poll(PATIENCE_MS / 1000))
        case _:
            return bool(select.select([one], [], [], PATIENCE_MS / 1000)[0])


def connect(name: str, ip: str, port: int) -> None:
    sockets[name].connect(address(name, ip, port))


def inform(name: str, on: bool) -> None:
    one = sockets[name]
    if one.family == socket.AF_INET6:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, on)
    else:
        one.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, on)


def stamp(name: str) -> None:
    sockets[name].setsockopt(socket.SOL_SOCKET, 29, 1)  # SO_TIMESTAMP


def duplicate(name: str) -> None:
    copy = sockets[name].dup()
    sockets[name].close()
    sockets[name] = copy


def shut(name: str, how: int) -> None:
    sockets[name].shutdown(how)


def fork() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def close(name: str) -> None:
    sockets.pop(name).close()


ORDERS: dict[str, Callable[..., Any]] = {
    one.__name__: one
    for one in (new, send, receive, drain, wait, connect, inform, stamp, duplicate, shut, fork, close)
}


def main() -> None:
    for line in sys.stdin:
        order, *arguments = json.loads(line)
        try:
            answer = ORDERS[order](*arguments)
        except OSError as error:
            answer = errno.errorcode[error.errno or 0]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
