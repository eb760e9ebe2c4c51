"""The verbs backend between two hosts: on a link that loses packets, and when a peer goes away."""

from __future__ import annotations

import subprocess

from tests.apps.lib.paths import REPO
from tests.lab.lib import COMMAND_SECONDS, UpLab, line_from

PROGRAM = str(REPO / "target/debug/examples/verbs_echo")
PORT = 26379


def serve(lab: UpLab) -> subprocess.Popen[str]:
    server = lab.start(1, PROGRAM, "serve", "10.99.0.1", str(PORT))
    assert line_from(server.stdout) == "listening\n"
    return server


def send_for_ever(lab: UpLab) -> subprocess.Popen[str]:
    client = lab.start(2, PROGRAM, "send", "10.99.0.2", f"10.99.0.1:{PORT}", "1000000000")
    assert line_from(client.stdout) == "echoing\n"
    return client


def ends_with(process: subprocess.Popen[str], line: str) -> None:
    printed, _ = process.communicate(timeout=COMMAND_SECONDS)
    assert printed.splitlines()[-1:] == [line], printed
    assert process.returncode == 0


def test_messages_arrive_whole_and_in_order(pair: UpLab) -> None:
    """4 KiB each, eight in flight, each echo compared; both ends sleep on their completion channels."""
    server = serve(pair)
    assert "done" in pair.out(2, PROGRAM, "send", "10.99.0.2", f"10.99.0.1:{PORT}", "200")
    ends_with(server, "disconnected")


def test_a_peer_that_is_killed_is_noticed(pair: UpLab) -> None:
    server = serve(pair)
    client = send_for_ever(pair)
    pair.out(1, "pkill", "-KILL", "-x", "verbs_echo")
    ends_with(client, "disconnected")
    assert server.wait(timeout=COMMAND_SECONDS) == 137


def test_an_address_without_a_listener_is_an_error(pair: UpLab) -> None:
    result = pair.run(2, PROGRAM, "send", "10.99.0.2", f"10.99.0.1:{PORT + 1}", "1")
    assert result.returncode == 1
    assert "does not accept links" in result.stderr
