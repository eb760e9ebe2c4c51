"""Sends 64 bytes on each connection, then reads the answers, many times: client.py PORT CONNECTIONS ROUNDS.

Prints the time of an exchange in microseconds: of all rounds, and of the second half of them.
"""

import socket
import sys
import time

MESSAGE = b"x" * 64


def main() -> None:
    port, connections, rounds = (int(word) for word in sys.argv[1:])
    ends = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
    for end in ends:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = [time.perf_counter()]
    for _ in range(rounds):
        for end in ends:
            end.sendall(MESSAGE)
        for end in ends:
            if end.recv(len(MESSAGE), socket.MSG_WAITALL) != MESSAGE:
                sys.exit("an answer is wrong")
        times.append(time.perf_counter())
    half = rounds // 2
    for first in (0, half):
        print(round((times[-1] - times[first]) / (rounds - first) / connections * 1e6, 2))


main()
