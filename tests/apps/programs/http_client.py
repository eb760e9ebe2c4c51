"""Fetches files over kept-alive connections, from several threads, and verifies each."""

from __future__ import annotations

import http.client
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.apps.lib.client import Stopwatch
from tests.apps.lib.data import sha256


def fetch_all(port: int, wanted: dict[str, str], watch: Stopwatch, lock: threading.Lock) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for name, digest in wanted.items():
        connection.request("GET", f"/{name}")
        response = connection.getresponse()
        body = response.read()
        assert response.status == 200, f"{name}: status {response.status}"
        assert not response.will_close, "the server does not keep the connection"
        assert sha256(body) == digest, f"{name}: the checksum differs"
        with lock:
            watch.count(len(body))
    connection.close()


def main(port: int, manifest: Path, connections: int) -> None:
    wanted: dict[str, str] = json.loads(manifest.read_text())
    watch, lock = Stopwatch(), threading.Lock()
    with ThreadPoolExecutor(connections) as pool:
        for future in [pool.submit(fetch_all, port, wanted, watch, lock) for _ in range(connections)]:
            future.result()
    watch.finish()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
