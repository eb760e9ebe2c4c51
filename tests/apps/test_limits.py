"""Resource limits: a program that works under one on TCP works under it with the library, with the same
result."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.apps.lib.compiling import compile_program
from tests.apps.lib.paths import binaries
from tests.apps.test_calls import run

pytestmark = pytest.mark.usefixtures("library")

PAGE = 4096
MIB = 1 << 20

#: So often a connection is used that it gets onto a link, if there can be one.
ROUNDS = 3000


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`programs/limits.c`, built, where every user can run it."""
    return compile_program(tmp_path_factory.mktemp("limits"), "limits")


@dataclass
class Accelerated:
    """The output of a run under the library, and the counters of its processes."""

    text: str
    link_bytes: int = 0
    reasons: set[str] = field(default_factory=set)
    violations: int = 0


def natively(program: Path, *arguments: object) -> str:
    return run([program, *map(str, arguments)])


def accelerated(program: Path, folder: Path, *arguments: object, before: tuple[str, ...] = ()) -> Accelerated:
    """Run the program under the library, which promotes connections at their first use."""
    counted = folder / "counted"
    counted.unlink(missing_ok=True)
    text = run(
        [*before, binaries() / "netacc_run", "-F", "1", program, *map(str, arguments)],
        NETACC_EXIT_STATS=str(counted),
    )
    seen = Accelerated(text)
    for line in counted.read_text().splitlines() if counted.exists() else []:
        if not line.endswith("}"):
            continue  # RLIMIT_FSIZE has cut it off.
        document = json.loads(line)
        seen.link_bytes += document["cnt"].get("tx_bytes_link", 0)
        seen.violations += document["cnt"].get("violations", 0)
        seen.reasons |= {reason for reason, count in document["reasons"].items() if count}
    return seen


#: Each a limit for both sides. Below the smallest of them the program itself does not work on TCP.
SWEEPS = {
    "FSIZE": [0, 1, 512, PAGE - 1, PAGE, 2 * MIB, 4 * MIB, 64 * MIB - 1, 64 * MIB, 2048 * MIB],
    "MEMLOCK": [0, PAGE],
    "SIGPENDING": [0, 1],
    "STACK": [64 << 10, 256 << 10, 8 * MIB],
}


@pytest.mark.parametrize("resource", SWEEPS)
def test_a_limit_changes_no_result(resource: str, program: Path, tmp_path: Path) -> None:
    for value in SWEEPS[resource]:
        arguments = (resource, value, value, 1, 2, 50)
        assert accelerated(program, tmp_path, *arguments).text == natively(program, *arguments), (
            f"{resource} {value}"
        )


def test_without_file_sizes_there_is_no_link_and_a_reason(program: Path, tmp_path: Path) -> None:
    """No SIGXFSZ: neither side can size a file, nor write its counters."""
    log = tmp_path / "log"
    log.write_text("")
    refused = run(
        [binaries() / "netacc_run", "-F", "1", program, "FSIZE", "4096", "4096", "1", "2", "50"],
        NACC_LOG_PATH=str(log),
    )
    assert refused == natively(program, "FSIZE", 4096, 4096, 1, 2, 50)
    assert "staying on TCP: ftruncate" in log.read_text()


@pytest.mark.parametrize("limits", [("-", 4096), (4096, "-")])
def test_one_side_without_file_sizes(limits: tuple[object, object], program: Path, tmp_path: Path) -> None:
    seen = accelerated(program, tmp_path, "FSIZE", *limits, 1, 2, 50)
    assert seen.text == natively(program, "FSIZE", *limits, 1, 2, 50)
    assert seen.link_bytes == 0
    assert "memory-limit" in seen.reasons


def test_links_are_there_where_files_may_be_large_enough(program: Path, tmp_path: Path) -> None:
    seen = accelerated(program, tmp_path, "FSIZE", 64 * MIB, 64 * MIB, 1, 2, ROUNDS)
    assert seen.link_bytes > 50 * 64


