"""Three members of etcd on links: the history of several clients is linearizable, with members that die.

Porcupine, a Go module, checks the history: `ci/run.sh apps` downloads it.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.apps.lib import counters, golang
from tests.apps.lib.client import DONE, read_report
from tests.apps.lib.lab import Lab
from tests.apps.lib.modes import Mode
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.paths import PROGRAMS
from tests.apps.lib.process import Process
from tests.apps.lib.results import Results
from tests.apps.test_switch import linked, switch, wait_linked

pytestmark = pytest.mark.usefixtures("library")

MEMBERS = 3
#: Operations between two events.
STEP = 100
#: Each member moves at least these on links in the last step: entries of its log.
VALUES_BYTES = 20_000
#: Of the clients' bytes. The rest goes over TCP: at a connection's begin, and while a member is demoted.
SHARE = 0.5


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("linearizable") / "linearizable"
    golang.build(program, golang.Mode(), source=PROGRAMS / "linearizable")
    return program


def check(checker: Path, history: str) -> str:
    return subprocess.run(
        [checker], input=history, capture_output=True, text=True, check=True, timeout=100
    ).stdout.strip()


class Cluster:
    """The members, by number."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.ports = [free_port() for _ in range(MEMBERS)]
        self.peers = [free_port() for _ in range(MEMBERS)]
        self.members: list[Process] = []
        # A member answers nobody before it has found another one.
        for number in range(MEMBERS):
            self.members.append(self._start(number))
        for number in range(MEMBERS):
            wait_listening(self.ports[number], self.members[number])

    def _start(self, number: int) -> Process:
        url, peer_url = (f"http://127.0.0.1:{ports[number]}" for ports in (self.ports, self.peers))
        cluster = ",".join(f"m{other}=http://127.0.0.1:{port}" for other, port in enumerate(self.peers))
        words: list[str | Path] = [
            *("etcd", "--name", f"m{number}", "--data-dir", self.lab.folder / f"m{number}"),
            *("--listen-client-urls", url, "--advertise-client-urls", url),
            *("--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url),
            *("--initial-cluster", cluster, "--log-level", "warn"),
        ]
        return self.lab.start(f"m{number}", words, accelerated=True)

    def start_again(self, number: int) -> None:
        self.members[number] = self._start(number)
        wait_listening(self.ports[number], self.members[number])

    def leader(self) -> int:
        """The number of the member that the others follow."""
        for number, port in enumerate(self.ports):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            connection.request("POST", "/v3/maintenance/status", "{}")
            status = json.load(connection.getresponse())
            connection.close()
            if status["header"]["member_id"] == status.get("leader"):
                return number
        pytest.fail("no member is the leader")


def wait_completed(client: Process, more: int = STEP) -> None:
    """Until so many more operations have succeeded."""

    def completed() -> int:
        lines = client.stdout().rpartition("\n")[0].splitlines()
        return int(lines[-1].split()[1]) if lines else 0

    wanted, deadline = completed() + more, time.monotonic() + 60
    while completed() < wanted:
        assert client.poll() is None, "the clients have ended"
        assert time.monotonic() < deadline, f"{completed()} of {wanted} operations in time"
        time.sleep(0.01)


def test_a_history_of_three_members_is_linearizable(checker: Path, lab: Lab, results: Results) -> None:
    """Breaks if bytes of a link are lost, come twice, or come to another connection."""
    cluster = Cluster(lab)
    history = lab.folder / "history"
    words: list[str | Path] = [sys.executable, "-m", "tests.apps.programs.register_client", history]
    words += [str(port) for port in cluster.ports]
    client = lab.start("clients", words, accelerated=True, interactive=True)
    wait_completed(client)
    killed = cluster.leader()
    cluster.members[killed].kill()
    wait_completed(client)
    cluster.start_again(killed)
    wait_completed(client)
    leader = cluster.leader()
    demoted = cluster.members[(leader + 1) % MEMBERS]
    (answer,) = switch("demote", demoted)
    assert answer["on_link"] == 0 and not answer["allowed"]
    wait_completed(client)
    assert linked(demoted) == 0, "a connection went onto a link while the member was demoted"
    (answer,) = switch("promote", demoted)
    assert answer["allowed"]
    for member in cluster.members:
        wait_linked(member, client, 2)
    before = [counters.totals(member) for member in cluster.members]
    wait_completed(client)
    for number, member in enumerate(cluster.members):
        step = counters.totals(member).since(before[number])
        lab.remark(f"m{number} in the last step: {step.describe()}")
        assert step.link_bytes >= VALUES_BYTES
    client.send_line("stop")
    report = read_report(client.wait_line(DONE))
    operations = history.read_text()
    unknown = sum(json.loads(line)["end"] is None for line in operations.splitlines())
    lab.remark(f"{report.requests} operations, {unknown} without a result")
    assert unknown > 0, "the member that was killed answered all requests"
    assert check(checker, operations) == "ok"
    seen = counters.totals(client)
    lab.expect_link(seen, who="clients", payload_bytes=report.payload_bytes, share=SHARE)
    results.add(
        "etcd cluster",
        Mode.SHM,
        seen,
        requests=report.requests,
        payload_bytes=report.payload_bytes,
        seconds=report.seconds,
    )
    lab.dismiss(client)


def operation(client: int, kind: str, times: Sequence[int], **values: object) -> str:
    begin, *end = times
    line = {"client": client, "key": "r", "kind": kind, "begin": begin} | values
    return json.dumps(line | ({"end": end[0]} if end else {})) + "\n"


def test_the_checker_knows_illegal_histories(checker: Path) -> None:
    """Breaks if the model of a register permits a stale read, or a swap of another value."""
    write = operation(0, "write", (0, 10), value="a")
    second = operation(0, "write", (20, 30), value="b")
    assert check(checker, write + second + operation(1, "read", (25, 35), found="a")) == "ok"
    assert check(checker, write + second + operation(1, "read", (40, 50), found="a")) == "illegal"
    assert check(checker, write + operation(1, "read", (20, 30), found="")) == "illegal"
    # A write without a result takes effect at any time, or never.
    lost = operation(0, "write", (20,), value="b")
    both = operation(1, "read", (30, 40), found="a") + operation(1, "read", (50, 60), found="b")
    assert check(checker, write + lost + both) == "ok"
    assert check(checker, write + lost + both + operation(1, "read", (70, 80), found="a")) == "illegal"
    swap = operation(1, "swap", (20, 30), expected="x", value="b", swapped=True)
    assert check(checker, write + swap) == "illegal"
    assert check(checker, write + swap.replace('"x"', '"a"')) == "ok"
    assert check(checker, write + swap.replace("true", "false")) == "ok"
