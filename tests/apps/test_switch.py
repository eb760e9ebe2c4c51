"""Connections under load change their path unnoticed: by `netacc demote`, or where the peer is slow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.apps import test_nginx
from tests.apps.lib import counters
from tests.apps.lib.counters import Counters
from tests.apps.lib.data import blob
from tests.apps.lib.lab import Lab
from tests.apps.lib.modes import Mode
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.paths import binaries
from tests.apps.lib.process import Process

CLIENTS = 20
ROUNDS = 5


def switch(word: str, *processes: Process) -> list[dict[str, object]]:
    """Run `netacc demote` or `netacc promote`; its line for each process."""
    pids = [argument for process in processes for argument in ("-p", str(process.pid))]
    done = subprocess.run(
        [str(binaries() / "netacc"), word, "--json", *pids], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, f"netacc {word}: status {done.returncode}: {done.stderr}"
    return [json.loads(line) for line in done.stdout.splitlines()]


def linked(process: Process) -> int:
    """Connections on links; none as long as the process has not loaded the library."""
    seen = counters.sum_of(member.pid for member in process.family())
    return sum(socket.path == "link" for socket in seen.sockets)


def wait_linked(process: Process, load: Process, at_least: int) -> None:
    deadline = time.monotonic() + 30
    while linked(process) < at_least:
        assert load.poll() is None, "the load has ended"
        assert time.monotonic() < deadline, f"{linked(process)} of {at_least} connections are on links"


def redis_under_load(lab: Lab, clients: int) -> tuple[Process, Process, int]:
    """A server and a load that lasts, all of it on links, and the server's port."""
    port = free_port()
    command = ["redis-server", "--port", str(port), "--save", "", "--bind", "127.0.0.1"]
    server = lab.start("redis-server", command, accelerated=True)
    wait_listening(port, server)
    command = ["redis-benchmark", "-p", str(port), "-t", "set", "-c", str(clients), "-n", "100000000", "-q"]
    load = lab.start("redis-benchmark", command, accelerated=True)
    wait_linked(server, load, clients)
    return server, load, port


@pytest.mark.parametrize("side", ["server", "client"])
@pytest.mark.usefixtures("library")
def test_redis_under_load(side: str, lab: Lab) -> None:
    server, load, port = redis_under_load(lab, CLIENTS)
    target = server if side == "server" else load
    for _ in range(ROUNDS):
        wait_linked(server, load, CLIENTS)
        (answer,) = switch("demote", target)
        assert answer["on_link"] == 0 and not answer["allowed"]
        assert linked(server) == 0
        before = executed(lab, port)
        while executed(lab, port) < before + 20_000:
            assert load.poll() is None, "the load has failed"
        assert linked(server) == 0, "a connection went onto a link while the process was demoted"
        (answer,) = switch("promote", target)
        assert answer["allowed"]
    wait_linked(server, load, CLIENTS)
    assert load.poll() is None, "the load has failed"
    seen: Counters = counters.totals(server)
    assert seen.streams_promoted >= CLIENTS * (ROUNDS + 1)
    assert seen.streams_demoted >= CLIENTS * ROUNDS
    load.stop()
    errors = lab.run("redis-cli", ["redis-cli", "-p", str(port), "info", "stats"])
    assert "total_error_replies:0" in errors


@pytest.mark.parametrize("mode", [Mode.SHM], ids=lambda mode: mode.value, indirect=True)
def test_nginx_under_load(mode: Mode, lab: Lab) -> None:
    _, port = test_nginx.start_server(lab, mode)
    (lab.folder / "served/page").write_bytes(blob(test_nginx.PAGE_BYTES))
    url = f"http://127.0.0.1:{port}/page"
    load = lab.start("wrk", ["wrk", "-t", "2", "-c", str(CLIENTS), "-d", "8s", url], accelerated=True)
    for _ in range(3):
        wait_linked(load, load, CLIENTS)
        (answer,) = switch("demote", load)
        assert answer["on_link"] == 0
        before = counters.totals(load).rx_bytes_tcp
        while counters.totals(load).rx_bytes_tcp < before + 1000 * test_nginx.PAGE_BYTES:
            assert load.poll() is None, "the load has ended"
        switch("promote", load)
    wait_linked(load, load, CLIENTS)
    printed = load.finish()
    assert "Non-2xx" not in printed, printed
    # wrk takes EAGAIN of a connection that was reported readable for an error.
    assert "Socket errors" not in printed, printed


def executed(lab: Lab, port: int) -> int:
    """SET commands that the server has executed."""
    printed = lab.run("redis-cli", ["redis-cli", "-p", str(port), "info", "commandstats"])
    line = next(line for line in printed.splitlines() if line.startswith("cmdstat_set:"))
    return int(line.split("calls=")[1].split(",")[0])


@pytest.mark.parametrize("mode", [Mode.SHM], ids=lambda mode: mode.value, indirect=True)
def test_link_of_a_connection_that_left_it(mode: Mode, lab: Lab) -> None:
    """A link carries the next connection when the one before has left it for good."""
    program = lab.start(
        "leaving",
        [sys.executable, "-m", "tests.apps.programs.leaving"],
        accelerated=mode.server,
        interactive=True,
    )
    for number in (1, 2, 3):
        for _ in range(500):
            program.send_line("exchange")
            program.wait_line("done")
            if counters.totals(program).streams_promoted >= 2 * number:
                break
        assert counters.totals(program).streams_promoted == 2 * number, f"connection {number} is on no link"
        program.send_line("leave")
        program.wait_line("done")
    lab.dismiss(program)


@pytest.mark.parametrize("mode", [Mode.SHM], ids=lambda mode: mode.value, indirect=True)
def test_a_write_is_taken_where_there_is_room(mode: Mode, lab: Lab) -> None:
    """The server stands still again and again: promotions are often half done when the client writes."""
    port, at_once = free_port(), {"NACC_FAST_CONNECT": "1"}
    module = [sys.executable, "-m", "tests.apps.programs.echo_server"]
    server = lab.start("server", [*module, str(port)], accelerated=mode.server, env=at_once)
    wait_listening(port, server)
    module = [sys.executable, "-m", "tests.apps.programs.pacing_client"]
    client = lab.start("client", [*module, str(port), "400"], accelerated=mode.client, env=at_once)
    while client.poll() is None:
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(0.03)
        os.kill(server.pid, signal.SIGCONT)
        time.sleep(0.004)
    assert client.finish() == "0\n"
    assert counters.totals(server).streams_promoted >= 100
