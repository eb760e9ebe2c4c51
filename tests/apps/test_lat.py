"""`netacc lat` on a machine without RDMA devices: it measures the paths there are, and reports the others."""

from __future__ import annotations

import json
import subprocess

import pytest
from netacc_lab import analysis

from tests.apps.lib.lab import Lab
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.paths import binaries

#: Of a measurement whose datagrams may all take the kernel.
ATTEMPTS = 5

pytestmark = pytest.mark.usefixtures("library")


def test_stack_and_tcp_within_one_host(lab: Lab) -> None:
    """Over shared memory the program is on a link; raw links need a device, which has no loopback address."""
    netacc, port = str(binaries() / "netacc"), str(free_port())
    server = lab.start("lat-server", [netacc, "lat", "--serve", "127.0.0.1", "--port", port])
    wait_listening(int(port), server)
    command = [netacc, "lat", "127.0.0.1", "--port", port, "-n", "500", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    paths = {path["path"]: path for path in json.loads(done.stdout)["paths"]}
    assert list(paths) == ["write", "message", "send", "stack", "tcp"]
    assert all(paths[name]["error"] for name in ("write", "message", "send"))
    for name in ("stack", "tcp"):
        latency = paths[name]["latency_ns"]
        assert latency["count"] == 500 == sum(count for _, count in paths[name]["histogram"])
        # No round trip through two processes takes a fifth of a microsecond.
        assert 100 < latency["min"] <= latency["p50"] <= latency["max"]
    assert paths["stack"]["link_share"] > 0.9 and "link_share" not in paths["tcp"]

    chosen = ["--path", "stack", "--path", "tcp"]
    done = subprocess.run(command[:-1] + chosen, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "p99.9" in done.stdout and "stack" in done.stdout and "write" not in done.stdout

    chosen += ["--all-sizes", "--max-size", "8", "--histogram"]
    done = subprocess.run(command[:-1] + chosen, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split()[:2] for line in done.stdout.splitlines()]
    expected = [[size, path] for size in ("2", "4", "8") for path in ("stack", "tcp")]
    assert [row for row in rows if row in expected] == expected, done.stdout
    assert "\nstack, 8 bytes:\n" in done.stdout and done.stdout.count("cumulative") == len(expected)
    # A machine with other work is named; progress is for terminals.
    assert all("WARNING" in line for line in done.stderr.splitlines()), done.stderr


def test_the_largest_messages(lab: Lab) -> None:
    """Two ends that write before they read would wait for each other: no buffer holds as much."""
    netacc, port = str(binaries() / "netacc"), str(free_port())
    server = lab.start("lat-server", [netacc, "lat", "--serve", "127.0.0.1", "--port", port])
    wait_listening(int(port), server)
    command = [netacc, "lat", "127.0.0.1", "--port", port, "-n", "3", "--json", "--size", str(8 << 20)]
    chosen = ["--path", "stack", "--path", "tcp"]
    done = subprocess.run(command + chosen, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    stack, tcp = json.loads(done.stdout)["paths"]
    assert stack["latency_ns"]["count"] == tcp["latency_ns"]["count"] == 3
    assert stack["link_share"] > 0.9


def test_udp(lab: Lab) -> None:
    """Breaks if the accelerated side measures the kernel, or the other one the library."""
    netacc, port = str(binaries() / "netacc"), str(free_port())
    server = lab.start("lat-server", [netacc, "lat", "--serve", "127.0.0.1", "--port", port])
    wait_listening(int(port), server)
    command = [netacc, "lat", "127.0.0.1", "--port", port, "-n", "500", "--udp"]
    # An end that sleeps gets its datagrams from the kernel. On a busy machine both may sleep each time.
    for _ in range(ATTEMPTS):
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr + done.stdout
        paths = {path["path"]: path for path in json.loads(done.stdout)["paths"]}
        assert list(paths) == ["udp-stack", "udp"]
        for path in paths.values():
            assert path["latency_ns"]["count"] == 500 and path["latency_ns"]["deviation"] > 0
        assert "link_share" not in paths["udp"]
        if paths["udp-stack"]["link_share"] > 0:
            break
    else:
        pytest.fail("no datagram took a ring")
    record = lab.folder / "record"
    kept = [*command, "--record", str(record)]
    done = subprocess.run(kept, capture_output=True, text=True, timeout=120, check=False)
    assert " times as long" in done.stdout, done.stdout
    read = analysis.load(record)
    assert [series.name for series in read] == ["udp-stack", "udp"]
    assert all(one.get_total_count() == 500 for series in read for one in series.histograms())
    done = subprocess.run([*command, "-s", "65508"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1 and "no datagrams of this size" in done.stdout + done.stderr
