"""An asyncio server that returns what it gets, and closes when the client has closed its half."""

from __future__ import annotations

import asyncio
import sys


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except ConnectionError:
        pass  # the client's own business
    finally:
        writer.close()


async def main(port: int, host: str) -> None:
    server = await asyncio.start_server(echo, host, port, backlog=512)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1"))
