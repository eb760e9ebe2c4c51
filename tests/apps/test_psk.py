"""The pre-shared key: processes with the same key are accelerated; others stay on TCP, for that reason."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import pytest

from tests.apps.lib import counters
from tests.apps.lib.lab import Lab
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.process import Process

pytestmark = pytest.mark.usefixtures("library")

MODULES = "tests.apps.programs"
KEYS = {"one": "8f3kd92hf73kd02jf83kd02kf83kd02k", "other": "kf83kd02k8f3kd92hf73kd02jf83kd02"}


def key_file(lab: Lab, name: str, mode: int = 0o600) -> dict[str, str]:
    """The environment of a program that has this key; of one that has none, for an empty name."""
    if not name:
        return {}
    path = lab.folder / f"{name}.key"
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    # With and without an end of line: people make key files in both ways.
    path.write_text(KEYS[name] + ("\n" if name == "one" else ""))
    path.chmod(mode)
    return {"NACC_PSK_FILE": str(path)}


Env = Mapping[str, str]


def echo(lab: Lab, server_env: Env, client_env: Env) -> tuple[Process, Process, int]:
    """A conversation, checked byte by byte: server, client, bytes of payload."""
    port = free_port()
    argv = [sys.executable, "-m", f"{MODULES}.echo_server", str(port), "127.0.0.1"]
    server = lab.start("echo-server", argv, accelerated=True, env=server_env)
    wait_listening(port, server)
    argv = [sys.executable, "-m", f"{MODULES}.echo_client", str(port), "--connections", "4"]
    client, report = lab.client("echo-client", argv, accelerated=True, env=client_env)
    return server, client, report.payload_bytes


def test_the_same_key(lab: Lab) -> None:
    env = key_file(lab, "one")
    server, client, payload_bytes = echo(lab, env, env)
    for who, side in (("client", client), ("server", server)):
        lab.expect_link(counters.totals(side), who=who, payload_bytes=payload_bytes, share=0.5)
    lab.dismiss(client)


@pytest.mark.parametrize(
    ("server_key", "client_key", "reason"),
    [
        ("one", "other", "key-mismatch"),
        ("one", "", "key-missing"),
        ("", "one", "key-missing"),
    ],
)
def test_another_key_or_none(lab: Lab, server_key: str, client_key: str, reason: str) -> None:
    server, client, payload_bytes = echo(lab, key_file(lab, server_key), key_file(lab, client_key))
    for who, side in (("client", client), ("server", server)):
        seen = counters.totals(side)
        lab.expect_tcp(seen, who=who, payload_bytes=payload_bytes)
        assert seen.reasons[reason] > 0, f"{who}: {seen.describe()}"
    shown = {socket.reason for socket in counters.totals(client).sockets if not socket.listening}
    assert shown <= {reason}, f"each connection of the client's has that reason: {shown}"
    lab.dismiss(client)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
def test_a_key_that_is_no_secret(lab: Lab, mode: int) -> None:
    """A key that others could have read protects nothing: the library logs that, and stays off links."""
    env = key_file(lab, "one", mode)
    log = lab.folder / "netacc.log"
    server, client, payload_bytes = echo(lab, key_file(lab, "other"), env | {"NACC_LOG_PATH": str(log)})
    seen = counters.totals(client)
    lab.expect_tcp(seen, who="client", payload_bytes=payload_bytes)
    assert seen.reasons["key-missing"] > 0, seen.describe()
    lab.expect_tcp(counters.totals(server), who="server", payload_bytes=payload_bytes)
    lab.dismiss(client)
    assert f"mode {mode:04o} gives others access" in log.read_text()
    assert KEYS["one"] not in log.read_text()


def test_a_key_that_is_not_there(lab: Lab) -> None:
    missing = {"NACC_PSK_FILE": str(lab.folder / "none.key")}
    server, client, payload_bytes = echo(lab, missing, missing)
    for who, side in (("client", client), ("server", server)):
        seen = counters.totals(side)
        lab.expect_tcp(seen, who=who, payload_bytes=payload_bytes)
        assert seen.reasons["key-missing"] > 0, seen.describe()
    lab.dismiss(client)
