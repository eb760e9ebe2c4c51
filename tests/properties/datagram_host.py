"""A process with UDP sockets, for `test_datagrams.py`: carries out orders, one JSON line each, and answers.

Sockets have names. An answer is a value, or the name of an error. A datagram is its bytes in hexadecimal,
flags, the port from which it comes, and its control messages. Times are checked here, and not compared.
"""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

# Python has no names for them.
IP_PKTINFO, IP_RECVTTL, IP_RECVTOS = 8, 12, 13
SOL_UDP, UDP_SEGMENT, UDP_GRO = 17, 103, 104
SO_TIMESTAMP, SO_TIMESTAMPNS, SO_TIMESTAMPING, SO_RXQ_OVFL = 29, 35, 37, 40
#: SOF_TIMESTAMPING_RX_SOFTWARE and SOF_TIMESTAMPING_SOFTWARE.
RECEIVED = 1 << 3 | 1 << 4
#: For a datagram to arrive that was sent before: mostly microseconds, but a process may have to wait.
PATIENCE_MS = int(os.environ.get("NETACC_DATAGRAM_PATIENCE_MS", "2"))
LONG = 1 << 16
#: Of a send that is split.
PIECE = 64
#: Options that ask for control messages with each datagram, with their values.
WANTS: dict[str, list[tuple[int, int, int]]] = {
    "destination": [(socket.IPPROTO_IP, IP_PKTINFO, 1), (socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)],
    "lifetime": [(socket.IPPROTO_IP, IP_RECVTTL, 1), (socket.IPPROTO_IPV6, socket.IPV6_RECVHOPLIMIT, 1)],
    "service": [(socket.IPPROTO_IP, IP_RECVTOS, 1), (socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1)],
    "micros": [(socket.SOL_SOCKET, SO_TIMESTAMP, 1)],
    "nanos": [(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)],
    "times": [(socket.SOL_SOCKET, SO_TIMESTAMPING, RECEIVED)],
    "drops": [(socket.SOL_SOCKET, SO_RXQ_OVFL, 1)],
}
#: Options for the datagrams that a socket sends or receives.
OPTIONS: dict[str, list[tuple[int, int]]] = {
    "lifetime": [
        (socket.IPPROTO_IP, socket.IP_TTL),
        (socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS),
    ],
    "service": [(socket.IPPROTO_IP, socket.IP_TOS), (socket.IPPROTO_IPV6, socket.IPV6_TCLASS)],
    "split": [(SOL_UDP, UDP_SEGMENT)],
    "join": [(SOL_UDP, UDP_GRO)],
}
#: Of a time: a machine may be slow.
OLDEST_S = 60
#: Of sockets that are bound to one.
FOUR, SIX = os.environ["NETACC_DATAGRAM_ADDRESSES"].split()
sockets: dict[str, socket.socket] = {}


def new(name: str, kind: str) -> int:
    """Its port."""
    family = socket.AF_INET6 if kind in ("dual", "six") else socket.AF_INET
    one = socket.socket(family, socket.SOCK_DGRAM)
    if kind == "dual":
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    one.bind(({"bound": FOUR, "six": SIX}.get(kind, ""), 0))
    sockets[name] = one
    return int(one.getsockname()[1])


def address(name: str, ip: str, port: int) -> tuple[str, int]:
    """An IPv4 socket sends to where there is nothing, if the address is an IPv6 one."""
    match sockets[name].family == socket.AF_INET6, ":" in ip:
        case True, False:
            return f"::ffff:{ip}", port
        case False, True:
            return "127.0.0.3", port
        case _:
            return ip, port


def send(name: str, how: str, data: str, ip: str, port: int) -> int:
    one, content, to = sockets[name], bytes.fromhex(data), address(name, ip, port)
    match how:
        case "sendto":
            return one.sendto(content, to)
        case "parts":
            return one.sendmsg([content[:7], content[7:]], [], 0, to)
        case "marked" | "lived":
            four = (socket.IPPROTO_IP, socket.IP_TOS if how == "marked" else socket.IP_TTL)
            six = (socket.IPPROTO_IPV6, socket.IPV6_TCLASS if how == "marked" else socket.IPV6_HOPLIMIT)
            kind = six if to[0] == "::1" else four
            return one.sendmsg([content], [(*kind, bytes([8, 0, 0, 0]))], 0, to)
        case "split":
            return one.sendmsg([content], [(SOL_UDP, UDP_SEGMENT, struct.pack("H", PIECE))], 0, to)
        case _:
            return one.send(content)


