"""Where there can be no link, programs work as on plain TCP, and a reason is counted. Never a hang."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.apps.lib import counters
from tests.apps.lib.compiling import compile_program
from tests.apps.lib.lab import Lab
from tests.apps.lib.net import free_port, inside, wait_listening
from tests.apps.lib.paths import binaries
from tests.apps.lib.process import Process

pytestmark = pytest.mark.usefixtures("library")

MODULES = "tests.apps.programs"
NOBODY = "nobody"


def start_echo(
    lab: Lab,
    *,
    accelerated: bool = True,
    env: Mapping[str, str] | None = None,
    before: Sequence[str] = (),
    host: str = "127.0.0.1",
) -> tuple[Process, int]:
    port = free_port()
    argv = [sys.executable, "-m", f"{MODULES}.echo_server", str(port), host]
    server = lab.start("echo-server", argv, accelerated=accelerated, env=env, before=before)
    wait_listening(port, server)
    return server, port


def echo_client(port: int, host: str = "127.0.0.1") -> list[str]:
    return [sys.executable, "-m", f"{MODULES}.echo_client", str(port), "--host", host, "--connections", "4"]


def test_backend_missing(lab: Lab) -> None:
    env = {"NACC_BACKEND": "none"}
    server, port = start_echo(lab, env=env)
    client, report = lab.client("echo-client", echo_client(port), accelerated=True, env=env)
    for who, side in (("client", client), ("server", server)):
        lab.expect_tcp(counters.totals(side), who=who, payload_bytes=report.payload_bytes)
    lab.dismiss(client)


def test_backend_missing_on_one_side(lab: Lab) -> None:
    server, port = start_echo(lab)
    env = {"NACC_BACKEND": "none"}
    client, report = lab.client("echo-client", echo_client(port), accelerated=True, env=env)
    for who, side in (("client", client), ("server", server)):
        lab.expect_tcp(counters.totals(side), who=who, payload_bytes=report.payload_bytes)
    lab.dismiss(client)


def test_no_locked_memory(lab: Lab) -> None:
    """Shared memory may not need locked memory; a backend that does must fall back and report it."""
    before = ["prlimit", "--memlock=0:0"]
    server, port = start_echo(lab, before=before)
    client, report = lab.client("echo-client", echo_client(port), accelerated=True, before=before)
    for who, side in (("client", client), ("server", server)):
        seen = counters.totals(side)
        lab.remark(f"{who}: {seen.describe()}")
        assert seen.all_bytes >= report.payload_bytes
        assert seen.link_bytes or seen.reasons, f"{who}: neither accelerated nor a reason why not"
    lab.dismiss(client)


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("NACC_SOR_MSG_SIZE=lots", "NACC_SOR_MSG_SIZE"),
        ("NACC_SOR_MSG_SIZE=-1", "NACC_SOR_MSG_SIZE"),
        ("NACC_CONNECT_RDMA_PERCENT=101", "NACC_CONNECT_RDMA_PERCENT"),
        ("NACC_RDMA_MR_MAX_INC_SIZE=1000", "NACC_RDMA_MR_MAX_INC_SIZE"),
        ("NACC_RDMA_MR_MIN_INC_SIZE=49152", "NACC_RDMA_MR_MIN_INC_SIZE"),
        ("NACC_LOG_LEVEL=9", "NACC_LOG_LEVEL"),
        ("NACC_NO_SUCH_KEY=1", "NACC_NO_SUCH_KEY"),
    ],
)
def test_bad_configuration(lab: Lab, line: str, key: str) -> None:
    """One clear line names file and error; the program starts and works all the same."""
    conf = lab.folder / "bad.conf"
    conf.write_text(f"[netacc]\n# a comment\n{line}\n")
    _, port = start_echo(lab, accelerated=False)
    argv = [str(binaries() / "netacc_run"), "-f", str(conf), *echo_client(port)]
    client, _ = lab.client("echo-client", argv)
    lab.dismiss(client)
    complaints = [text for text in client.stderr().splitlines() if str(conf) in text]
    assert len(complaints) == 1, client.stderr()
    assert f"{conf}:3" in complaints[0] or "line 3" in complaints[0], complaints[0]
    assert key in complaints[0]


def test_configuration_missing(lab: Lab) -> None:
    """A file that was asked for by name and is not there is worth a line, and no more than that."""
    _, port = start_echo(lab, accelerated=False)
    conf = lab.folder / "absent.conf"
    argv = [str(binaries() / "netacc_run"), "-f", str(conf), *echo_client(port)]
    client, _ = lab.client("echo-client", argv)
    lab.dismiss(client)
    assert sum(str(conf) in text for text in client.stderr().splitlines()) == 1, client.stderr()


def compile_client(lab: Lab, *flags: str) -> Path:
    return compile_program(lab.folder, "plain_client", *flags)


def test_static_program_that_is_not_to_be_changed(lab: Lab) -> None:
    program = compile_client(lab, "-static")
    server, port = start_echo(lab)
    client = lab.start("client", [program, str(port)], accelerated=True, config="NACC_STATIC=0\n")
    assert "done" in client.finish()
    assert "is statically linked, so nothing is preloaded into it: it stays on TCP" in client.stderr()
    lab.expect_tcp(counters.totals(server), who="server", payload_bytes=2 << 20)


#: `vfs_cap_data` of <linux/capability.h>, version 2: CAP_NET_BIND_SERVICE is permitted, and effective.
BIND_SERVICE = struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0)


@pytest.mark.parametrize("linked", ["dynamic", "static"])
@pytest.mark.parametrize("starter", [[], ["sh", "-c", 'exec "$0" "$@"']], ids=["launcher", "exec"])
def test_setuid_program(
    linked: str, starter: list[str], lab: Lab, need_condition: Callable[[str, bool], None]
) -> None:
    """A program that gains rights runs as if nothing was asked.

    The dynamic loader drops LD_PRELOAD, and a static program gets no loader.
    """
    need_condition("root", os.geteuid() == 0)
    need_condition("setuid", not os.statvfs(lab.folder).f_flag & os.ST_NOSUID)
    program = compile_client(lab, *(["-static"] if linked == "static" else []))
    shutil.chown(program, NOBODY)
    program.chmod(0o4755)
    server, port = start_echo(lab)
    assert "done" in lab.run("setuid-client", [*starter, program, str(port)], accelerated=True)
    lab.expect_tcp(counters.totals(server), who="server", payload_bytes=2 << 20)


@pytest.mark.parametrize("linked", ["dynamic", "static"])
def test_setuid_program_that_may_gain_nothing(
    linked: str, lab: Lab, need_condition: Callable[[str, bool], None]
) -> None:
    """The kernel ignores the bit then, and so the program is accelerated as any other."""
    need_condition("root", os.geteuid() == 0)
    program = compile_client(lab, *(["-static"] if linked == "static" else []))
    shutil.chown(program, NOBODY)
    program.chmod(0o4755)
    server, port = start_echo(lab)
    words: list[str | Path] = [program, str(port)]
    client = lab.start("client", words, accelerated=True, before=["setpriv", "--no-new-privs"])
    assert "done" in client.finish()
    assert "privileges" not in client.stderr()
    assert counters.totals(server).link_bytes > 0


def test_static_program_with_capabilities(lab: Lab, need_condition: Callable[[str, bool], None]) -> None:
    need_condition("root", os.geteuid() == 0)
    program = compile_client(lab, "-static")
    server, port = start_echo(lab)
    os.setxattr(program, "security.capability", BIND_SERVICE)
    words: list[str | Path] = ["sh", "-c", 'exec "$0" "$@"', program, str(port)]
    assert "done" in lab.run("client", words, accelerated=True)
    lab.expect_tcp(counters.totals(server), who="server", payload_bytes=2 << 20)


@pytest.mark.parametrize("stranger", ["client", "server"])
def test_another_user(lab: Lab, stranger: str, need_condition: Callable[[str, bool], None]) -> None:
    """Only the same user is admitted to a link. Everybody may talk TCP."""
    need_condition("root", os.geteuid() == 0)
    port = free_port()
    user = {stranger: NOBODY}
    folder = lab.shared_folder(NOBODY, NOBODY)
    server = lab.start(
        "redis-server",
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)],
        accelerated=True,
        user=user.get("server"),
        folder=folder,
    )
    wait_listening(port, server)
    client = lab.start(
        "redis-cli",
        ["redis-cli", "-p", str(port)],
        accelerated=True,
        user=user.get("client"),
        folder=folder,
        interactive=True,
    )
    for number in range(50):
        client.send_line(f"ECHO {number}-{'x' * 1000}")
    client.wait_line("49-")
    assert client.stdout().splitlines() == [f"{number}-{'x' * 1000}" for number in range(50)]
    for who, side in (("client", client), ("server", server)):
        seen = counters.totals(side)
        lab.expect_tcp(seen, who=who, payload_bytes=2 * 50_000)
        assert set(seen.reasons) == {"peer-other-user"}


def start_peer(lab: Lab, program: str, port: int, *, before: Sequence[str] = (), **env: str) -> Process:
    """A program of `tests.apps.programs.untaken`, once it has done its part and waits for its end."""
    argv = [sys.executable, "-m", f"{MODULES}.untaken", program, str(port)]
    started = lab.start(program, argv, accelerated=True, env=env, before=before, interactive=True)
    started.wait_line("listening" if program == "serve" else "sent 1")
    return started


def why(process: Process) -> str:
    """Why the connection of a process is on TCP."""
    seen = counters.query(process.pid)
    assert seen is not None
    (connection,) = [item for item in seen.sockets if item.remote]
    assert connection.path == "tcp"
    return connection.reason


def test_a_peer_that_has_not_accepted(lab: Lab) -> None:
    """It runs the library, and its program is busy with something else."""
    port = free_port()
    server = start_peer(lab, "serve", port)
    client = start_peer(lab, "send", port)
    assert why(client) == "peer-not-accepted"
    server.send_line("accept")
    server.wait_line("accepted")
    client.send_line("more")
    client.wait_line("sent 2")
    seen = counters.totals(client)
    assert seen.link_bytes > 0, "once it is accepted nothing is in the way"
    for one in (client, server):
        lab.dismiss(one)


def test_a_peer_that_keeps_to_tcp(lab: Lab) -> None:
    """It runs the library, which is switched off there."""
    port = free_port()
    server = start_peer(lab, "serve", port, NACC_BACKEND="none")
    server.send_line("accept")
    client = start_peer(lab, "send", port)
    server.wait_line("accepted")
    client.send_line("more")
    client.wait_line("sent 2")
    assert (why(client), why(server)) == ("peer-keeps-tcp", "disabled")
    for one in (client, server):
        lab.dismiss(one)


def test_a_peer_with_shared_memory_of_its_own(lab: Lab, need_condition: Callable[[str, bool], None]) -> None:
    """Both run the library, and cannot find each other: as in two containers with one network."""
    need_condition("root", os.geteuid() == 0)
    port = free_port()
    script = 'mount -t tmpfs none /dev/shm && exec "$@"'
    server = start_peer(lab, "serve", port, before=["unshare", "--mount", "sh", "-c", script, "sh"])
    server.send_line("accept")
    client = start_peer(lab, "send", port)
    server.wait_line("accepted")
    client.send_line("more")
    client.wait_line("sent 2")
    assert why(client) == "peer-apart"
    for one in (client, server):
        lab.dismiss(one)


def test_a_peer_without_the_library(lab: Lab) -> None:
    port = free_port()
    server = lab.start(
        "serve", [sys.executable, "-m", f"{MODULES}.untaken", "serve", str(port)], interactive=True
    )
    server.wait_line("listening")
    server.send_line("accept")
    client = start_peer(lab, "send", port)
    server.wait_line("accepted")
    client.send_line("more")
    client.wait_line("sent 2")
    assert why(client) == "peer-not-accelerated"
    for one in (client, server):
        lab.dismiss(one)


def test_peer_in_another_namespace(lab: Lab, namespace: str) -> None:
    """The nearest thing to another host: a link or not, the bytes are right and the reason is reported."""
    here, there = "198.18.77.1", "198.18.77.2"  # a range set aside for tests of networks
    near = f"nt{os.getpid()}a"
    commands = [
        f"ip link add {near} type veth peer name eth0 netns {namespace}",
        f"ip address add {here}/30 dev {near}",
        f"ip link set {near} up",
        f"ip -n {namespace} address add {there}/30 dev eth0",
        f"ip -n {namespace} link set eth0 up",
    ]
    for command in commands:
        subprocess.run(command.split(), check=True)
    server, port = start_echo(lab, host=here)
    client, report = lab.client(
        "echo-client", echo_client(port, here), accelerated=True, before=inside(namespace)
    )
    seen = counters.totals(server)
    lab.remark(f"server: {seen.describe()}")
    assert seen.all_bytes >= report.payload_bytes
    assert seen.link_bytes or seen.reasons, "neither accelerated nor a reason why not"
    lab.dismiss(client)


def test_same_addresses_in_two_namespaces(lab: Lab, namespace: str) -> None:
    """Two connections with all four numbers equal, one in each namespace: whoever is found by address alone
    is the wrong peer for one of them."""
    port, source_port = free_port(), free_port()
    size = 32 << 20
    worlds = {"outside": (1, []), "inside": (2, inside(namespace))}
    clients = {}
    for where, (seed, before) in worlds.items():
        stream = [sys.executable, "-m", f"{MODULES}.stream"]
        sending = [*stream, "listen", "send", str(port), "--seed", str(seed), "--bytes", str(size)]
        server = lab.start(f"sender-{where}", sending, accelerated=True, before=before)
        # Not `wait_listening`: before the process has entered its namespace, it sees the other's port open.
        server.wait_line("listening")
        receiving = [*stream, "connect", "receive", str(port), "--seed", str(seed)]
        receiving += ["--source-port", str(source_port), "--pause-after", str(size // 8)]
        clients[where] = lab.start(
            f"receiver-{where}", receiving, accelerated=True, before=before, interactive=True
        )
    for client in clients.values():
        client.wait_line("paused")
    for where, client in clients.items():
        client.send_line("go on")
        end = client.wait_line("end")
        assert end == f'end {{"bytes": {size}, "how": "eof", "intact": true}}', f"{where}: {end}"
        lab.dismiss(client)
