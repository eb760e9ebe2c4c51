"""The pre-shared key between two hosts: only hosts with the same key make links."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.apps.lib.counters import Counters
from tests.lab.lib import attempts, line_from, whole_wire
from tests.lab.test_programs import ECHO, SERVER, Device

KEYS = {"one": "8f3kd92hf73kd02jf83kd02kf83kd02k", "other": "kf83kd02k8f3kd92hf73kd02jf83kd02"}


def keyed(device: Device, host: int, key: str, *command: str) -> tuple[str, ...]:
    """An accelerated command with this key, or with none."""
    if not key:
        return tuple(device.accelerated(*command))
    path = f"/tmp/{key}.key"
    device.lab.out(host, "sh", "-c", f"umask 077; echo {KEYS[key]} >{path}")
    return ("env", f"NACC_PSK_FILE={path}", *device.accelerated(*command))


@pytest.fixture(params=["rxe", "siw", pytest.param("erdma", marks=pytest.mark.long)])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """Two hosts, with each of the devices."""
    lab = request.getfixturevalue(str(request.param))
    with whole_wire(lab):
        yield Device(lab, "native", loses=False)


@pytest.mark.parametrize(
    ("server_key", "client_key", "reason"),
    [
        ("one", "one", ""),
        ("one", "other", "key-mismatch"),
        ("one", "", "key-missing"),
        ("", "one", "key-missing"),
    ],
)
def test_links_need_the_same_key(device: Device, server_key: str, client_key: str, reason: str) -> None:
    lab = device.lab
    server = lab.start(1, *keyed(device, 1, server_key, sys.executable, ECHO, "serve", SERVER, "7003"))
    words = line_from(server.stdout).split()
    assert words[:2] == ["listening", "as"]
    client_command = keyed(device, 2, client_key, sys.executable, ECHO, "ask", SERVER, "7003", "300")

    def seen(counters: Counters) -> bool:
        return counters.reasons[reason] > 0 if reason else counters.link_bytes > 0

    # With the first conversation the server opens its device.
    for _ in attempts():
        assert lab.out(2, *client_command) == "300 answers as asked\n", "whole, on whichever path"
        counters = device.counters(words[2])
        if seen(counters):
            break
    assert seen(counters), counters.describe()
    if reason:
        assert counters.link_bytes == 0 and counters.streams_promoted == 0, counters.describe()
    else:
        assert not {"key-missing", "key-mismatch"} & set(counters.reasons), counters.describe()