def test_without_a_thread_there_is_no_link_and_a_reason(program: Path, tmp_path: Path) -> None:
    """RLIMIT_NPROC, which does not bind root."""
    tmp_path.chmod(0o777)
    for folder in [program.parent, *program.parents[1:4], *tmp_path.parents[:3]]:
        folder.chmod(folder.stat().st_mode | 0o111)
    user = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")
    arguments = ("NPROC", 0, 0, 1, 2, 50)
    seen = accelerated(program, tmp_path, *arguments, before=user)
    assert seen.text == run([*user, program, *map(str, arguments)])
    assert seen.text.endswith("status 0")
    assert seen.link_bytes == 0
    assert "thread-limit" in seen.reasons


def smallest_data_limit(program: Path) -> int:
    """The smallest RLIMIT_DATA, in steps of 64 KiB, with which the program succeeds natively."""
    step = 64 << 10
    low, high = 0, 64 * MIB // step
    while high - low > 1:
        middle = (low + high) // 2
        done = natively(program, "DATA", middle * step, middle * step, 1, 2, 50).endswith("status 0")
        low, high = (low, middle) if done else (middle, high)
    return high * step


#: The limit for the library's own data, its heap and the stack of its thread. It was 9 MB.
DATA_ALLOWED = MIB


def test_little_of_the_data_limit_is_taken(program: Path, tmp_path: Path) -> None:
    """RLIMIT_DATA counts private writable memory, whether it is touched or not. There are links with little
    more than the program itself needs."""
    limit = smallest_data_limit(program) + DATA_ALLOWED
    seen = accelerated(program, tmp_path, "DATA", limit, limit, 1, 2, ROUNDS)
    assert seen.text == natively(program, "DATA", limit, limit, 1, 2, ROUNDS)
    assert seen.link_bytes > 50 * 64


@pytest.mark.parametrize("bytes_allowed", [32 * MIB, 128 * MIB, 512 * MIB, 1024 * MIB])
def test_an_address_space_is_not_filled(bytes_allowed: int, program: Path, tmp_path: Path) -> None:
    seen = accelerated(program, tmp_path, "AS", bytes_allowed, bytes_allowed, 3, 2, ROUNDS)
    assert seen.text == natively(program, "AS", bytes_allowed, bytes_allowed, 3, 2, ROUNDS)
    if bytes_allowed == 1024 * MIB:
        assert seen.link_bytes > 50 * 64


#: With few the program has no room for a listener of its own; from 52 on the library begins with some.
NOFILE = {"epoll": list(range(3, 65)), "poll": [8, 16, 24, 32, 51, 52, 53, 64]}


@pytest.mark.parametrize("wait", ["epoll", "poll"])
def test_as_many_connections_as_on_tcp(wait: str, program: Path, tmp_path: Path) -> None:
    """With any limit, EMFILE stops server and client exactly where it stops them on TCP."""
    for value in NOFILE[wait]:
        for limits in [(value, "-"), ("-", value)]:
            arguments = ("NOFILE", *limits, 1, 80, 3, wait)
            seen = accelerated(program, tmp_path, *arguments)
            assert seen.text == natively(program, *arguments), f"limits {limits}"


