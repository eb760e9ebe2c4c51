"""iperf3: streams of large writes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.apps.lib.lab import Lab
from tests.apps.lib.modes import Mode
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.results import Results

STREAM_BYTES = 512 << 20
#: So many that those before the connection is on a link, which may come late on a busy machine, are few.
LINKED_BYTES = 2 << 30
LOADS: dict[str, list[str]] = {
    "single": [],
    "parallel": ["-P", "4"],
    "reverse": ["-R"],
    "bidirectional": ["--bidir"],
}


@pytest.mark.parametrize("load", LOADS)
def test_stream(mode: Mode, load: str, lab: Lab, results: Results) -> None:
    port = free_port()
    server = lab.start(
        "iperf3-server",
        ["iperf3", "--server", "--bind", "127.0.0.1", "--port", str(port)],
        accelerated=mode.server,
    )
    wait_listening(port, server)
    size = LINKED_BYTES if mode is Mode.SHM else STREAM_BYTES
    argv = ["iperf3", "--client", "127.0.0.1", "--port", str(port), "--json", "-n", str(size)]
    if mode is Mode.CLIENT_ONLY:
        argv += ["--bitrate", "3G"]  # so that it lives long enough to be asked
    done = lab.load("iperf3-client", argv + LOADS[load], mode)
    moved, seconds = read_sums(json.loads(done.printed))
    assert moved >= size * 0.9  # iperf3 stops counting at the sender's end
    seen = lab.judge(mode, server=server, client=done, payload_bytes=moved, share=0.8)
    results.add(f"iperf3 {load}", mode, seen, payload_bytes=moved, seconds=seconds)


def read_sums(report: dict[str, Any]) -> tuple[int, float]:
    """Bytes that arrived, in both directions, and how long it took."""
    end = report["end"]
    sums = [end[key] for key in ("sum_received", "sum_received_bidir_reverse") if key in end]
    return sum(int(one["bytes"]) for one in sums), max(float(one["seconds"]) for one in sums)
