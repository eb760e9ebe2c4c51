"""Sets and gets values of memcached over UDP, and checks each. Arguments: port, and how many."""

from __future__ import annotations

import socket
import struct
import sys

#: A request that was lost is sent again.
PATIENCE_S = 1.0
TRIES = 30


def ask(client: socket.socket, number: int, command: bytes) -> bytes:
    """The answer to a command; each has a number, which its answer repeats."""
    frame = struct.pack(">HHHH", number % 65536, 0, 1, 0) + command
    for _ in range(TRIES):
        client.send(frame)
        try:
            while True:
                answer = client.recv(2048)
                if struct.unpack(">H", answer[:2])[0] == number % 65536:
                    return answer[8:]
        except (TimeoutError, ConnectionRefusedError):
            # Also while the server starts.
            continue
    raise AssertionError(f"no answer to {command!r}")


def main() -> None:
    port, count = map(int, sys.argv[1:])
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.connect(("127.0.0.1", port))
    client.settimeout(PATIENCE_S)
    for i in range(count):
        value = b"%d" % i * (i % 50 + 1)
        stored = ask(client, 2 * i, b"set key%d 0 0 %d\r\n%s\r\n" % (i % 100, len(value), value))
        assert stored == b"STORED\r\n", stored
        got = ask(client, 2 * i + 1, b"get key%d\r\n" % (i % 100))
        assert got == b"VALUE key%d 0 %d\r\n%s\r\nEND\r\n" % (i % 100, len(value), value), got
    print(f"{count} values", flush=True)


if __name__ == "__main__":
    main()
