"""memcached, with pymemcache (every value verified) and with memcslap (a C client)."""

from __future__ import annotations

import os
import sys

from tests.apps.lib.lab import Lab
from tests.apps.lib.modes import Mode
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.process import Process
from tests.apps.lib.results import Results

THREADS = 4
SLAP_CLIENTS = 8
SLAP_SETS = 6000  # of each client, of about 500 bytes: a second; connecting takes a small part


def start_server(lab: Lab, mode: Mode) -> tuple[Process, int]:
    port = free_port()
    argv = ["memcached", "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-t", "2", "-m", "256"]
    if os.geteuid() == 0:
        argv += ["-u", "root"]  # or it would become another user, which gets no link
    server = lab.start("memcached", argv, accelerated=mode.server)
    wait_listening(port, server)
    return server, port


def test_values(mode: Mode, lab: Lab, results: Results) -> None:
    server, port = start_server(lab, mode)
    client, report = lab.client(
        "pymemcache",
        [sys.executable, "-m", "tests.apps.programs.memcached_client", str(port), str(THREADS)],
        accelerated=mode.client,
    )
    seen = lab.judge(mode, server=server, client=client, payload_bytes=report.payload_bytes, share=0.95)
    results.add(
        "memcached pymemcache",
        mode,
        seen,
        requests=report.requests,
        payload_bytes=report.payload_bytes,
        seconds=report.seconds,
    )
    lab.dismiss(client)


def test_memcslap(mode: Mode, lab: Lab, results: Results) -> None:
    server, port = start_server(lab, mode)
    load = lab.load(
        "memcslap",
        [
            *("memcslap", f"--servers=127.0.0.1:{port}", "--test=set"),
            *(f"--concurrency={SLAP_CLIENTS}", f"--execute-number={SLAP_SETS}"),
        ],
        mode,
    )
    stats = server_stats(lab, port)
    sets = SLAP_CLIENTS * SLAP_SETS
    assert stats["cmd_set"] == sets, "the server did not see every set"
    payload = stats["bytes_written"] + stats["bytes_read"]
    # The statistics were asked for over a connection of their own, so the payload is a little less.
    seen = lab.judge(mode, server=server, client=load, payload_bytes=sets * 400, share=0.95)
    results.add("memcached memcslap", mode, seen, requests=sets, payload_bytes=payload, seconds=load.seconds)


def server_stats(lab: Lab, port: int) -> dict[str, int]:
    text = lab.run("memcstat", ["memcstat", f"--servers=127.0.0.1:{port}"])
    pairs = (line.split(":") for line in text.splitlines() if line.count(":") == 1)
    return {key.strip(): int(value) for key, value in pairs if value.strip().isdigit()}
