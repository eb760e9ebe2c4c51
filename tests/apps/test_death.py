"""A process that is killed takes its side of every link with it. The other side reads everything that was
sent, then the end that the kernel would have made of it, and goes on serving others."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass

import pytest

from tests.apps.lib import counters
from tests.apps.lib.counters import Counters
from tests.apps.lib.lab import Lab
from tests.apps.lib.modes import Mode
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.process import Process

STREAM = [sys.executable, "-m", "tests.apps.programs.stream"]
BEFORE_PAUSE = 64 << 20  # enough for a stream that is always busy to find its way onto a link
# Bytes sent in all: the rest fits into a link, so that the stream stays there while the peer reads nothing.
SENT = BEFORE_PAUSE + (96 << 10)
BOUNDED = ["--bytes", str(SENT), "--stay"]


@dataclass(frozen=True)
class End:
    """How a stream ended, as tests.apps.programs.stream reports it."""

    bytes: int
    how: str
    intact: bool


def read_end(line: str) -> End:
    return End(**json.loads(line.removeprefix("end ")))


def final_counters(process: Process) -> Counters:
    """The sender's counters once it has sent everything."""
    deadline = time.monotonic() + 10
    while (now := counters.totals(process)).all_bytes < SENT:
        assert time.monotonic() < deadline, f"{process.name} has not sent everything: {now.describe()}"
    return now


@pytest.mark.parametrize("mode", [Mode.TCP, Mode.SHM], ids=lambda mode: mode.value, indirect=True)
def test_server_killed(mode: Mode, lab: Lab) -> None:
    """The client reads all bytes that the server sent, and then the end: the server had nothing unread."""
    port = free_port()
    server = lab.start("sender", [*STREAM, "listen", "send", str(port), *BOUNDED], accelerated=mode.server)
    wait_listening(port, server)
    client = lab.start(
        "receiver",
        [*STREAM, "connect", "receive", str(port), "--pause-after", str(BEFORE_PAUSE)],
        accelerated=mode.client,
        interactive=True,
    )
    client.wait_line("paused")
    sent = final_counters(server) if mode is Mode.SHM else Counters()
    lab.remark(f"server before its end: {sent.describe()}")
    server.kill()
    client.send_line("go on")
    end = read_end(client.wait_line("end"))
    assert end.intact
    assert end.bytes >= BEFORE_PAUSE
    # The kernel of a killed sender drops bytes for which its peer had no room.
    assert mode is Mode.TCP or end.how == "eof"
    if mode is Mode.SHM:
        assert [socket.path for socket in sent.sockets if not socket.listening] == ["link"]
        assert end.bytes >= sent.tx_bytes_link + sent.tx_bytes_tcp, "sent bytes died with their sender"
    lab.dismiss(client)


@pytest.mark.parametrize("mode", [Mode.TCP, Mode.SHM], ids=lambda mode: mode.value, indirect=True)
def test_client_killed(mode: Mode, lab: Lab) -> None:
    """The server sees the end, loses no sent byte, and serves the next client."""
    port = free_port()
    server = lab.start(
        "receiver",
        [*STREAM, "listen", "receive", str(port), "--pause-after", str(BEFORE_PAUSE)],
        accelerated=mode.server,
        interactive=True,
    )
    wait_listening(port, server)
    client = lab.start("sender", [*STREAM, "connect", "send", str(port), *BOUNDED], accelerated=mode.client)
    server.wait_line("paused")
    sent = final_counters(client) if mode is Mode.SHM else Counters()
    lab.remark(f"client before its end: {sent.describe()}")
    client.kill()
    server.send_line("go on")
    end = read_end(server.wait_line("end"))
    assert end.intact
    assert end.bytes >= BEFORE_PAUSE
    # The kernel of a killed sender drops bytes for which its peer had no room.
    assert mode is Mode.TCP or end.how == "eof"
    if mode is Mode.SHM:
        assert [socket.path for socket in sent.sockets] == ["link"]
        assert end.bytes >= sent.tx_bytes_link + sent.tx_bytes_tcp, "sent bytes died with their sender"

    size = BEFORE_PAUSE // 2  # below the pause, so the server reads it through
    following = lab.start(
        "next-sender",
        [*STREAM, "connect", "send", str(port), "--bytes", str(size)],
        accelerated=mode.client,
        interactive=True,
    )
    assert read_end(following.wait_line("end")) == End(size, "complete", True)
    lab.dismiss(following)
    wanted = f'end {{"bytes": {size}, "how": "eof", "intact": true}}'
    server.wait_line(wanted)
    if mode is Mode.SHM:
        seen = counters.totals(server)
        lab.expect_link(seen, who="server", payload_bytes=end.bytes + size, share=0.2)
        left = [socket for socket in seen.sockets if socket.path == "link"]
        assert not left, f"links of connections that are gone: {left}"


@pytest.mark.parametrize("mode", [Mode.TCP, Mode.SHM], ids=lambda mode: mode.value, indirect=True)
def test_parent_killed(mode: Mode, lab: Lab) -> None:
    """A link dies with its process. A child that holds the socket gets a reset, and no byte that the
    other side sends to the dead process on the kernel's connection."""
    port = free_port()
    server = lab.start(
        "sender", [*STREAM, "listen", "send", str(port), *BOUNDED[:2]], accelerated=mode.server
    )
    wait_listening(port, server)
    orphan = [
        sys.executable,
        "-m",
        "tests.apps.programs.orphan",
        str(port),
        "--pause-after",
        str(BEFORE_PAUSE),
    ]
    client = lab.start("receiver", orphan, accelerated=mode.client, interactive=True)
    client.wait_line("paused")
    sent = final_counters(server) if mode is Mode.SHM else Counters()
    client.send_line("go on")
    end = read_end(client.wait_line("end"))
    assert end.intact
    if mode is Mode.SHM:
        assert sent.tx_bytes_link > 0
        assert end == End(BEFORE_PAUSE, "reset", True)
    else:
        assert end == End(SENT, "eof", True)
    lab.dismiss(client)


@pytest.mark.parametrize("mode", [Mode.TCP, Mode.SHM], ids=lambda mode: mode.value, indirect=True)
def test_a_write_to_a_killed_peer_does_not_give_eagain(mode: Mode, lab: Lab) -> None:
    """Where `poll` has reported room: hiredis 1.0 takes EAGAIN there for an error without a name."""
    module = [sys.executable, "-m", "tests.apps.programs.bereaved_client"]
    client = lab.start(
        "client",
        [*module, str(free_port()), "12"],
        accelerated=mode.client,
        env={"NACC_FAST_CONNECT": "1"},
        interactive=True,
    )
    assert client.wait_line("refused") == "refused 0"
    if mode is Mode.SHM:
        assert counters.totals(client).streams_promoted >= 80
    lab.dismiss(client)
