"""Short connections stay on TCP once a process has seen that a service's connections are short, unless links
have made them faster."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.apps.lib.compiling import compile_program
from tests.apps.lib.paths import binaries
from tests.apps.system_calls import counted

pytestmark = pytest.mark.usefixtures("library")

CONNECTIONS = 200
#: Connections that get a link before the process has seen four short ones.
LEARNING = 4
#: Runs of a program, in one of which the machine has time for links.
RUNS = 10
#: Calls that concern a connection, and no file.
OF_SOCKETS = (
    "socket",
    "connect",
    "accept4",
    "sendto",
    "recvfrom",
    "sendmsg",
    "recvmsg",
    "shutdown",
    "setsockopt",
    "getsockopt",
    "getsockname",
    "getpeername",
)
#: Of the whole run: the start and end of the library, and the links of the first connections. The others add
#: none: their listener has one address, and the kernel is asked for the rest only before a link.
ADDED_ONCE = 150


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(tmp_path_factory.mktemp("short"), "short")


def _with_counters(
    folder: Path, command: list[str | Path], **environment: str
) -> tuple[str, list[dict[str, int]]]:
    """What the program prints, and the counters of its processes."""
    stats = folder / "stats"
    env = {"PATH": "/usr/bin:/bin", "NETACC_CONF": "/dev/null", "NETACC_EXIT_STATS": str(stats)} | environment
    launcher: list[str | Path] = [binaries() / "netacc_run", *command]
    done = subprocess.run(launcher, env=env, check=True, stdout=subprocess.PIPE, text=True, timeout=120)
    return done.stdout, [json.loads(line)["cnt"] for line in stats.read_text().splitlines()]


def _with_link_bytes(folder: Path, command: list[str | Path], **environment: str) -> tuple[str, int]:
    """What the program prints, and the bytes that the process with the most of them has sent on links."""
    printed, counters = _with_counters(folder, command, **environment)
    return printed, max(counts["tx_bytes_link"] for counts in counters)


@pytest.mark.parametrize("requests", [0, 1, 3])
def test_short_connections_cost_little_more_than_on_tcp(requests: int, program: Path, tmp_path: Path) -> None:
    stats = tmp_path / "stats"
    command: list[str | Path] = [program, str(CONNECTIONS), str(requests)]
    natively = counted(tmp_path, command)
    accelerated: list[str | Path] = [binaries() / "netacc_run", *command]
    ours = counted(tmp_path, accelerated, NETACC_EXIT_STATS=str(stats))
    opens = sum(json.loads(line)["cnt"]["opens_sent"] for line in stats.read_text().splitlines())
    assert opens <= LEARNING
    # Calls that wait are as many as the machine is busy.
    # The library's accept is an accept4.
    assert sum(ours[name] - natively[name] for name in (*OF_SOCKETS, "accept")) <= ADDED_ONCE


def test_short_connections_make_the_calls_of_tcp(program: Path, tmp_path: Path) -> None:
    """Two runs begin in the same way, so the connections alone make the difference."""

    def of_connection(launcher: list[str | Path]) -> dict[str, float]:
        few, many = (
            counted(tmp_path, [*launcher, program, str(count), "2"])
            for count in (CONNECTIONS, 3 * CONNECTIONS)
        )
        # The library's accept is an accept4.
        for count in (few, many):
            count["accept4"] += count["accept"]
        return {name: (many[name] - few[name]) / (2 * CONNECTIONS) for name in OF_SOCKETS}

    natively, ours = of_connection([]), of_connection([binaries() / "netacc_run"])
    added = {name: ours[name] - natively[name] for name in OF_SOCKETS}
    # The links of the first connections take a few calls more or less.
    assert all(abs(more) < 0.2 for more in added.values()), added


def test_links_are_tried_where_short_connections_may_be_long_enough(program: Path, tmp_path: Path) -> None:
    """Breaks if connections of some more requests stayed on TCP where links would make them faster."""
    # On a busy machine most have ended when the library's thread comes.
    for run in range(RUNS):
        (tmp_path / str(run)).mkdir()
        _, counters = _with_counters(tmp_path / str(run), [program, str(10 * CONNECTIONS), "10"])
        if sum(counts["opens_sent"] for counts in counters) > LEARNING:
            return
    pytest.fail("no link was tried")


def test_a_server_learns_that_its_short_clients_ask_for_links(tmp_path: Path) -> None:
    """Breaks if its receives went on to take what comes while they sleep: then all clients' attempts fail."""
    command: list[str | Path] = [compile_program(tmp_path, "clients"), "60", "6", "6"]
    # On a busy machine few are attempted, each to a server that has forgotten the one before.
    for run in range(RUNS):
        (tmp_path / str(run)).mkdir()
        _, counters = _with_counters(tmp_path / str(run), command, NACC_PROMOTE_AFTER="0")
        refused, accepted = (
            max(counts[name] for counts in counters) for name in ("opens_refused", "opens_accepted")
        )
        if accepted > 2 * refused:
            return
    pytest.fail(f"{refused} were refused, and {accepted} accepted")


@pytest.mark.parametrize("again", range(3))
def test_a_server_of_short_clients_gives_a_long_one_its_link(again: int, tmp_path: Path) -> None:
    """Breaks if the client's request found the server's thread asleep in a receive that takes what comes, and
    the link's first record was taken for the client's bytes, or the client did not ask again."""
    done, sent = _with_link_bytes(tmp_path, [compile_program(tmp_path, "clients"), "8", "20000"])
    assert done == "done\n"
    assert sent > 15_000 * 64, again


def test_a_server_of_short_clients_makes_the_receives_of_tcp(tmp_path: Path) -> None:
    """Breaks if it did not learn that its clients are short, each of which is a process that has not."""
    clients = 100
    # Of the server's own thread, which makes three for each connection.
    command: list[str | Path] = ["strace", "-c", "-U", "calls,name", "-o", tmp_path / "trace"]
    command += [binaries() / "netacc_run", compile_program(tmp_path, "clients"), str(clients), "2"]
    env = {"PATH": "/usr/bin:/bin", "NETACC_CONF": "/dev/null"}
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL, timeout=120)
    lines = [line.split() for line in (tmp_path / "trace").read_text().splitlines()]
    received = next(int(words[0]) for words in lines if words[-1:] == ["recvfrom"])
    # Those of the connections that it has learned from are twice as many, and one client is longer.
    natively = 3 * 2 * (clients + 1)
    assert natively <= received <= natively + 50


def test_a_thread_that_only_receives_does_not_keep_a_connection_on_tcp(tmp_path: Path) -> None:
    """Breaks if the kernel served its receive whole: an attempt at promotion fails meanwhile."""
    command: list[str | Path] = [compile_program(tmp_path, "duplex", "-pthread"), "20000"]
    # As after short connections to the same service.
    done, sent = _with_link_bytes(tmp_path, command, NACC_PROMOTE_AFTER="24")
    assert done == "done\n"
    assert sent > 15_000 * 64


def test_a_long_connection_after_short_ones_gets_its_link(program: Path, tmp_path: Path) -> None:
    """Breaks if a service with short connections would keep all others on TCP."""
    # 8 connections of 2 requests, and then one of 20,000.
    _, sent = _with_link_bytes(tmp_path, [program, "8", "2", "20000"])
    assert sent > 20_000 * 64
