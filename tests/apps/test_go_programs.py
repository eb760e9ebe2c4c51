"""Debian's servers in Go: NATS, etcd and Caddy. They have C code, so the library changes their Go code."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.apps.lib import counters
from tests.apps.lib.data import blob, sha256
from tests.apps.lib.lab import Lab
from tests.apps.lib.modes import Mode
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.results import Results

CONNECTIONS = 4
PROGRAMS = "tests.apps.programs"
FILES = {f"small-{n}": 1 + 700 * n for n in range(20)} | {"large": 8 << 20}


@dataclass(frozen=True)
class Pair:
    """A server, and its client: one of our own."""

    name: str
    server: list[str | Path]
    client: list[str | Path]
    port: int
    #: Of the bytes that go over links.
    share: float
    #: The server has connections to itself, which are on links if only the server is accelerated, too.
    is_own_client: bool = False

    def compare(self, mode: Mode, lab: Lab, results: Results) -> None:
        server = lab.start(self.name, self.server, accelerated=mode.server)
        wait_listening(self.port, server)
        client, report = lab.client(f"{self.name}-client", self.client, accelerated=mode.client)
        payload = report.payload_bytes
        if self.is_own_client and mode is Mode.SERVER_ONLY:
            seen = counters.totals(server)
            assert seen.all_bytes >= payload and seen.reasons.get("peer-not-accelerated", 0) >= CONNECTIONS
        else:
            seen = lab.judge(mode, server=server, client=client, payload_bytes=payload, share=self.share)
        results.add(
            self.name,
            mode,
            seen,
            requests=report.requests,
            payload_bytes=payload,
            seconds=report.seconds,
        )
        lab.dismiss(client)


def test_nats(mode: Mode, lab: Lab, results: Results) -> None:
    port = free_port()
    server: list[str | Path] = ["/usr/sbin/nats-server", "-a", "127.0.0.1", "-p", str(port)]
    client: list[str | Path] = [
        sys.executable,
        "-m",
        f"{PROGRAMS}.nats_client",
        str(port),
        str(CONNECTIONS),
        "400",
    ]
    Pair("nats-server", server, client, port, share=0.8).compare(mode, lab, results)


def test_etcd(mode: Mode, lab: Lab, results: Results) -> None:
    port, peers = free_port(), free_port()
    url, peer_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"
    server: list[str | Path] = [
        *("etcd", "--data-dir", lab.folder / "etcd", "--log-level", "warn"),
        *("--listen-client-urls", url, "--advertise-client-urls", url),
        *("--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url),
        *("--initial-cluster", f"default={peer_url}"),
    ]
    client: list[str | Path] = [
        sys.executable,
        "-m",
        f"{PROGRAMS}.etcd_client",
        str(port),
        str(CONNECTIONS),
        "50",
    ]
    Pair("etcd", server, client, port, share=0.5, is_own_client=True).compare(mode, lab, results)


def test_caddy(mode: Mode, lab: Lab, results: Results) -> None:
    served = lab.folder / "served"
    served.mkdir()
    digests = {}
    for number, (name, size) in enumerate(FILES.items()):
        data = blob(size, number)
        (served / name).write_bytes(data)
        digests[name] = sha256(data)
    manifest = lab.folder / "manifest.json"
    manifest.write_text(json.dumps(digests))
    port = free_port()
    site = lab.folder / "Caddyfile"
    site.write_text(
        "{\n admin off\n auto_https off\n}\n"
        f"http://127.0.0.1:{port} {{\n root * {served}\n file_server\n}}\n"
    )
    server: list[str | Path] = ["caddy", "run", "--adapter", "caddyfile", "--config", site]
    client: list[str | Path] = [
        *(sys.executable, "-m", f"{PROGRAMS}.http_client", str(port), manifest, str(CONNECTIONS)),
    ]
    Pair("caddy", server, client, port, share=0.9).compare(mode, lab, results)
