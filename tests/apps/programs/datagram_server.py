"""A UDP server that sends each datagram back to where it came from, and waits in the way that it is told.

It ends with a datagram that says END, and prints how many it has sent back.
"""

from __future__ import annotations

import asyncio
import select
import socket
import sys
import threading
from collections.abc import Callable

END = b"END"
LONGEST = 65_535


class Echo:
    """The server's socket."""

    def __init__(self, address: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_DGRAM)
        self.socket.bind((address, port))
        self.answered = 0

    def answer(self) -> bool:
        """Receive and answer one datagram; false at the end."""
        data, source = self.socket.recvfrom(LONGEST)
        return self.send_back(data, source)

    def send_back(self, data: bytes, source: tuple[str, int]) -> bool:
        self.socket.sendto(data, source)
        self.answered += 1
        return data != END

    def answer_all(self) -> bool:
        """Answer until there is nothing more."""
        try:
            while True:
                if not self.answer():
                    return False
        except BlockingIOError:
            return True


def blocking(echo: Echo) -> None:
    while echo.answer():
        pass


def message(echo: Echo) -> None:
    """Into two buffers, the first of which is short."""
    first, second = bytearray(3), bytearray(LONGEST)
    going = True
    while going:
        count, _, flags, source = echo.socket.recvmsg_into([first, second])
        assert flags == 0
        going = echo.send_back(bytes(first + second)[:count], source)


def timed(echo: Echo) -> None:
    echo.socket.settimeout(100)
    blocking(echo)


def peeking(echo: Echo) -> None:
    going = True
    while going:
        short, source = echo.socket.recvfrom(2, socket.MSG_PEEK)
        whole, again = echo.socket.recvfrom(LONGEST)
        assert whole[:2] == short and source == again
        going = echo.send_back(whole, source)


def in_select(echo: Echo) -> None:
    while True:
        select.select([echo.socket], [], [])
        if not echo.answer():
            return


def in_poll(echo: Echo) -> None:
    poll = select.poll()
    poll.register(echo.socket, select.POLLIN)
    echo.socket.setblocking(False)
    while True:
        poll.poll()
        if not echo.answer_all():
            return


def with_epoll(echo: Echo, events: int, answer: Callable[[], bool]) -> None:
    epoll = select.epoll()
    epoll.register(echo.socket, events)
    echo.socket.setblocking(False)
    while True:
        for _, found in epoll.poll():
            assert found == select.EPOLLIN
            if not answer():
                return
        if events & select.EPOLLONESHOT:
            epoll.modify(echo.socket, events)


def level(echo: Echo) -> None:
    with_epoll(echo, select.EPOLLIN, echo.answer)


def edge(echo: Echo) -> None:
    with_epoll(echo, select.EPOLLIN | select.EPOLLET, echo.answer_all)


def once(echo: Echo) -> None:
    with_epoll(echo, select.EPOLLIN | select.EPOLLONESHOT, echo.answer_all)


def nested(echo: Echo) -> None:
    inner, outer = select.epoll(), select.epoll()
    inner.register(echo.socket, select.EPOLLIN)
    outer.register(inner.fileno(), select.EPOLLIN)
    while True:
        outer.poll()
        for _ in inner.poll(0):
            if not echo.answer():
                return


def threads(echo: Echo) -> None:
    """Two threads receive. Their answers may overtake each other."""
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            going = echo.answer()
            if not going:
                ended.set()
                # Wakes the other one.
                echo.socket.sendto(b"", echo.socket.getsockname())

    both = [threading.Thread(target=serve) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()


class Protocol(asyncio.DatagramProtocol):
    def __init__(self, echo: Echo, ended: asyncio.Future[None]) -> None:
        self.echo = echo
        self.ended = ended

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if not self.echo.send_back(data, addr):
            self.ended.set_result(None)


async def serve(echo: Echo) -> None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    transport, _ = await loop.create_datagram_endpoint(lambda: Protocol(echo, ended), sock=echo.socket)
    await ended
    transport.close()


def with_asyncio(echo: Echo) -> None:
    asyncio.run(serve(echo))


WAYS: dict[str, Callable[[Echo], None]] = {
    "asyncio": with_asyncio,
    "blocking": blocking,
    "edge": edge,
    "level": level,
    "message": message,
    "nested": nested,
    "once": once,
    "peeking": peeking,
    "poll": in_poll,
    "select": in_select,
    "threads": threads,
    "timed": timed,
}


def main() -> None:
    address, port, way = sys.argv[1:]
    echo = Echo(address, int(port))
    print("ready", flush=True)
    WAYS[way](echo)
    print(f"answered {echo.answered}", flush=True)


if __name__ == "__main__":
    main()
