"""The results of calls on a connection after it has ended:
`python -m tests.apps.programs.ended ENDING ROLE ROUNDS`.

For each observer (a call) a fresh connection is ended in the way `ENDING`. The observer is called first, then
all the others, because an error is reported once and some calls change the state. Each connection is one line
of output. `ROLE` is the side that is observed: `client` or `server`. The peer is another process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import socket
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fcntl import ioctl

#: Long for anything on one machine, short for a test.
PATIENCE = 10.0
#: How long the observed side waits for the kernel to leave a transient state, such as FIN_WAIT1.
TRANSIENT = 0.25
#: FIN_WAIT1, LAST_ACK, CLOSING: the peer's acknowledgement is under way.
TRANSIENT_STATES = (4, 9, 11)
CLOSED_STATE = 7
#: More bytes than any step writes at once, fills excepted.
MANY = 40_000
SYS_GETSOCKOPT = 55
SYS_IOCTL = 16
#: The status with which a peer ends whose observed side has ended.
NO_MORE = 77

# Its own functions, past any library that is loaded before it.
LIBC = ctypes.CDLL("libc.so.6", use_errno=True)
WATCHED = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLPRI


def kernel_info(fd: int) -> bytes:
    """TCP_INFO by a system call that no library sees."""
    info = ctypes.create_string_buffer(256)
    size = ctypes.c_uint32(256)
    LIBC.syscall(SYS_GETSOCKOPT, fd, socket.IPPROTO_TCP, socket.TCP_INFO, info, ctypes.byref(size))
    return info.raw


def kernel_carried(fd: int) -> int:
    """Bytes that the kernel has sent and received for a socket."""
    info = kernel_info(fd)
    (received,) = struct.unpack_from("=Q", info, 128)
    sent, again = struct.unpack_from("=QQ", info, 200)
    return int(received + sent - again)


def kernel_unacknowledged(fd: int) -> int:
    number = ctypes.c_int()
    LIBC.syscall(SYS_IOCTL, fd, termios.TIOCOUTQ, ctypes.byref(number))
    return number.value


class Pipe:
    """Lines between two processes, without a buffer that a fork would double."""

    def __init__(self, reads: int, writes: int) -> None:
        self.reads, self.writes = reads, writes

    def send_line(self, text: str) -> None:
        os.write(self.writes, text.encode() + b"\n")

    def receive_line(self) -> str:
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self.reads, 1)
            if not byte:
                raise EOFError(line)
            line += byte
        return line.decode().strip()


# ---- the peer ----------------------------------------------------------------------------------------------


def serve(pipe: Pipe) -> None:
    """Obeys the observed process until it is killed, or ordered to exit."""
    listener = socket.create_server(("127.0.0.1", 0))
    pipe.send_line(f"{os.getpid()} {listener.getsockname()[1]}")
    connection: socket.socket | None = None
    while True:
        command, *arguments = pipe.receive_line().split()
        if command == "exit":
            os._exit(0)
        elif command == "accept":
            connection, _ = listener.accept()
        elif command == "connect":
            connection = socket.create_connection(("127.0.0.1", int(arguments[0])))
        else:
            assert connection is not None
            ACTIONS[command](connection)
        if command != "echo":
            pipe.send_line("done")


def echo(connection: socket.socket) -> None:
    """Sends back all bytes until an E comes."""
    while data := connection.recv(100):
        connection.sendall(data)
        if data.endswith(b"E"):
            break


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


ACTIONS: dict[str, Callable[[socket.socket], object]] = {
    "echo": echo,
    "close": lambda c: c.close(),
    "reset": reset,
    "shut_rd": lambda c: c.shutdown(socket.SHUT_RD),
    "shut_wr": lambda c: c.shutdown(socket.SHUT_WR),
    "shut_both": lambda c: c.shutdown(socket.SHUT_RDWR),
    "write": lambda c: c.send(b"p" * 20, socket.MSG_NOSIGNAL),
    "read": lambda c: c.recv(100),
}


def start_peers(pipe: Pipe) -> None:
    """Starts the peer again each time it has ended; has no sockets itself."""
    while True:
        child = os.fork()
        if child == 0:
            try:
                serve(pipe)
            except EOFError:
                os._exit(NO_MORE)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == NO_MORE:
            os._exit(0)
        pipe.send_line("ended")


# ---- the observed side ------------------------------------------------------------------------------------


@dataclass
class Side:
    """The observed side of a connection, and its means to direct the other."""

    pipe: Pipe
    pid: int = 0
    port: int = 0
    connection: socket.socket | None = None
    watcher: select.epoll | None = None
    peer_lives: bool = False
    #: The kernel acknowledges bytes later, and may have reset the connection before.
    race_of_acknowledgement: bool = False

    @property
    def s(self) -> socket.socket:
        assert self.connection is not None
        return self.connection

    def peer(self, *commands: str) -> None:
        for command in commands:
            self.pipe.send_line(command)
            assert self.pipe.receive_line() == "done"

    def end_peer(self, how: str) -> None:
        # Bytes that were unread on a link are sent again in the kernel as the process ends.
        self.race_of_acknowledgement = how == "exit"
        if how == "kill":
            os.kill(self.pid, signal.SIGKILL)
        else:
            self.pipe.send_line("exit")
        assert self.pipe.receive_line() == "ended"
        self.peer_lives = False
        # A library may get the event later than the kernel. `poll` waits for it.
        poll = select.poll()
        poll.register(self.s, select.POLLRDHUP)
        assert poll.poll(PATIENCE * 1000)

    def open(self, role: str, rounds: int) -> None:
        if not self.peer_lives:
            self.pid, self.port = map(int, self.pipe.receive_line().split())
            self.peer_lives = True
        if role == "client":
            self.connection = socket.create_connection(("127.0.0.1", self.port))
            self.peer("accept")
        else:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                self.peer(f"connect {listener.getsockname()[1]}")
                self.connection, _ = listener.accept()
        self.race_of_acknowledgement = False
        self.warm(rounds)
        self.s.setblocking(False)
        self.watcher = select.epoll()
        self.watcher.register(self.s, WATCHED)

    def warm(self, rounds: int) -> None:
        """Uses the connection until both directions are on a link; at most so often."""
        self.s.settimeout(PATIENCE)
        self.pipe.send_line("echo")
        still = 0
        for _ in range(rounds):
            before = kernel_carried(self.s.fileno())
            self.round_trip(b"w")
            still = still + 1 if kernel_carried(self.s.fileno()) == before else 0
            if still == 2:
                break
            time.sleep(0.0005)
        else:
            assert rounds == 0, "no link"
        self.round_trip(b"E")

    def round_trip(self, byte: bytes) -> None:
        self.s.sendall(byte)
        assert self.s.recv(1) == byte

    def wait_until_idle(self) -> None:
        """Lets the peer's acknowledgements arrive, which kernels may delay."""
        until = time.monotonic() + TRANSIENT
        while time.monotonic() < until:
            state = kernel_info(self.s.fileno())[0]
            transient = state in TRANSIENT_STATES
            if state == CLOSED_STATE or (not transient and kernel_unacknowledged(self.s.fileno()) == 0):
                return
            time.sleep(0.001)

    def send(self, length: int) -> None:
        self.s.send(b"y" * length, socket.MSG_NOSIGNAL)

    def fill(self) -> None:
        try:
            while True:
                self.send(65536)
        except BlockingIOError:
            pass

    def close(self) -> None:
        assert self.watcher is not None
        self.watcher.close()
        self.s.close()