@pytest.mark.parametrize("wait", ["epoll", "poll"])
@pytest.mark.parametrize(("value", "clients"), [(64, 45), (64, 55), (128, 118)])
def test_many_clients_under_a_limit(
    value: int, clients: int, wait: str, program: Path, tmp_path: Path
) -> None:
    """The first connection gets onto a link, and leaves it before the program runs out of descriptors. No
    process may report a violation by another one that gives back its descriptors."""
    arguments = ("NOFILE", value, "-", clients, 1, ROUNDS // 3, wait)
    seen = accelerated(program, tmp_path, *arguments)
    assert seen.text == natively(program, *arguments)
    assert f"{clients} connections" in seen.text
    assert seen.link_bytes > ROUNDS // 3 * 64
    assert seen.violations == 0
    assert "protocol-violation" not in seen.reasons


#: A server that is asked for its descriptors at once, under a limit it has reached.
OPENS_EVERYTHING = """
import errno, os, resource, select, socket, sys

def opens():
    yield "open", lambda: os.open("/dev/null", os.O_RDONLY)
    yield "dup", lambda: os.dup(0)
    yield "socket", lambda: socket.socket().detach()
    yield "pipe", lambda: os.pipe()[0]
    yield "socketpair", lambda: [s.detach() for s in socket.socketpair()][0]
    yield "eventfd", lambda: os.eventfd(0)
    yield "memfd", lambda: os.memfd_create("x")
    yield "epoll", lambda: kept.append(select.epoll())

kept = []
listener = socket.create_server(("127.0.0.1", 0))
limit = 96
for which, call in opens():
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        served = socket.create_server(("127.0.0.1", 0))
        client = os.fork()
        if client == 0:
            peer = socket.create_connection(served.getsockname())
            for _ in range(3000):
                peer.sendall(b"x" * 64)
                assert len(peer.recv(64, socket.MSG_WAITALL)) == 64
            os._exit(0)
        connection, _ = served.accept()
        for _ in range(2000):
            connection.sendall(connection.recv(64, socket.MSG_WAITALL))
        count = 0
        try:
            while count < 2 * limit:
                call()
                count += 1
        except OSError as error:
            print(which, count, errno.errorcode[error.errno], flush=True)
        for _ in range(1000):
            connection.sendall(connection.recv(64, socket.MSG_WAITALL))
        os.waitpid(client, 0)
        sys.exit(0)
    os.waitpid(child, 0)
"""


def test_every_call_that_opens_a_descriptor_gets_those_of_the_library(tmp_path: Path) -> None:
    """So many times each call succeeds, and then it fails with EMFILE, while a connection is on a link."""
    script = tmp_path / "opens.py"
    script.write_text(OPENS_EVERYTHING)
    without = run([sys.executable, script])
    counted = tmp_path / "counted"
    seen = run([binaries() / "netacc_run", "-F", "1", sys.executable, script], NETACC_EXIT_STATS=str(counted))
    assert seen == without
    documents = [json.loads(line) for line in counted.read_text().splitlines()]
    assert sum(document["cnt"].get("tx_bytes_link", 0) for document in documents) > 0


#: Makes temporary files, which the C library opens, until four descriptors are left. There is a link.
OPENS_UNSEEN = """
import ctypes, os, resource, socket

library = ctypes.CDLL(None)
resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))
served = socket.create_server(("127.0.0.1", 0))
client = os.fork()
if client == 0:
    peer = socket.create_connection(served.getsockname())
    for _ in range(3000):
        peer.sendall(b"x" * 64)
        assert len(peer.recv(64, socket.MSG_WAITALL)) == 64
    os._exit(0)
connection, _ = served.accept()
for _ in range(2000):
    connection.sendall(connection.recv(64, socket.MSG_WAITALL))
while os.open("/dev/null", os.O_RDONLY) < 96 - 5:
    path = ctypes.create_string_buffer(b"/tmp/netacc-test-XXXXXX")
    number = library.mkstemp(path)
    print(number >= 0, flush=True)
    if number >= 0:
        os.close(number)
        os.unlink(path.value)
for _ in range(1000):
    connection.sendall(connection.recv(64, socket.MSG_WAITALL))
os.waitpid(client, 0)
"""


def test_the_c_library_has_descriptors_left(tmp_path: Path) -> None:
    """The library does not see descriptors that it opens, so it leaves room for them before."""
    script = tmp_path / "unseen.py"
    script.write_text(OPENS_UNSEEN)
    counted = tmp_path / "counted"
    command: list[str | Path] = [binaries() / "netacc_run", "-F", "1", sys.executable, script]
    assert run(command, NETACC_EXIT_STATS=str(counted)) == run([sys.executable, script])
    documents = [json.loads(line) for line in counted.read_text().splitlines()]
    assert sum(document["cnt"].get("tx_bytes_link", 0) for document in documents) > 0


#: Runs out of descriptors while its peer is stopped, which has sent 5,000 bytes before, and reads them once
#: the peer goes on (SIGCONT) or is killed (SIGKILL).
STOPPED = """
import errno, os, resource, signal, socket, sys

resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))
served = socket.create_server(("127.0.0.1", 0))
sent, sends = os.pipe()
client = os.fork()
if client == 0:
    peer = socket.create_connection(served.getsockname())
    for _ in range(1000):
        peer.sendall(b"x" * 64)
        assert len(peer.recv(64, socket.MSG_WAITALL)) == 64
    peer.sendall(b"u" * 5000)
    os.write(sends, b"s")
    assert len(peer.recv(64, socket.MSG_WAITALL)) == 64
    os._exit(0)
connection, _ = served.accept()
for _ in range(1000):
    connection.sendall(connection.recv(64, socket.MSG_WAITALL))
os.read(sent, 1)
os.kill(client, signal.SIGSTOP)
os.waitpid(client, os.WUNTRACED)
try:
    while True:
        os.open("/dev/null", os.O_RDONLY)
except OSError as error:
    print(errno.errorcode[error.errno])
os.kill(client, getattr(signal, sys.argv[1]))
read = b""
while len(read) < 5000:
    read += connection.recv(5000)
print(len(read), set(read))
if sys.argv[1] == "SIGCONT":
    connection.sendall(b"y" * 64)
try:
    print(connection.recv(1))
except OSError as error:
    print(errno.errorcode[error.errno])
os.waitpid(client, 0)
"""


@pytest.mark.parametrize("then", ["SIGCONT", "SIGKILL"])
def test_a_stopped_peer_costs_no_bytes(then: str, tmp_path: Path) -> None:
    """The move to TCP waits for the peer. If the peer goes on, its bytes come. If it is killed, they are read
    from the link's memory, and then comes a reset: its kernel cannot know that they have been read."""
    script = tmp_path / "stopped.py"
    script.write_text(STOPPED)
    counted = tmp_path / "counted"
    command: list[str | Path] = [binaries() / "netacc_run", "-F", "1", sys.executable, script, then]
    seen = run(command, NETACC_EXIT_STATS=str(counted))
    natively = run([sys.executable, script, then])
    assert natively == "EMFILE\n5000 {117}\nb''\nstatus 0"
    assert seen == (natively if then == "SIGCONT" else natively.replace("b''", "ECONNRESET"))
    documents = [json.loads(line) for line in counted.read_text().splitlines()]
    assert max(document["cnt"].get("rx_bytes_link", 0) for document in documents) > 5000


#: Counts its descriptors while every client has a connection on a link. Arguments: clients.
COUNTS = """
import os, select, socket, sys

clients, rounds = int(sys.argv[1]), 3000
listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
for _ in range(clients):
    if os.fork() == 0:
        with socket.create_connection(listener.getsockname()) as peer:
            for _ in range(rounds):
                peer.sendall(b"x" * 64)
                assert len(peer.recv(64, socket.MSG_WAITALL)) == 64
            # Until the server has counted.
            peer.recv(1)
        os._exit(0)
poll = select.epoll()
connections = {}
for _ in range(clients):
    connection, _ = listener.accept()
    connections[connection.fileno()] = connection
    poll.register(connection.fileno(), select.EPOLLIN)
left = clients * rounds * 64
while left:
    for number, _ in poll.poll():
        bytes = connections[number].recv(64)
        connections[number].sendall(bytes)
        left -= len(bytes)
print(len(os.listdir("/proc/self/fd")))
for connection in connections.values():
    connection.close()
for _ in range(clients):
    os.wait()
"""

#: Without a peer: the helper's epoll instance, its kick, the listener of netacc_ss, the list of mappings; the
#: device's listener, epoll instance, kick, doorbell page; the helper's queue. An epoll instance of the
#: program: queue, kick.
OWN = 11
#: The pair's socket, and the wake descriptor of the one queue on which the peer was woken.
OF_A_PEER = 2


@pytest.mark.parametrize("clients", [1, 45])
def test_descriptors_are_counted(clients: int, tmp_path: Path) -> None:
    script = tmp_path / "counts.py"
    script.write_text(COUNTS)
    without = run([sys.executable, script, str(clients)])
    counted = tmp_path / "counted"
    command: list[str | Path] = [binaries() / "netacc_run", "-F", "1", sys.executable, script, str(clients)]
    seen = run(command, NETACC_EXIT_STATS=str(counted))
    taken = int(seen.split("status")[0]) - int(without.split("status")[0])
    assert taken <= OWN + clients * OF_A_PEER, f"{taken} descriptors for {clients} peers"
    documents = [json.loads(line) for line in counted.read_text().splitlines()]
    assert max(document["cnt"].get("tx_bytes_link", 0) for document in documents) > clients * 64 * 1000
