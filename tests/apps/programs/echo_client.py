"""An asyncio client of the echo server: many connections at once, every byte verified."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import random

from tests.apps.lib.client import Stopwatch

PING_BYTES = 64


async def ping_pong(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random, times: int
) -> None:
    """Small requests, one at a time."""
    for _ in range(times):
        message = rng.randbytes(PING_BYTES)
        writer.write(message)
        answer = await reader.readexactly(PING_BYTES)
        assert answer == message, "an answer differs from its message"


async def bulk(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random, size: int
) -> None:
    """A large stream both ways at once, in pieces of any size, then a half-close and a clean end."""
    sent, received = hashlib.sha256(), hashlib.sha256()

    async def send() -> None:
        left = size
        while left:
            piece = rng.randbytes(min(left, rng.choice((1, 100, 4096, 65536, 262144))))
            sent.update(piece)
            writer.write(piece)
            await writer.drain()
            left -= len(piece)
        writer.write_eof()

    async def receive() -> int:
        total = 0
        while data := await reader.read(131072):
            received.update(data)
            total += len(data)
        return total

    _, total = await asyncio.gather(send(), receive())
    assert total == size, f"{size} bytes sent, {total} came back"
    assert sent.digest() == received.digest(), "the checksums differ"


async def converse(
    options: argparse.Namespace, number: int, all_open: asyncio.Barrier, watch: Stopwatch
) -> None:
    rng = random.Random(number)
    reader, writer = await asyncio.open_connection(options.host, options.port)
    await all_open.wait()
    await ping_pong(reader, writer, rng, options.pings)
    await bulk(reader, writer, rng, options.size)
    watch.count(2 * (options.pings * PING_BYTES + options.size), requests=options.pings + 1)
    writer.close()
    await writer.wait_closed()


async def main(options: argparse.Namespace) -> None:
    watch = Stopwatch()
    all_open = asyncio.Barrier(options.connections)
    await asyncio.gather(*(converse(options, n, all_open, watch) for n in range(options.connections)))
    watch.finish()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--pings", type=int, default=100)
    parser.add_argument("--size", type=int, default=1 << 20)
    asyncio.run(main(parser.parse_args()))