def shut_wr(side: Side) -> None:
    side.s.shutdown(socket.SHUT_WR)


def shut_rd(side: Side) -> None:
    side.s.shutdown(socket.SHUT_RD)


def shut_both(side: Side) -> None:
    side.s.shutdown(socket.SHUT_RDWR)


def peer(*commands: str) -> Callable[[Side], None]:
    return lambda side: side.peer(*commands)


def dies(how: str) -> Callable[[Side], None]:
    return lambda side: side.end_peer(how)


def sends(length: int) -> Callable[[Side], None]:
    return lambda side: side.send(length)


#: The operations of both sides, in order.
ENDINGS: dict[str, tuple[Callable[[Side], None], ...]] = {
    # The peer ends first.
    "closed": (peer("close"),),
    "closed_unread": (sends(5), peer("close")),
    "reset": (peer("reset"),),
    "half_closed": (peer("shut_wr"),),
    "half_closed_then_closed": (peer("shut_wr", "close"),),
    "half_closed_then_reset": (peer("shut_wr", "reset"),),
    "half_closed_then_closed_unread": (peer("shut_wr"), sends(5), peer("close")),
    "reads_no_more": (peer("shut_rd"),),
    "reads_no_more_and_written_to": (peer("shut_rd"), sends(5)),
    "shut_by_peer": (peer("shut_both"),),
    "shut_by_peer_and_written_to": (peer("shut_both"), sends(7)),
    # Something of the peer's is unread.
    "bytes_then_closed": (peer("write", "close"),),
    "bytes_then_closed_unread": (sends(5), peer("write", "close")),
    "bytes_then_reset": (peer("write", "reset"),),
    "bytes_then_closed_and_written_to": (peer("write", "close"), sends(7)),
    # A write of ours is answered with a reset.
    "closed_and_written_to": (peer("close"), sends(7)),
    "closed_and_written_to_at_length": (peer("close"), sends(20_000)),
    "closed_after_writing": (Side.fill, peer("close")),
    "reset_after_writing": (Side.fill, peer("reset")),
    # Both, or we alone.
    "we_end": (shut_wr,),
    "we_end_then_closed": (shut_wr, peer("close")),
    "we_end_then_closed_unread": (sends(5), shut_wr, peer("close")),
    "we_end_then_reset": (shut_wr, peer("reset")),
    "we_end_then_half_closed": (shut_wr, peer("shut_wr")),
    "both_end_then_reset": (shut_wr, peer("shut_wr", "reset")),
    "closed_then_we_end": (peer("close"), shut_wr),
    "half_closed_then_we_end": (peer("shut_wr"), shut_wr),
    "bytes_then_closed_then_we_end": (peer("write", "close"), shut_wr),
    "we_read_no_more": (shut_rd,),
    "we_read_no_more_and_are_written_to": (shut_rd, peer("write")),
    "we_read_no_more_then_closed": (shut_rd, peer("close")),
    "we_shut_both": (shut_both,),
    "we_shut_both_then_closed": (shut_both, peer("close")),
    "we_shut_both_and_are_written_to": (shut_both, peer("write")),
    "bytes_then_we_shut_both": (peer("write"), shut_both),
    # The peer's process ends.
    "exited": (dies("exit"),),
    "exited_unread": (sends(5), dies("exit")),
    "bytes_then_exited": (peer("write"), dies("exit")),
    "killed": (dies("kill"),),
    "killed_unread": (sends(5), dies("kill")),
    "bytes_then_killed": (peer("write"), dies("kill")),
    "bytes_then_killed_unread": (sends(5), peer("write"), dies("kill")),
    "half_closed_then_killed": (peer("shut_wr"), dies("kill")),
    "we_end_then_killed": (shut_wr, dies("kill")),
    "killed_and_written_to": (dies("kill"), sends(7)),
}


