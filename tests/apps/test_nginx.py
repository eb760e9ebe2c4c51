"""nginx with curl (every file verified) and wrk."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.apps.lib import counters
from tests.apps.lib.data import blob
from tests.apps.lib.lab import Lab
from tests.apps.lib.modes import Mode
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.process import Process
from tests.apps.lib.results import Results

LARGE_BYTES = 128 << 20
#: On a busy machine the link comes after some dozens.
SMALL_FILES = 600
PAGE_BYTES = 1024
WORKERS = 2

CONFIG = """
{user}
daemon {daemon};
worker_processes {workers};
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


def start_server(lab: Lab, mode: Mode, *, daemon: str = "off") -> tuple[Process, int]:
    port = free_port()
    config = lab.folder / "nginx.conf"
    # Workers that stay root may be found by clients of root; by default they would become www-data.
    user = "user root;" if os.geteuid() == 0 else ""
    config.write_text(CONFIG.format(user=user, daemon=daemon, workers=WORKERS, folder=lab.folder, port=port))
    (lab.folder / "served").mkdir()
    server = lab.start(
        "nginx",
        [str(shutil.which("nginx")), "-p", str(lab.folder), "-c", str(config), "-e", "stderr"],
        accelerated=mode.server,
    )
    if daemon == "on":
        server.finish()
    else:
        wait_listening(port, server)
    return server, port


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Master:
    """A master process that is a daemon, and those of its new binaries. The test is not their parent."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.started = {self.pid()}

    def pid(self) -> int:
        return int((self.lab.folder / "nginx.pid").read_text())

    def workers(self) -> list[int]:
        """The workers of the newest master."""
        children = Path(f"/proc/{self.pid()}/task/{self.pid()}/children")
        return [int(pid) for pid in children.read_text().split()]

    def upgrade(self) -> None:
        """Start the new binary, and let the old one end."""
        old = self.pid()
        # A signal before that would be noticed at the next one.
        await_that(lambda: len(self.workers()) == WORKERS)
        os.kill(old, signal.SIGUSR2)
        await_that(lambda: (self.lab.folder / "nginx.pid.oldbin").exists() and self.has_new_pid(old))
        self.started.add(self.pid())
        await_that(lambda: len(self.workers()) == WORKERS)
        os.kill(old, signal.SIGQUIT)
        await_that(lambda: not Path(f"/proc/{old}").exists())

    def has_new_pid(self, old: int) -> bool:
        text = (self.lab.folder / "nginx.pid").read_text() if (self.lab.folder / "nginx.pid").exists() else ""
        return text.strip() not in ("", str(old))

    def end(self) -> None:
        for pid in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        await_that(lambda: not any(Path(f"/proc/{pid}").exists() for pid in self.started))


def await_that(is_met: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_met():
        assert time.monotonic() < deadline, "it does not come about"
        time.sleep(0.01)


def test_new_binary(mode: Mode, lab: Lab) -> None:
    """SIGUSR2 starts a new binary, with an environment that has nothing but the listening sockets."""
    _, port = start_server(lab, mode, daemon="on")
    master = Master(lab)
    try:
        master.upgrade()
        served, fetched = lab.folder / "served/large", lab.folder / "large"
        served.write_bytes(blob(LARGE_BYTES))
        argv = ["curl", "-sS", "--fail", "-o", str(fetched), f"http://127.0.0.1:{port}/large"]
        lab.start("curl", argv, accelerated=mode.client).finish()
        assert digest_of(fetched) == digest_of(served)
        seen = counters.sum_of(master.workers())
        # A worker that has accepted no connection has no counters.
        assert bool(seen.processes) == mode.server
        if mode is Mode.SHM:
            lab.expect_link(seen, who="the new workers", payload_bytes=LARGE_BYTES, share=0.7)
        elif mode.server:
            lab.expect_tcp(seen, who="the new workers", payload_bytes=LARGE_BYTES)
    finally:
        master.end()


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
    sizes = {f"file-{n}": 1 + 110 * n for n in range(SMALL_FILES)}
    lines = []
    for number, (name, size) in enumerate(sizes.items()):
        (lab.folder / "served" / name).write_bytes(blob(size, number))
        lines += [f'url = "http://127.0.0.1:{port}/{name}"', f'output = "{lab.folder}/{name}"']
    requests = lab.folder / "requests"
    requests.write_text("\n".join(lines))
    argv = ["curl", "-sS", "--fail", "-w", "%{num_connects}\n", "-K", str(requests)]
    if mode is Mode.CLIENT_ONLY:
        argv += ["--rate", "600/s"]  # so that it lives long enough to be asked
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
