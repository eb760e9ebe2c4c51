"""Many connections that one thread watches, and one that another thread then watches by its own instance.

    python -m tests.apps.programs.crowded server PORT
    python -m tests.apps.programs.crowded client PORT CONNECTIONS

The client opens its connections, exchanges two bytes on each, and says "exchanged". At a line it exchanges
another on each, and hands the last one over to the server's other thread: from then on the first one waits
for nothing. It says "answered" once that connection answers again.
"""

from __future__ import annotations

import select
import socket
import sys
import threading

ROUNDS = 2
HANDED_OVER = b"h"


def serve(port: int) -> None:
    with socket.create_server(("127.0.0.1", port), backlog=1024) as listener, select.epoll() as instance:
        instance.register(listener, select.EPOLLIN)
        connections: dict[int, socket.socket] = {}
        while True:
            for fd, _ in instance.poll():
                if fd == listener.fileno():
                    peer, _ = listener.accept()
                    connections[peer.fileno()] = peer
                    instance.register(peer, select.EPOLLIN)
                    continue
                data = connections[fd].recv(1)
                connections[fd].sendall(data)
                if data == HANDED_OVER:
                    other = threading.Thread(target=answer_alone, args=(connections[fd],))
                    other.start()
                    # No thread waits on this instance any more.
                    other.join()


def answer_alone(peer: socket.socket) -> None:
    with select.epoll() as instance:
        instance.register(peer, select.EPOLLIN)
        while instance.poll():
            peer.sendall(peer.recv(1))


def client(port: int, count: int) -> None:
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]

    def exchange(connection: socket.socket, byte: bytes) -> None:
        connection.sendall(byte)
        assert connection.recv(1) == byte

    for _ in range(ROUNDS):
        for connection in connections:
            exchange(connection, b"x")
    print("exchanged", flush=True)
    for _ in sys.stdin:
        for connection in connections:
            exchange(connection, b"x")
        exchange(connections[-1], HANDED_OVER)
        exchange(connections[-1], b"a")
        print("answered", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve(int(sys.argv[2]))
    else:
        client(int(sys.argv[2]), int(sys.argv[3]))
