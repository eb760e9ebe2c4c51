"""Unmodified programs on two hosts, over RDMA devices: what they do, and that their bytes went over links."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest

from tests.apps.lib.counters import Counters, parse
from tests.apps.lib.paths import REPO, binaries
from tests.lab.lib import UpLab, line_from

SERVER = "10.99.0.1"
ECHO = str(REPO / "tests/lab/programs/echo.py")


@dataclass(frozen=True)
class Device:
    """A lab and the limits that its device is held to."""

    lab: UpLab
    profile: str
    #: The link between the hosts loses packets. One of the connection manager's costs seconds, in which a
    #: conversation goes on over TCP; one of a stream may make it leave the link, as if nobody read.
    loses: bool

    def accelerated(self, *command: str) -> list[str]:
        variables = ["env", f"NACC_VERBS_PROFILE={self.profile}"]
        return [*variables, str(binaries() / "netacc_run"), *command]

    def counters(self, pid: str) -> Counters:
        """What a process on the first host has counted."""
        asking = (str(binaries() / "netacc_ss"), "-p", pid, "-s", "all", "--json")
        # Opening a device, in a process that is new, takes seconds in emulation.
        self.lab.wait_for(1, f"{' '.join(asking)} >/dev/null 2>&1")
        return parse(self.lab.out(1, *asking))


@pytest.fixture(params=["rxe", "rxe-as-erdma", "siw"])
def device(request: pytest.FixtureRequest) -> Device:
    """Two hosts: with SoftRoCE on a link that loses packets, the same as eRDMA, and with soft-iWARP."""
    kind, _, profile = str(request.param).partition("-as-")
    return Device(request.getfixturevalue(kind), profile or "native", kind == "rxe")


def serve_redis(device: Device) -> str:
    """An accelerated server; its process id."""
    options = ("--bind", SERVER, "--protected-mode", "no", "--save", "", "--daemonize", "no")
    device.lab.start(1, *device.accelerated("redis-server", *options))
    device.lab.wait_for(2, f"redis-cli -h {SERVER} ping | grep -q PONG")
    return device.lab.out(1, "pidof", "-s", "redis-server").strip()


def benchmark(*more: str) -> tuple[str, ...]:
    return ("redis-benchmark", "-h", SERVER, "-t", "set,get", "-c", "8", "-d", "512", "--csv", *more)


def test_redis(device: Device) -> None:
    server = serve_redis(device)
    printed = device.lab.out(2, *device.accelerated(*benchmark("-n", "2000")))
    assert '"SET"' in printed and '"GET"' in printed
    counters = device.counters(server)
    # 2000 values each way; the rest is commands and answers.
    assert counters.rx_bytes_link + counters.rx_bytes_tcp > 2000 * 512
    share = counters.link_bytes / (counters.link_bytes + counters.tcp_bytes)
    assert share > (0.1 if device.loses else 0.6), counters.describe()


def test_redis_with_a_client_that_is_not_accelerated(device: Device) -> None:
    server = serve_redis(device)
    assert '"GET"' in device.lab.out(2, *benchmark("-n", "300"))
    counters = device.counters(server)
    assert counters.link_bytes == 0 and counters.tcp_bytes > 300 * 512
    # A connection that was hardly used cannot tell.
    assert set(counters.reasons) <= {"peer-not-accelerated", "not-yet"}, counters.describe()
    assert counters.reasons["peer-not-accelerated"] > 0


def test_redis_with_a_server_that_is_not_accelerated(device: Device) -> None:
    options = ("--bind", SERVER, "--protected-mode", "no", "--save", "")
    device.lab.start(1, "redis-server", *options)
    device.lab.wait_for(2, f"redis-cli -h {SERVER} ping | grep -q PONG")
    assert '"GET"' in device.lab.out(2, *device.accelerated(*benchmark("-n", "300")))


def test_blocking_sockets_bring_every_byte(device: Device) -> None:
    """Both ends sleep in recv; what comes back is compared."""
    server = device.lab.start(1, *device.accelerated(sys.executable, ECHO, "serve", SERVER, "7000"))
    words = line_from(server.stdout).split()
    assert words[:2] == ["listening", "as"]
    for _ in range(3):
        printed = device.lab.out(2, *device.accelerated(sys.executable, ECHO, "ask", SERVER, "7000", "300"))
        assert printed == "300 answers as asked\n"
        counters = device.counters(words[2])
        if counters.link_bytes > 0:
            break
    # Of the 3.1 MB of a conversation, with whose beginning the server opens its device.
    assert counters.link_bytes > (0 if device.loses else 2_000_000), counters.describe()


@pytest.mark.parametrize("kind", ["rxe", "siw"])
@pytest.mark.parametrize("role", ["prefork", "forking"])
def test_each_of_several_processes_of_one_port_is_found(
    kind: str, role: str, request: pytest.FixtureRequest
) -> None:
    """Two that accept for themselves, of which one has the port for links; and children that do not."""
    device = Device(request.getfixturevalue(kind), "native", kind == "rxe")
    server = device.lab.start(1, *device.accelerated(sys.executable, ECHO, role, SERVER, "7001"))
    words = line_from(server.stdout).split()
    assert words[:2] == ["listening", "as"]
    asking = device.accelerated(sys.executable, ECHO, "ask", SERVER, "7001", "150", "2")
    on_links: set[str] = set()
    # What a link takes to come up is a long time in emulation, and more where a packet of it was lost.
    for _ in range(4):
        assert device.lab.out(2, *asking) == "150 answers as asked\n"
        workers = device.lab.out(1, "pgrep", "-P", words[2]).split()
        on_links |= {pid for pid in workers if device.counters(pid).link_bytes > 0}
        if len(on_links) >= 2:
            return
    pytest.fail(f"of {workers} only {on_links} were on links")