def outcome(call: Callable[[], object]) -> str:
    try:
        result = call()
    except OSError as error:
        assert error.errno is not None
        return errno.errorcode[error.errno]
    return "ok" if result is None else str(result)


def events(mask: int) -> str:
    names = {"in": 1, "pri": 2, "out": 4, "err": 8, "hup": 16, "rdhup": 0x2000}
    return "+".join(name for name, bit in names.items() if mask & bit) or "none"


def polled(side: Side) -> str:
    poll = select.poll()
    poll.register(side.s, WATCHED)
    return events(sum(mask for _, mask in poll.poll(0)))


def fresh_epoll(side: Side) -> str:
    with select.epoll() as epoll:
        epoll.register(side.s, WATCHED)
        return events(sum(mask for _, mask in epoll.poll(0)))


def old_epoll(side: Side) -> str:
    assert side.watcher is not None
    return events(sum(mask for _, mask in side.watcher.poll(0)))


def selected(side: Side) -> str:
    sets = select.select([side.s], [side.s], [side.s], 0)
    return "+".join(name for name, ready in zip(("r", "w", "x"), sets, strict=True) if ready) or "none"


def queued(side: Side, request: int) -> int | str:
    if side.race_of_acknowledgement:
        return "any"
    (count,) = struct.unpack("i", ioctl(side.s, request, b"\0\0\0\0"))
    # How much waits for room depends on the sizes of buffers.
    return "many" if count > MANY else int(count)


