"""`netacc exporter` and `netacc top` show running programs; Prometheus' own parser reads the metrics."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pexpect
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.apps.lib.lab import Lab
from tests.apps.lib.paths import REPO, binaries
from tests.apps.test_switch import redis_under_load, switch

pytestmark = pytest.mark.usefixtures("library")

CLIENTS = 4


#: Short messages take far less, also on a busy machine, where a processor may be away for some milliseconds.
LONG_S = 0.03
TRACED = ["--trace-every", "10ms", "--trace-window", "100ms"]


@contextmanager
def exporter(*arguments: str) -> Iterator[str]:
    """The address of the metrics while it runs."""
    command = [str(binaries() / "netacc"), "exporter", "--listen", "127.0.0.1:0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout
            yield running.stdout.readline().strip()
        finally:
            running.terminate()


def scrape(address: str) -> dict[str, Metric]:
    with urllib.request.urlopen(address, timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        return parsed(answer.read().decode())


def values(families: dict[str, Metric], name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
    samples = families[name].samples
    return [(one.labels, one.value) for one in samples if labels.items() <= one.labels.items()]


def total(families: dict[str, Metric], name: str, **labels: str) -> float:
    return sum(value for _, value in values(families, name, **labels))


def test_redis_in_prometheus_words(lab: Lab) -> None:
    server, load, port = redis_under_load(lab, CLIENTS)
    pid = str(server.pid)
    with exporter() as address:
        first = scrape(address)
        ((about, one),) = values(first, "netacc_process", pid=pid)
        assert (about["program"], about["backend"], one) == ("redis-server", "shm", 1)
        for process in (server, load):
            # A server's connections and a client's have the port of the service.
            who = {"pid": str(process.pid), "port": str(port)}
            assert total(first, "netacc_connections", path="link", **who) >= CLIENTS
            assert total(first, "netacc_connection_bytes", path="link", **who) > 0
        assert total(first, "netacc_links", pid=pid, backend="shm") > 0
        assert total(first, "netacc_events", pid=pid, event="links_established") > 0

        second = scrape(address)
        moved = {"pid": pid, "path": "link", "direction": "rx"}
        assert total(second, "netacc_transferred_bytes", **moved) > total(
            first, "netacc_transferred_bytes", **moved
        )

        switch("demote", server)
        third = scrape(address)
        on_tcp = values(third, "netacc_connections", pid=pid, port=str(port), path="tcp", reason="requested")
        assert sum(value for _, value in on_tcp) >= CLIENTS
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(address.replace("/metrics", "/"), timeout=60)


def once(*arguments: str) -> str:
    command = [str(binaries() / "netacc"), "exporter", "--once", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def parsed(page: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(page)}


def test_latencies_are_histograms(lab: Lab) -> None:
    server, load, port = redis_under_load(lab, CLIENTS)
    families = parsed(once(*TRACED))
    for name, process in (("message", server), ("message", load), ("request", server)):
        family = families[f"netacc_{name}_seconds"]
        assert family.type == "histogram" and family.unit == "seconds"
        here = {"pid": str(process.pid), "port": str(port), "path": "link", "reason": ""}
        buckets = {
            float(sample.labels["le"]): sample.value
            for sample in family.samples
            if sample.name.endswith("_bucket") and here.items() <= sample.labels.items()
        }
        (count,) = [
            sample.value
            for sample in family.samples
            if sample.name.endswith("_count") and here.items() <= sample.labels.items()
        ]
        assert buckets[float("inf")] == count > 100
        assert max(value for bound, value in buckets.items() if bound < LONG_S) > 0.9 * count
    # The load answers nobody.
    assert not values(families, "netacc_request_seconds", pid=str(load.pid))
    assert "netacc_message_seconds" not in once(), "nobody asked for traces"


def test_histograms_grow_and_end_with_their_process(lab: Lab) -> None:
    server, load, _ = redis_under_load(lab, CLIENTS)

    def counted(address: str, pid: int) -> float:
        # Before the first trace, and without processes, it is not there.
        family = scrape(address).get("netacc_message_seconds")
        counts = [sample for sample in family.samples if sample.name.endswith("_count")] if family else []
        return sum(sample.value for sample in counts if sample.labels["pid"] == str(pid))

    with exporter(*TRACED) as address:
        until(lambda: counted(address, server.pid) > 0)
        before = counted(address, server.pid)
        until(lambda: counted(address, server.pid) > before)
        load.popen.kill()
        until(lambda: counted(address, load.pid) == 0)


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline


def top(*arguments: str) -> str:
    command = [str(binaries() / "netacc"), "top", "--every", "200ms", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_top_shows_rates(lab: Lab) -> None:
    server, load, port = redis_under_load(lab, CLIENTS)
    view: dict[str, list[dict[str, Any]]] = json.loads(top("--json", "-n", "100000"))
    processes = {one["pid"]: one for one in view["processes"]}
    for process in (server, load):
        seen = processes[process.pid]
        assert seen["on_link"] >= CLIENTS
        assert seen["link_bytes_per_s"] > 0
    busy = [one for one in view["connections"] if one["pid"] == server.pid and one["rx_bytes_per_s"] > 0]
    assert len(busy) == CLIENTS
    assert {(one["port"], one["path"]) for one in busy} == {(port, "link")}
    rates = [one["rx_bytes_per_s"] + one["tx_bytes_per_s"] for one in view["connections"]]
    assert rates == sorted(rates, reverse=True)
    heads, *lines = top("--once").splitlines()
    assert heads.split()[:3] == ["PID", "PROGRAM", "BACKEND"]
    assert any(line.split()[:2] == [str(server.pid), "redis-server"] for line in lines)


def test_top_ends_at_a_key(lab: Lab) -> None:
    server, _, _ = redis_under_load(lab, CLIENTS)
    command = [str(binaries() / "netacc"), "top", "--every", "50ms"]
    shown = pexpect.spawn(command[0], command[1:], timeout=60, dimensions=(40, 160), encoding="utf-8")
    # The second table, so it is drawn anew.
    for _ in range(2):
        shown.expect(f"{server.pid}  redis-server")
    shown.send("q")
    # The first screen again.
    shown.expect_exact("\x1b[?1049l")
    shown.expect(pexpect.EOF)
    shown.close()
    assert shown.exitstatus == 0


def test_the_dashboard_names_metrics_that_there_are(lab: Lab) -> None:
    redis_under_load(lab, CLIENTS)
    families = parsed(once(*TRACED))
    # The names of samples differ from those of their families.
    ends = {"counter": "_total", "histogram": "_bucket"}
    known = {name + ends.get(families[name].type, ""): families[name] for name in families}
    dashboard = json.loads((REPO / "docs/dashboards/netacc.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert expressions
    for expression in expressions:
        (name,) = set(re.findall(r"netacc_[a-z_]+", expression))
        if name == "netacc_answer_seconds":
            # Measured between hosts only; a unit test has its name and labels.
            continue
        assert name in known, expression
        labels = {label for sample in known[name].samples for label in sample.labels}
        (by,) = re.findall(r"by \(([a-z, ]+)\)", expression)
        # Without a sample there are no labels to compare.
        assert not labels or set(by.split(", ")) <= labels, expression