def receive(name: str, how: str) -> list[Any]:
    one = sockets[name]
    polled = select.poll()
    polled.register(one, select.POLLIN)
    polled.poll(PATIENCE_MS)
    length, flags = (3, 0) if how == "short" else (LONG, socket.MSG_PEEK if how == "peek" else 0)
    data, messages, found, source = one.recvmsg(length, 500, flags | socket.MSG_DONTWAIT)
    return [data.hex(), found, source[1] if source else 0, [shown(message) for message in messages]]


def shown(message: tuple[int, int, bytes]) -> list[Any]:
    """A control message. Of a time only whether it is one."""
    level, kind, data = message
    if level == socket.SOL_SOCKET and kind in (SO_TIMESTAMP, SO_TIMESTAMPNS, SO_TIMESTAMPING):
        seconds, fraction, *others = struct.unpack(f"{len(data) // 8}q", data)
        is_near = 0 <= time.time() - seconds <= OLDEST_S
        is_whole = fraction < (1_000_000 if kind == SO_TIMESTAMP else 1_000_000_000)
        return [level, kind, is_near and is_whole and not any(others), len(data)]
    return [level, kind, data.hex()]


def parts(datagram: list[Any]) -> list[list[Any]]:
    """Those that the kernel has joined."""
    data, flags, port, messages = datagram
    rest = [message for message in messages if message[:2] != [SOL_UDP, UDP_GRO]]
    if len(rest) == len(messages):
        return [datagram]
    (joined,) = (message[2] for message in messages if message not in rest)
    step = 2 * int.from_bytes(bytes.fromhex(joined), sys.byteorder)
    return [[data[at : at + step], flags, port, rest] for at in range(0, len(data), step)]


def drain(name: str, expected: int) -> list[list[Any]]:
    """All that there is; waits for as many."""
    found: list[list[Any]] = []
    polled = select.poll()
    polled.register(sockets[name], select.POLLIN)
    while polled.poll(PATIENCE_MS if len(found) < expected else 0):
        try:
            found += parts(receive(name, "whole"))
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


def inform(name: str, what: str, on: bool) -> None:
    for level, option, value in WANTS[what]:
        set_option(name, level, option, value if on else 0)


def option(name: str, what: str, value: int) -> None:
    for level, number in OPTIONS[what]:
        set_option(name, level, number, value)


def set_option(name: str, level: int, number: int, value: int) -> None:
    one = sockets[name]
    if level != socket.IPPROTO_IPV6 or one.family == socket.AF_INET6:
        one.setsockopt(level, number, value)


def duplicate(name: str) -> None:
    copy = sockets[name].dup()
    sockets[name].close()
    sockets[name] = copy


def shut(name: str, how: int) -> None:
    sockets[name].shutdown(how)


def fork(name: str, how: str) -> list[list[Any]]:
    """Another process with the sockets. What it has received, if that is what it is for."""
    source, sink = os.pipe()
    child = os.fork()
    if how == "goes on" and child:
        # The child is the host from now on.
        os._exit(0)
    if child == 0 and how != "goes on":
        os.close(source)
        with os.fdopen(sink, "w", encoding="utf-8") as answer:
            json.dump(drain(name, 1 << 30) if how == "receives" else [], answer)
        os._exit(0)
    os.close(sink)
    with os.fdopen(source, encoding="utf-8") as answer:
        found = answer.read()
    if child:
        os.waitpid(child, 0)
    return list(json.loads(found or "[]"))


def close(name: str) -> None:
    sockets.pop(name).close()


ORDERS: dict[str, Callable[..., Any]] = {
    one.__name__: one
    for one in (new, send, receive, drain, wait, connect, inform, option, duplicate, shut, fork, close)
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