def named(query: Callable[[], tuple[str, int]]) -> str:
    return "same" if query()[0] == "127.0.0.1" else "other"


#: Each is also called first, on a connection of its own.
OBSERVERS: dict[str, Callable[[Side], object]] = {
    "getpeername": lambda e: named(e.s.getpeername),
    "getsockname": lambda e: named(e.s.getsockname),
    "state": lambda e: e.s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0],
    "poll": polled,
    "epoll": fresh_epoll,
    "old_epoll": old_epoll,
    "select": selected,
    "inq": lambda e: queued(e, termios.FIONREAD),
    "outq": lambda e: queued(e, termios.TIOCOUTQ),
    "unsent": lambda e: queued(e, 0x894B),
    "connect": lambda e: e.s.connect(("127.0.0.1", e.port)),
    "nodelay": lambda e: e.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    "keepalive": lambda e: e.s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    "peek": lambda e: len(e.s.recv(10, socket.MSG_PEEK)),
    "send_nothing": lambda e: e.s.send(b"", socket.MSG_NOSIGNAL),
    "error": lambda e: errno.errorcode.get(e.s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), 0),
    "recv": lambda e: len(e.s.recv(10)),
    "send": lambda e: e.s.send(b"y" * 3, socket.MSG_NOSIGNAL),
    "shut_rd": lambda e: e.s.shutdown(socket.SHUT_RD),
    "shut_wr": lambda e: e.s.shutdown(socket.SHUT_WR),
    "shut_both": lambda e: e.s.shutdown(socket.SHUT_RDWR),
}


def observed(side: Side, names: list[str]) -> Iterator[str]:
    for name in names:
        yield f"{name}={outcome(lambda name=name: OBSERVERS[name](side))}"  # type: ignore[misc]
        side.wait_until_idle()


def main(ending: str, role: str, rounds: int) -> None:
    to_peer, from_peer = os.pipe(), os.pipe()
    starter = os.fork()
    if starter == 0:
        os.close(to_peer[1])
        start_peers(Pipe(to_peer[0], from_peer[1]))
    os.close(to_peer[0])
    side = Side(Pipe(from_peer[0], to_peer[1]))
    # Each role sees the others in another order.
    order = list(OBSERVERS) if role == "client" else list(OBSERVERS)[::-1]
    for first in OBSERVERS:
        side.open(role, rounds)
        for step in ENDINGS[ending]:
            step(side)
            side.wait_until_idle()
        names = [first, *(name for name in order if name != first), "state", "getpeername", "poll"]
        print(" ".join(observed(side, names)), flush=True)
        side.close()
    os.close(to_peer[1])
    os.waitpid(starter, 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
