"""Debian's servers in Go. They have C code, so the library changes their Go code."""

from __future__ import annotations

import gzip
import http.client
import json
import sys
import time
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.apps.lib import counters
from tests.apps.lib.data import blob, sha256
from tests.apps.lib.lab import Lab
from tests.apps.lib.modes import Mode
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.results import Results

CONNECTIONS = 4
PROGRAMS = "tests.apps.programs"
#: Of Prometheus, from its exporter.
SCRAPES = 30
#: Two large ones, because the first may be on its way before the connection has a link: on a busy machine it
#: has one after some dozens of the small ones.
FILES = {f"small-{n}": 1 + 140 * n for n in range(100)} | {"large": 8 << 20, "larger": 16 << 20}


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


def answer_of(port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    assert response.status == http.client.OK, answer
    return answer


@dataclass
class Scraping:
    """An exporter of the machine's state, and a Prometheus that scrapes it: a mode's server and client."""

    mode: Mode
    lab: Lab

    def __post_init__(self) -> None:
        self.began = time.perf_counter()
        port, self.own = free_port(), free_port()
        words: list[str | Path] = [
            *("prometheus-node-exporter", f"--web.listen-address=127.0.0.1:{port}"),
            *("--collector.disable-defaults", "--collector.netstat", "--collector.meminfo"),
        ]
        self.exporter = self.lab.start("exporter", words, accelerated=self.mode.server)
        wait_listening(port, self.exporter)
        self.page_bytes = len(answer_of(port, "/metrics"))
        config = self.lab.folder / f"{self.mode.value}.yml"
        scraping = {"job_name": "node", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        timing = {"scrape_interval": "50ms", "scrape_timeout": "50ms"}
        # YAML contains JSON.
        config.write_text(json.dumps({"global": timing, "scrape_configs": [scraping]}))
        words = [
            *("prometheus", f"--config.file={config}", f"--web.listen-address=127.0.0.1:{self.own}"),
            f"--storage.tsdb.path={self.lab.folder / self.mode.value}",
        ]
        self.prometheus = self.lab.start("prometheus", words, accelerated=self.mode.client)

    def judge(self, results: Results) -> None:
        wait_listening(self.own, self.prometheus)
        scrapes = self._wait_scraped()
        seconds = time.perf_counter() - self.began
        # The values change, so another page may be shorter when it is packed.
        payload = scrapes * self.page_bytes * 9 // 10
        seen = self.lab.judge(
            self.mode, server=self.exporter, client=self.prometheus, payload_bytes=payload, share=0.5
        )
        results.add("prometheus", self.mode, seen, requests=scrapes, payload_bytes=payload, seconds=seconds)

    def _wait_scraped(self) -> int:
        """Until enough pages are in Prometheus's own database; their number."""
        query = urllib.parse.urlencode({"query": 'sum_over_time(up{job="node"}[1h])'})
        deadline = time.monotonic() + 60
        scrapes = 0
        while scrapes < SCRAPES:
            assert self.prometheus.poll() is None, "Prometheus has ended"
            assert time.monotonic() < deadline, f"{scrapes} of {SCRAPES} scrapes in time"
            time.sleep(0.1)
            answer = answer_of(self.own, f"/api/v1/query?{query}")
            found = json.loads(gzip.decompress(answer) if answer.startswith(b"\x1f\x8b") else answer)
            scrapes = sum(int(float(part["value"][1])) for part in found["data"]["result"])
        return scrapes


@pytest.mark.usefixtures("library")
def test_prometheus(lab: Lab, results: Results) -> None:
    """All modes at once: Prometheus begins to scrape five seconds after its start."""
    for scraping in [Scraping(mode, lab) for mode in Mode]:
        scraping.judge(results)
