"""The effects of single settings on connections, seen from outside: each has its own, and no other."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.apps.lib import counters
from tests.apps.lib.counters import Counters
from tests.apps.lib.lab import Lab
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.process import Process
from tests.apps.test_switch import switch, wait_linked

pytestmark = pytest.mark.usefixtures("library")

MODULES = "tests.apps.programs"
CONNECTIONS = 60


def echo(lab: Lab, server_env: dict[str, str], client_env: dict[str, str]) -> tuple[Counters, Counters]:
    """Many short conversations, every byte compared; the counters of server and client."""
    port = free_port()
    argv = [sys.executable, "-m", f"{MODULES}.echo_server", str(port), "127.0.0.1"]
    server = lab.start("echo-server", argv, accelerated=True, env=server_env)
    wait_listening(port, server)
    argv = [sys.executable, "-m", f"{MODULES}.echo_client", str(port)]
    argv += ["--connections", str(CONNECTIONS), "--pings", "60", "--size", "20000"]
    client, report = lab.client("echo-client", argv, accelerated=True, env=client_env)
    seen = counters.totals(server), counters.totals(client)
    for who, side in zip(("server", "client"), seen, strict=True):
        lab.remark(f"{who}: {side.describe()}")
        assert side.all_bytes >= report.payload_bytes
    lab.dismiss(client)
    return seen


def test_half_of_the_connections(lab: Lab) -> None:
    """NACC_CONNECT_RDMA_PERCENT: about so many of a hundred; both ends draw alike."""
    env = {"NACC_CONNECT_RDMA_PERCENT": "50"}
    server, client = echo(lab, env, env)
    kept = client.reasons["percent"]
    assert CONNECTIONS / 4 < kept < CONNECTIONS * 3 / 4, client.describe()
    assert server.reasons["percent"] == kept, "the two ends have drawn differently"
    assert client.streams_promoted == CONNECTIONS - kept, client.describe()


def test_percent_of_one_side(lab: Lab) -> None:
    """The side that wants fewer decides, whichever it is."""
    for server_percent, client_percent in (("100", "20"), ("20", "100")):
        server_env = {"NACC_CONNECT_RDMA_PERCENT": server_percent}
        server, client = echo(lab, server_env, {"NACC_CONNECT_RDMA_PERCENT": client_percent})
        wants_fewer = client if client_percent == "20" else server
        assert client.streams_promoted == CONNECTIONS - wants_fewer.reasons["percent"], client.describe()
        assert 0 < client.streams_promoted < CONNECTIONS / 2


@pytest.mark.parametrize(
    "env",
    [{"NACC_ENABLE_RDMA_DEFAULT": "0"}, {"NACC_CONNECT_RDMA_PERCENT": "0"}],
    ids=lambda env: next(iter(env)),
)
@pytest.mark.parametrize("side", ["server", "client"])
def test_switched_off(lab: Lab, env: dict[str, str], side: str) -> None:
    server, client = echo(lab, env if side == "server" else {}, env if side == "client" else {})
    assert server.link_bytes == client.link_bytes == 0
    assert (server if side == "server" else client).reasons["disabled"] > 0


def test_fast_connect(lab: Lab) -> None:
    """-F: at the first operation, with any NACC_PROMOTE_AFTER."""
    late = {"NACC_PROMOTE_AFTER": "1000000"}
    _, client = echo(lab, {}, late)
    assert client.streams_promoted == 0, "so many operations there are not"
    _, client = echo(lab, {}, late | {"NACC_FAST_CONNECT": "1"})
    assert client.streams_promoted == CONNECTIONS, client.describe()


def test_tcp_first(lab: Lab) -> None:
    """NACC_CONN_TCP_FIRST: a process's own connections stay on TCP; the opener decides about the others."""
    env = {"NACC_CONN_TCP_FIRST": "1"}
    server, client = echo(lab, {}, env)
    assert client.streams_promoted == 0 and client.link_bytes == server.link_bytes == 0
    assert client.reasons["tcp-first"] == CONNECTIONS, client.describe()
    server, client = echo(lab, env, {})
    assert client.streams_promoted == CONNECTIONS and server.reasons["tcp-first"] == 0


