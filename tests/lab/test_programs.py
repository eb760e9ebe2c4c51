"""Unmodified programs on two hosts, over RDMA devices: their results, and their bytes over links."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.apps.lib.counters import Counters, parse
from tests.apps.lib.paths import REPO, binaries
from tests.lab.lib import UpLab, attempts, line_from, whole_wire

SERVER, SERVER6 = "10.99.0.1", "fd99::1"
ECHO = str(REPO / "tests/lab/programs/echo.py")


@dataclass(frozen=True)
class Device:
    """A lab and the limits that its device is held to."""

    lab: UpLab
    profile: str
    #: The link between the hosts loses packets. One of the connection manager's costs seconds, in which a
    #: conversation goes on over TCP; one of a stream may make it leave the link, as if its peer read nothing.
    loses: bool

    @property
    def least_share(self) -> float:
        """Of a conversation's bytes, on links."""
        return 0.1 if self.loses else 0.6

    def accelerated(self, *command: str) -> list[str]:
        variables = ["env", f"NACC_VERBS_PROFILE={self.profile}"]
        return [*variables, str(binaries() / "netacc_run"), *command]

    def counters(self, pid: str) -> Counters:
        """The counters of a process on the first host."""
        client_command = (str(binaries() / "netacc_ss"), "-p", pid, "-s", "all", "--json")
        # Opening a device, in a process that is new, takes seconds in emulation.
        self.lab.wait_for(1, f"{' '.join(client_command)} >/dev/null 2>&1")
        return parse(self.lab.out(1, *client_command))


DEVICES = ("rxe", "rxe-as-erdma", "siw")


@pytest.fixture(params=[*DEVICES, pytest.param("erdma", marks=pytest.mark.long)])
def device(request: pytest.FixtureRequest) -> Device:
    """Two hosts: with SoftRoCE on a link that loses packets, the same as eRDMA, soft-iWARP, and eRDMA."""
    kind, _, profile = str(request.param).partition("-as-")
    return Device(request.getfixturevalue(kind), profile or "native", kind == "rxe")


def serve_redis(device: Device) -> str:
    """An accelerated server; its process id."""
    options = ("--bind", SERVER, "--protected-mode", "no", "--save", "", "--daemonize", "no")
    device.lab.start(1, *device.accelerated("redis-server", *options))
    device.lab.wait_for(2, f"redis-cli -h {SERVER} ping | grep -q PONG")
    return device.lab.out(1, "pidof", "-s", "redis-server").strip()


def until_on_links(device: Device, pid: str, conversation: Callable[[int], None]) -> Counters:
    """Conversations, each longer than the last, until most bytes of one went over links; its counters.

    With any time to get onto a link, the rest of a conversation is longer in the end.
    """
    before = Counters()
    for number in attempts():
        conversation(1 << min(number, 3))
        after = device.counters(pid)
        counted, before = after.since(before), after
        if counted.link_share > device.least_share:
            return counted
    pytest.fail(f"hardly anything went over links: {counted.describe()}")


def benchmark(*more: str) -> tuple[str, ...]:
    return ("redis-benchmark", "-h", SERVER, "-t", "set,get", "-c", "8", "-d", "512", "--csv", *more)


@pytest.mark.parametrize("device", [*DEVICES, "erdma"], indirect=True)
def test_redis(device: Device) -> None:
    server = serve_redis(device)
    requests = 1000

    def run(times: int) -> None:
        printed = device.lab.out(2, *device.accelerated(*benchmark("-n", str(times * requests))))
        assert '"SET"' in printed and '"GET"' in printed

    counters = until_on_links(device, server, run)
    # The values, each way; the rest is commands and answers.
    assert counters.rx_bytes_link + counters.rx_bytes_tcp > requests * 512


def test_redis_with_a_client_that_is_not_accelerated(device: Device) -> None:
    server = serve_redis(device)
    assert '"GET"' in device.lab.out(2, *benchmark("-n", "300"))
    counters = device.counters(server)
    assert counters.link_bytes == 0 and counters.tcp_bytes > 300 * 512
    # A connection that was hardly used proves nothing.
    assert set(counters.reasons) <= {"peer-not-accelerated", "not-yet"}, counters.describe()
    assert counters.reasons["peer-not-accelerated"] > 0


def test_redis_with_a_server_that_is_not_accelerated(device: Device) -> None:
    options = ("--bind", SERVER, "--protected-mode", "no", "--save", "")
    device.lab.start(1, "redis-server", *options)
    device.lab.wait_for(2, f"redis-cli -h {SERVER} ping | grep -q PONG")
    assert '"GET"' in device.lab.out(2, *device.accelerated(*benchmark("-n", "300")))


def test_blocking_sockets_bring_every_byte(device: Device) -> None:
    """Both ends sleep in recv; the answers are compared."""
    server = device.lab.start(1, *device.accelerated(sys.executable, ECHO, "serve", SERVER, "7000"))
    words = line_from(server.stdout).split()
    assert words[:2] == ["listening", "as"]

    def run(times: int) -> None:
        client_command = device.accelerated(sys.executable, ECHO, "ask", SERVER, "7000", str(150 * times))
        assert device.lab.out(2, *client_command) == f"{150 * times} answers as asked\n"

    until_on_links(device, words[2], run)


@pytest.mark.parametrize(
    ("kind", "profile"),
    [
        ("rxe", "native"),
        ("siw", "native"),
        ("siw", "erdma"),
        pytest.param("erdma", "native", marks=pytest.mark.long),
    ],
)
def test_ipv6(kind: str, profile: str, request: pytest.FixtureRequest) -> None:
    """On links where the device's connection manager has IPv6, which eRDMA's has not."""
    device = Device(request.getfixturevalue(kind), profile, kind == "rxe")
    server = device.lab.start(1, *device.accelerated(sys.executable, ECHO, "serve", SERVER6, "7008"))
    words = line_from(server.stdout).split()
    assert words[:2] == ["listening", "as"]

    def run(times: int) -> None:
        client_command = device.accelerated(sys.executable, ECHO, "ask", SERVER6, "7008", str(100 * times))
        assert device.lab.out(2, *client_command) == f"{100 * times} answers as asked\n"

    if "erdma" not in (kind, profile):
        until_on_links(device, words[2], run)
    else:
        run(1)
        counters = device.counters(words[2])
        assert counters.link_bytes == 0 and counters.tcp_bytes > 0, counters.describe()


@pytest.mark.parametrize("kind", ["rxe", "siw", pytest.param("erdma", marks=pytest.mark.long)])
@pytest.mark.parametrize("role", ["prefork", "forking"])
def test_each_of_several_processes_of_one_port_is_found(
    kind: str, role: str, request: pytest.FixtureRequest
) -> None:
    """Two that accept for themselves, one of them with the port for links; and children that do not."""
    lab = request.getfixturevalue(kind)
    device = Device(lab, "native", loses=False)
    on_links: set[str] = set()
    with whole_wire(lab):
        server = lab.start(1, *device.accelerated(sys.executable, ECHO, role, SERVER, "7001"))
        words = line_from(server.stdout).split()
        assert words[:2] == ["listening", "as"]
        client_command = device.accelerated(sys.executable, ECHO, "ask", SERVER, "7001", "150", "2")
        for _ in attempts():
            assert lab.out(2, *client_command) == "150 answers as asked\n"
            workers = lab.out(1, "pgrep", "-P", words[2]).split()
            on_links |= {pid for pid in workers if device.counters(pid).link_bytes > 0}
            if len(on_links) >= 2:
                return
    pytest.fail(f"of {workers} only {on_links} were on links")
