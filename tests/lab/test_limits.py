"""A process that runs out of a resource goes on over TCP with a reason; its links stay as they are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.apps.lib.counters import Counters
from tests.lab.lib import UpLab, attempts, line_from, whole_wire
from tests.lab.test_programs import ECHO, SERVER, Device

#: One that every user can execute.
PYTHON = "/usr/bin/python3"

#: Without the right to lock as much memory as it likes.
AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all")

#: Runs a command in a group of processes that may have so many objects of RDMA devices in all.
IN_GROUP = """
set -e
group=/tmp/cgroup
if [ ! -d $group ]; then
    mkdir $group
    mount -t cgroup2 none $group
    echo +rdma >$group/cgroup.subtree_control
fi
mkdir $group/$$
echo "$(ls /sys/class/infiniband | head -1) hca_object=$1" >$group/$$/rdma.max
echo $$ >$group/$$/cgroup.procs
shift
exec "$@"
"""

#: Connections that may not share links need as many of these as there are.
APART = ("env", "NACC_SOR_CONN_PER_QP=1")

#: The limit of a command, its reason, and its number of connections: there are enough descriptors for the
#: program, and would not be if each connection had a link.
LIMITS = {
    "locked memory": ((*AS_NOBODY, "prlimit", "--memlock=65536:65536"), "memory-limit", 20),
    "descriptors": ((*APART, "prlimit", "--nofile=130:130"), "exhausted", 60),
    "device objects": ((*APART, "sh", "-c", IN_GROUP, "group", "24"), "exhausted", 20),
}
MESSAGES = 1200


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """Two hosts, with each of the devices."""
    lab = request.getfixturevalue(str(request.param))
    with whole_wire(lab):
        yield Device(lab, "native", loses=False)


def serve(device: Device, port: str, *before: str) -> str:
    """A server with a thread for each connection; its process id."""
    program = device.accelerated(PYTHON, ECHO, "threaded", SERVER, port)
    server = device.lab.start(1, *before, *program)
    words = line_from(server.stdout).split()
    assert words[:2] == ["listening", "as"], words
    return words[2]


def client_command(port: str, connections: int) -> tuple[str, ...]:
    """A client with so many connections at a time."""
    return PYTHON, ECHO, "ask", SERVER, port, str(MESSAGES // connections), str(connections)


def run_clients(lab: UpLab, *command: str) -> None:
    assert lab.out(2, *command).endswith(" answers as asked\n"), "whole, on whichever path"


def counted(device: Device, pid: str, reason: str, *command: str) -> Counters:
    """Conversations until the server has counted the reason; its counters then."""
    for _ in attempts():
        run_clients(device.lab, *command)
        counters = device.counters(pid)
        if counters.reasons[reason] > 0:
            break
    assert counters.reasons[reason] > 0, counters.describe()
    return counters


def also_long(role: str) -> list[Any]:
    """Devices and limits. A process has the same limits on each device: usually each role has one of them."""
    usual = {"server": "rxe", "client": "siw"}[role]
    marks = {kind: () if kind == usual else (pytest.mark.long,) for kind in ("rxe", "siw", "erdma")}
    return [pytest.param(kind, limit, marks=marks[kind]) for kind in marks for limit in LIMITS]


@pytest.mark.parametrize(("device", "limit"), also_long("server"), indirect=["device"])
def test_a_server_that_runs_out(device: Device, limit: str) -> None:
    before, reason, connections = LIMITS[limit]
    pid = serve(device, "7004", *before)
    counted(device, pid, reason, *device.accelerated(*client_command("7004", connections)))
    # It lives, and goes on taking connections, accelerated or not.
    run_clients(device.lab, *client_command("7004", 2))
    run_clients(device.lab, *device.accelerated(*client_command("7004", connections)))


@pytest.mark.parametrize(("device", "limit"), also_long("client"), indirect=["device"])
def test_a_client_that_runs_out(device: Device, limit: str) -> None:
    """The reason is its own limit, and not an absent peer."""
    before, reason, connections = LIMITS[limit]
    serve(device, "7005")
    reported = f"/tmp/{limit.replace(' ', '-')}.json"
    for _ in attempts():
        program = device.accelerated(*client_command("7005", connections))
        run_clients(device.lab, *before, "env", f"NETACC_EXIT_STATS={reported}", *program)
        last = json.loads(device.lab.out(2, "tail", "-n", "1", reported))
        if last["reasons"].get(reason, 0) > 0:
            break
    assert last["reasons"].get(reason, 0) > 0, last
