"""HTTP/3 over QUIC by aioquic, both ends. Arguments: `serve CERTIFICATE KEY PORT`, or `ask PORT REQUESTS`.

The server answers with the body that it is sent. The client has several requests under way, and checks each
answer.
"""

from __future__ import annotations

import asyncio
import signal
import ssl
import sys
from abc import ABC, abstractmethod

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import serve
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, H3Event, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent

AT_ONCE = 8
LENGTHS = [1, 100, 1_000, 10_000, 100_000]


class Http(QuicConnectionProtocol, ABC):
    """A connection; subclasses handle what comes on it."""

    _http: H3Connection | None = None

    @property
    def http(self) -> H3Connection:
        if self._http is None:
            self._http = H3Connection(self._quic)
        return self._http

    def quic_event_received(self, event: QuicEvent) -> None:
        for found in self.http.handle_event(event):
            self.received(found)

    @abstractmethod
    def received(self, event: H3Event) -> None:
        """Something has come."""


class Echo(Http):
    """The server's."""

    def received(self, event: H3Event) -> None:
        if isinstance(event, HeadersReceived):
            self.http.send_headers(event.stream_id, [(b":status", b"200")])
        elif isinstance(event, DataReceived):
            self.http.send_data(event.stream_id, event.data, event.stream_ended)
        self.transmit()


class Client(Http):
    """The client's."""

    def begin(self) -> None:
        self.bodies: dict[int, bytearray] = {}
        self.waiting: dict[int, asyncio.Future[bytes]] = {}

    async def ask(self, body: bytes) -> bytes:
        stream = self._quic.get_next_available_stream_id()
        headers = [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", b"here"), (b":path", b"/")]
        self.http.send_headers(stream, headers)
        self.http.send_data(stream, body, end_stream=True)
        self.bodies[stream] = bytearray()
        self.waiting[stream] = asyncio.get_running_loop().create_future()
        self.transmit()
        return await self.waiting[stream]

    def received(self, event: H3Event) -> None:
        if isinstance(event, DataReceived):
            self.bodies[event.stream_id] += event.data
            if event.stream_ended:
                self.waiting.pop(event.stream_id).set_result(bytes(self.bodies.pop(event.stream_id)))


async def run_server(certificate: str, key: str, port: int) -> None:
    configuration = QuicConfiguration(alpn_protocols=H3_ALPN, is_client=False)
    configuration.load_cert_chain(certificate, key)
    await serve("127.0.0.1", port, configuration=configuration, create_protocol=Echo)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    print("ready", flush=True)
    await ended.wait()


async def run_client(port: int, requests: int) -> None:
    configuration = QuicConfiguration(alpn_protocols=H3_ALPN, is_client=True, verify_mode=ssl.CERT_NONE)
    async with connect("127.0.0.1", port, configuration=configuration, create_protocol=Client) as client:
        assert isinstance(client, Client)
        client.begin()
        for first in range(0, requests, AT_ONCE):
            numbers = range(first, first + AT_ONCE)
            bodies = [number.to_bytes(4, "big") * LENGTHS[number % len(LENGTHS)] for number in numbers]
            answers = await asyncio.gather(*map(client.ask, bodies))
            assert answers == bodies
    print(f"{requests} answers", flush=True)


def main() -> None:
    match sys.argv[1:]:
        case ["serve", certificate, key, port]:
            asyncio.run(run_server(certificate, key, int(port)))
        case ["ask", port, requests]:
            asyncio.run(run_client(int(port), int(requests)))


if __name__ == "__main__":
    main()
