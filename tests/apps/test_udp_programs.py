"""UDP programs of other projects, each with the library on both sides and on one side only."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.apps.lib.lab import Lab
from tests.apps.lib.modes import Mode
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.test_datagrams import Seen

PACKET = 1400
#: Some are lost on a busy machine, by the kernel alone as well.
MOST_LOST = 0.5
REQUESTS = 2000


def counted(lab: Lab, name: str) -> dict[str, str]:
    return {"NETACC_EXIT_STATS": str(lab.folder / f"{name}.counted")}


def seen(lab: Lab, name: str) -> Seen:
    return Seen.of(Path(counted(lab, name)["NETACC_EXIT_STATS"]))


def test_iperf3(mode: Mode, lab: Lab) -> None:
    """Breaks if a server that waits in select for TCP and UDP misses datagrams in rings."""
    port = str(free_port())
    server = lab.start(
        "server",
        ["iperf3", "--server", "--one-off", "--bind", "127.0.0.1", "--port", port],
        accelerated=mode.server,
        env=counted(lab, "server"),
    )
    wait_listening(int(port), server)
    argv = ["iperf3", "--client", "127.0.0.1", "--port", port, "--json", "--udp", "--time", "1"]
    argv += ["--bitrate", "200M", "--length", str(PACKET)]
    client = lab.start("client", argv, accelerated=mode.client, env=counted(lab, "client"))
    end = json.loads(client.finish(100))["end"]["sum"]
    assert server.wait() == 0
    assert end["packets"] > 0 and end["lost_packets"] <= MOST_LOST * end["packets"], end
    if mode is Mode.SHM:
        assert seen(lab, "server").received_link > 0
    for name, accelerated in (("server", mode.server), ("client", mode.client)):
        if accelerated and mode.one_sided:
            one = seen(lab, name)
            assert one.flows == one.sent_link == one.received_link == 0, one


def test_memcached(mode: Mode, lab: Lab) -> None:
    """Several of its threads wait on one socket. The client checks each answer."""
    port = free_port()
    argv = ["memcached", "-l", "127.0.0.1", "-p", "0", "-U", str(port), "-t", "2"]
    if os.geteuid() == 0:
        argv += ["-u", "root"]
    lab.start("memcached", argv, accelerated=mode.server)
    client = lab.start(
        "client",
        [sys.executable, "-m", "tests.apps.programs.memcached_udp_client", str(port), str(REQUESTS)],
        accelerated=mode.client,
        env=counted(lab, "client"),
    )
    assert client.finish(100) == f"{REQUESTS} values\n"
    if mode is Mode.SHM:
        assert seen(lab, "client").flows == 2
    elif mode.client:
        assert seen(lab, "client").flows == 0
