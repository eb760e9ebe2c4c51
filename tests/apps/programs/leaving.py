"""One connection to itself after another: `exchange` uses the present one, `leave` takes it off its link."""

from __future__ import annotations

import socket
import sys


def pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    return near, far


def exchange(near: socket.socket, far: socket.socket) -> None:
    for one, other in ((near, far), (far, near)) * 20:
        one.send(b"x")
        assert other.recv(1) == b"x"


def main() -> None:
    pairs = [pair()]
    for line in sys.stdin:
        match line.strip():
            case "exchange":
                exchange(*pairs[-1])
            case "leave":
                pairs[-1][0].send(b"u", socket.MSG_OOB)
                pairs.append(pair())
        print("done", flush=True)


if __name__ == "__main__":
    main()
