"""nginx with curl (every file verified) and wrk."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from tests.apps.lib.data import blob
from tests.apps.lib.lab import Lab
from tests.apps.lib.modes import Mode
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.process import Process
from tests.apps.lib.results import Results

LARGE_BYTES = 128 << 20
SMALL_FILES = 200
PAGE_BYTES = 1024

CONFIG = """
{user}
daemon off;
worker_processes 2;
pid {folder}/nginx.pid;
error_log stderr notice;
events {{ worker_connections 512; }}
http {{
    access_log off;
    sendfile on;
    keepalive_requests 1000000;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        root {folder}/served;
    }}
}}
"""


def start_server(lab: Lab, mode: Mode) -> tuple[Process, int]:
    port = free_port()
    config = lab.folder / "nginx.conf"
    # Workers that stay root may be found by clients of root; by default they would become www-data.
    user = "user root;" if os.geteuid() == 0 else ""
    config.write_text(CONFIG.format(user=user, folder=lab.folder, port=port))
    (lab.folder / "served").mkdir()
    server = lab.start(
        "nginx",
        ["nginx", "-p", str(lab.folder), "-c", str(config), "-e", "stderr"],
        accelerated=mode.server,
    )
    wait_listening(port, server)
    return server, port


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def test_large_file(mode: Mode, lab: Lab, results: Results) -> None:
    server, port = start_server(lab, mode)
    served, fetched = lab.folder / "served/large", lab.folder / "large"
    served.write_bytes(blob(LARGE_BYTES))
    argv = ["curl", "-sS", "--fail", "-o", str(fetched), f"http://127.0.0.1:{port}/large"]
    if mode is Mode.CLIENT_ONLY:
        argv += ["--limit-rate", "100M"]  # so that it lives long enough to be asked
    load = lab.load("curl", argv, mode)
    assert digest_of(fetched) == digest_of(served)
    seen = lab.judge(mode, server=server, client=load, payload_bytes=LARGE_BYTES, share=0.7)
    results.add("nginx curl large", mode, seen, requests=1, payload_bytes=LARGE_BYTES)


def test_small_files(mode: Mode, lab: Lab, results: Results) -> None:
    """Many files over one connection that curl keeps."""
    server, port = start_server(lab, mode)
    sizes = {f"file-{n}": 1 + 331 * n for n in range(SMALL_FILES)}
    lines = []
    for number, (name, size) in enumerate(sizes.items()):
        (lab.folder / "served" / name).write_bytes(blob(size, number))
        lines += [f'url = "http://127.0.0.1:{port}/{name}"', f'output = "{lab.folder}/{name}"']
    requests = lab.folder / "requests"
    requests.write_text("\n".join(lines))
    argv = ["curl", "-sS", "--fail", "-w", "%{num_connects}\n", "-K", str(requests)]
    if mode is Mode.CLIENT_ONLY:
        argv += ["--rate", "200/s"]  # so that it lives long enough to be asked
    load = lab.load("curl", argv, mode)
    for name in sizes:
        assert digest_of(lab.folder / name) == digest_of(lab.folder / "served" / name)
    assert sum(map(int, load.printed.split())) == 1, "curl did not keep its connection"
    payload = sum(sizes.values())
    seen = lab.judge(mode, server=server, client=load, payload_bytes=payload, share=0.95)
    results.add("nginx curl small", mode, seen, requests=SMALL_FILES, payload_bytes=payload)


def test_wrk(mode: Mode, lab: Lab, results: Results) -> None:
    server, port = start_server(lab, mode)
    (lab.folder / "served/page").write_bytes(blob(PAGE_BYTES))
    url = f"http://127.0.0.1:{port}/page"
    load = lab.load("wrk", ["wrk", "-t", "2", "-c", "32", "-d", "2s", url], mode)
    printed = load.printed
    assert "Socket errors" not in printed and "Non-2xx" not in printed, printed
    match = re.search(r"(\d+) requests in", printed)
    assert match, printed
    requests = int(match[1])
    assert requests > 100
    payload = requests * PAGE_BYTES
    seen = lab.judge(mode, server=server, client=load, payload_bytes=payload, share=0.95)
    results.add("nginx wrk", mode, seen, requests=requests, payload_bytes=payload, seconds=load.seconds)
