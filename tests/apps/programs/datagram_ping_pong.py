"""Round trips of two UDP sockets whose holders block in `recv`: `datagram_ping_pong.py COUNT`."""

from __future__ import annotations

import socket
import subprocess
import sys


def answer(port: int, count: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect(("127.0.0.1", port))
        for _ in range(count):
            one.send(b"x")
            one.recv(1)


def main() -> None:
    match sys.argv[1:]:
        case [count]:
            one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            one.bind(("127.0.0.1", 0))
            words = [
                sys.executable,
                "-m",
                "tests.apps.programs.datagram_ping_pong",
                str(one.getsockname()[1]),
            ]
            other = subprocess.Popen([*words, count])
            for _ in range(int(count)):
                _, source = one.recvfrom(1)
                one.sendto(b"x", source)
            assert other.wait() == 0
        case [port, count]:
            answer(int(port), int(count))


if __name__ == "__main__":
    main()
