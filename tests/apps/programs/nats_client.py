"""A client of a NATS server: connections that subscribe to what they publish, every message verified.

nats_client.py PORT CONNECTIONS MESSAGES
"""

from __future__ import annotations

import asyncio
import random
import sys

from tests.apps.lib.client import Stopwatch

MOST_BYTES = 16 << 10


async def converse(port: int, number: int, messages: int, watch: Stopwatch) -> None:
    rng = random.Random(number)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert (await reader.readline()).startswith(b"INFO "), "the server greets"
    writer.write(b'CONNECT {"verbose":false,"pedantic":true}\r\nSUB own.%d 1\r\nPING\r\n' % number)
    assert await reader.readline() == b"PONG\r\n"
    for _ in range(messages):
        message = rng.randbytes(rng.randrange(1, MOST_BYTES))
        writer.write(b"PUB own.%d %d\r\n%b\r\n" % (number, len(message), message))
        await writer.drain()
        assert await reader.readline() == b"MSG own.%d 1 %d\r\n" % (number, len(message))
        answer = await reader.readexactly(len(message) + 2)
        assert answer == message + b"\r\n", "a message differs from the published one"
        watch.count(2 * len(message))
    writer.close()
    await writer.wait_closed()


async def main(port: int, connections: int, messages: int) -> None:
    watch = Stopwatch()
    await asyncio.gather(*(converse(port, number, messages, watch) for number in range(connections)))
    watch.finish()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