def test_tcp_first_until_promotion_is_requested(lab: Lab) -> None:
    port = free_port()
    argv = ["redis-server", "--port", str(port), "--save", "", "--bind", "127.0.0.1"]
    wait_listening(port, lab.start("redis-server", argv, accelerated=True))
    argv = ["redis-benchmark", "-p", str(port), "-c", "8", "-n", "100000000", "-t", "set"]
    load = lab.start("redis-benchmark", argv, accelerated=True, env={"NACC_CONN_TCP_FIRST": "1"})
    while counters.sum_of([load.pid]).tcp_bytes < 1_000_000:
        assert load.poll() is None, "the load has ended"
    seen = counters.totals(load)
    assert seen.link_bytes == 0 and seen.streams_promoted == 0, seen.describe()
    assert {socket.reason for socket in seen.sockets} == {"tcp-first"}
    switch("promote", load)
    wait_linked(load, load, 8)
    load.stop()


def test_shared_link_that_no_thread_polls(lab: Lab) -> None:
    """Breaks if a stream can be opened on a link only while a thread waits for another one on it."""
    # A byte has come back by the time of the second operation: the server has accepted, and can be found.
    env = {"NACC_SOR_CONN_PER_QP": "8", "NACC_PROMOTE_AFTER": "2"}
    port = free_port()
    argv = [sys.executable, "-m", f"{MODULES}.holding"]
    server = lab.start("holding-server", [*argv, "server", str(port)], accelerated=True, env=env)
    wait_listening(port, server)
    client = lab.start(
        "holding-client", [*argv, "client", str(port)], accelerated=True, env=env, interactive=True
    )
    for opened in range(1, 6):
        client.send_line("open")
        client.wait_line(f"exchanged {opened}")
        # Both programs block, and neither on a connection that is on a link.
        wait_linked(client, server, opened)
    seen = counters.totals(client)
    assert (seen.streams_promoted, seen.reasons["pledge-voided"]) == (5, 0), seen.describe()


def test_shared_link_of_many_streams_that_two_instances_watch(lab: Lab) -> None:
    """Breaks if a link with many streams stays where only one of two instances finds its messages."""
    connections = 100
    env = {"NACC_SOR_CONN_PER_QP": "200", "NACC_PROMOTE_AFTER": "2"}
    port = free_port()
    argv = [sys.executable, "-m", f"{MODULES}.crowded"]
    server = lab.start("crowded-server", [*argv, "server", str(port)], accelerated=True, env=env)
    wait_listening(port, server)
    client = lab.start(
        "crowded-client",
        [*argv, "client", str(port), str(connections)],
        accelerated=True,
        env=env,
        interactive=True,
    )
    client.wait_line("exchanged")
    wait_linked(client, server, connections)
    client.send_line("go on")
    client.wait_line("answered")
    seen = counters.totals(client)
    assert (seen.streams_promoted, seen.reasons["pledge-voided"]) == (connections, 0), seen.describe()


def helper_cpus(process: Process) -> str:
    """The processors that NetACC's first thread may run on."""
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        if (task / "comm").read_text().strip() == "netacc-0":
            lines = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines())
            return lines["Cpus_allowed_list"]
    return "no such thread"


def test_affinity(lab: Lab, need_condition: Callable[[str, bool], None]) -> None:
    """NACC_SOR_AFFINITY binds NetACC's thread, and no other."""
    allowed = sorted(os.sched_getaffinity(0))
    need_condition("two processors", len(allowed) > 1)
    for env, expected in (({}, None), ({"NACC_SOR_AFFINITY": str(allowed[-1])}, str(allowed[-1]))):
        port = free_port()
        argv = [sys.executable, "-m", f"{MODULES}.echo_server", str(port), "127.0.0.1"]
        server = lab.start("echo-server", argv, accelerated=True, env=env)
        wait_listening(port, server)
        own = Path(f"/proc/{server.pid}/status").read_text()
        of_program = next(line for line in own.splitlines() if line.startswith("Cpus_allowed_list")).split(
            "\t"
        )[1]
        assert len(os.sched_getaffinity(server.pid)) == len(allowed)
        assert helper_cpus(server) == (expected or of_program)
