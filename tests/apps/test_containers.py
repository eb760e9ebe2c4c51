"""Two containers of one host, made of namespaces as a container runtime makes them: they find each other
through a shared folder and nothing else, and without it they stay on TCP with a reason."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from tests.apps.lib.paths import REPO, binaries

pytestmark = pytest.mark.usefixtures("library")

#: Mount, PID and IPC namespaces of its own, with a shell that prepares the mounts.
UNSHARE = ["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc"]
#: A range set aside for tests of networks.
SERVER, CLIENT = "198.18.77.1", "198.18.77.2"
PORT = 7001
NOBODY, GAMES, STAFF = 65534, 5, 50
#: Requests of each benchmark: far more than it takes to get onto a link.
REQUESTS = 4000
#: No step takes longer than this.
PATIENCE_S = 20


@dataclass
class Seen:
    """The counters of a process at its end."""

    link_bytes: int
    tcp_bytes: int
    reasons: set[str]
    refused: bool
    log: str


@dataclass
class Side:
    """A container's settings."""

    folder: Path | None = None
    #: In a user namespace of its own, this user of the host is root.
    root_is: int | None = None
    prepare: str = "true"
    runs_as: tuple[int, int] | None = None
    group: int | None = None
    before: list[str] = field(default_factory=list)


class Network:
    """Two network namespaces that are joined by a cable. Several may have the same addresses."""

    def __init__(self, name: str) -> None:
        self.server, self.client = f"{name}s", f"{name}c"

    def __enter__(self) -> Network:
        ends = ((self.server, SERVER), (self.client, CLIENT))
        for namespace, _ in ends:
            ip("netns", "add", namespace)
        ip(
            "-n",
            self.server,
            "link",
            "add",
            "eth0",
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            self.client,
        )
        for namespace, address in ends:
            ip("-n", namespace, "address", "add", f"{address}/30", "dev", "eth0")
            ip("-n", namespace, "link", "set", "eth0", "up")
            ip("-n", namespace, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for namespace in (self.server, self.client):
            ip("netns", "delete", namespace)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture(autouse=True)
def permitted(need_condition: Callable[[str, bool], None]) -> None:
    need_condition("root", os.geteuid() == 0)
    name = f"np{os.getpid()}"
    added = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if added:
        ip("netns", "delete", name)
    need_condition("netns", added)


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(f"nc{os.getpid()}") as made:
        yield made


@pytest.fixture
def output() -> Iterator[Path]:
    """A folder in which every user can write. Its name is short, as the address of a socket has to be."""
    with tempfile.TemporaryDirectory(prefix="nc") as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


@contextmanager
def volume(path: Path, mode: str = "1777", size: str = "8m") -> Iterator[Path]:
    """A file system in memory, as `emptyDir` with `medium: Memory` is one."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode={mode},size={size}", "none", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


@pytest.fixture
def pod(output: Path) -> Iterator[Path]:
    """The folder that the containers share."""
    with volume(output / "pod") as path:
        yield path


def container(
    namespace: str, side: Side, name: str, output: Path, command: Sequence[str | Path]
) -> list[str]:
    """The command that runs `command` under the library in a container."""
    settings = {
        "NETACC_EXIT_STATS": output / f"{name}.stats",
        "NACC_LOG_PATH": output / f"{name}.log",
        "NACC_LOG_LEVEL": 3,
        "PYTHONPATH": REPO,
    }
    if side.folder:
        settings["NACC_SHM_DIR"] = side.folder
    if side.group is not None:
        settings["NACC_SHM_GROUP"] = side.group
    runs_as: list[str] = []
    if side.runs_as:
        user, group = side.runs_as
        runs_as = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"]
    assigned = [f"{key}={value}" for key, value in settings.items()]
    prepared = ["sh", "-c", f'{side.prepare} && exec "$@"', "sh"]
    inner = [*prepared, *runs_as, "env", *assigned, *side.before, binaries() / "netacc_run", *command]
    alone = [*UNSHARE]
    if side.root_is is not None:
        alone = [*as_user(side.root_is), *UNSHARE, "--user", "--map-root-user"]
    words = ["ip", "netns", "exec", namespace, *alone, *inner]
    return [str(word) for word in words]


def as_user(user: int) -> list[str]:
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]


def seen(output: Path, name: str, program: str) -> Seen:
    log, stats = output / f"{name}.log", output / f"{name}.stats"
    lines = [json.loads(line) for line in stats.read_text().splitlines()] if stats.exists() else []
    lines = [line for line in lines if line["program"] == program]
    counted = [line["cnt"] for line in lines]
    assert not any(counters["violations"] for counters in counted)
    return Seen(
        link_bytes=sum(counters["tx_bytes_link"] + counters["rx_bytes_link"] for counters in counted),
        tcp_bytes=sum(counters["tx_bytes_tcp"] + counters["rx_bytes_tcp"] for counters in counted),
        reasons={reason for line in lines for reason, count in line["reasons"].items() if count},
        refused=any(line["backend"] == "none" for line in lines),
        log=log.read_text() if log.exists() else "",
    )


class Server:
    """redis-server in the server's container of a network."""

    def __init__(self, network: Network, side: Side, output: Path, address: str = SERVER) -> None:
        self.network, self.output, self.address = network, output, address
        serve = [
            "redis-server",
            "--port",
            str(PORT),
            "--bind",
            address,
            "--save",
            "",
            "--protected-mode",
            "no",
        ]
        command = container(network.server, side, "server", output, [*serve, "--dir", "/"])
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + PATIENCE_S
        while self.ask("ping") != "PONG":
            assert self.process.poll() is None and time.monotonic() < deadline, "it does not start"

    def ask(self, *words: str) -> str:
        command = [
            "ip",
            "netns",
            "exec",
            self.network.server,
            "redis-cli",
            "-h",
            self.address,
            "-p",
            str(PORT),
        ]
        return subprocess.run(
            [*command, *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False
        ).stdout.strip()

    def load(self, namespace: str, side: Side, name: str = "client") -> Seen:
        """redis-benchmark in a container, to its end."""
        work = ["-h", self.address, "-p", str(PORT), "-t", "set", "-n", str(REQUESTS), "-c", "4", "--csv"]
        command = container(namespace, side, name, self.output, ["redis-benchmark", *work])
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0 and '"SET"' in done.stdout, done.stdout + done.stderr
        return seen(self.output, name, "redis-benchmark")

    def end(self) -> Seen:
        self.ask("shutdown", "nosave")
        assert self.process.wait(PATIENCE_S) == 0
        return seen(self.output, "server", "redis-server")

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        # A program that has become another user does not end with its parent. One that is killed leaves its
        # folder in /dev/shm, and the number of its namespace is given to another one.
        if self.process.poll() is None:
            for pid in children(self.process.pid):
                os.kill(pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE_S)
        self.process.kill()
        self.process.wait()


def exchange(network: Network, output: Path, server: Side, client: Side) -> tuple[Seen, Seen]:
    """The counters of a server and of its client, in a container each."""
    with Server(network, server, output) as running:
        loaded = running.load(network.client, client)
        return running.end(), loaded


def assert_linked(*sides: Seen) -> None:
    for side in sides:
        assert side.link_bytes > side.tcp_bytes, side


def assert_tcp(reason: str, *sides: Seen) -> None:
    for side in sides:
        assert side.link_bytes == 0 and reason in side.reasons, side


@pytest.mark.parametrize(
    "root_is", [None, 0, GAMES], ids=["one user namespace", "user namespaces", "mapped users"]
)
def test_a_shared_folder_joins_two_containers(
    root_is: int | None, network: Network, output: Path, pod: Path
) -> None:
    side = Side(folder=pod, root_is=root_is)
    assert_linked(*exchange(network, output, side, side))
    assert list(pod.iterdir()) == [], "the last to leave has removed everything"


@pytest.mark.parametrize("other", [None, 0, STAFF], ids=["no map", "root", "mapped"])
def test_users_of_different_maps_are_kept_apart(
    other: int | None, network: Network, output: Path, pod: Path
) -> None:
    """Both are user 0 inside, and different ones outside: the first one's directory is not the other's."""
    server, client = exchange(network, output, Side(pod, GAMES), Side(pod, other))
    assert server.link_bytes == client.link_bytes == 0
    assert not (server.refused or client.refused), "each has a directory of its own"


#: No host has it: the client's network sends connections to the server, as it does for a published port.
PUBLISHED = "198.18.78.1"


def test_a_translated_address_stays_on_tcp(network: Network, output: Path, pod: Path) -> None:
    """The two ends see different addresses, so neither finds the other's connection as its own."""
    ip("-n", network.client, "route", "add", f"{PUBLISHED}/32", "via", SERVER)
    chain = "table ip nat {\nchain output {\ntype nat hook output priority -100\n"
    rule = f"ip daddr {PUBLISHED} tcp dport {PORT} dnat to {SERVER}:{PORT}"
    nft = ["ip", "netns", "exec", network.client, "/usr/sbin/nft", f"{chain}{rule}\n}}\n}}\n"]
    subprocess.run(nft, check=True, timeout=PATIENCE_S)
    side = Side(folder=pod)
    with Server(network, side, output) as running:
        running.address = PUBLISHED
        client = running.load(network.client, side)
        running.address = SERVER
        server = running.end()
    assert_tcp("peer-elsewhere", client)
    assert server.link_bytes == 0 and server.tcp_bytes > REQUESTS


def test_without_a_folder_they_stay_on_tcp(network: Network, output: Path) -> None:
    server, client = exchange(network, output, Side(), Side())
    assert_tcp("other-host", server, client)


def test_with_different_folders_they_stay_on_tcp(network: Network, output: Path, pod: Path) -> None:
    with volume(output / "other") as other:
        server, client = exchange(network, output, Side(folder=pod), Side(folder=other))
    assert_tcp("peer-elsewhere", client)
    assert server.link_bytes == 0


@pytest.mark.parametrize("address", [SERVER, "127.0.0.1"])
def test_containers_of_one_network_namespace(address: str, network: Network, output: Path, pod: Path) -> None:
    """As in a pod: they share the network, and no PID namespace."""
    side = Side(folder=pod)
    with Server(network, side, output, address) as running:
        client = running.load(network.server, side)
        assert_linked(client, running.end())


def test_both_containers_of_a_pod_can_be_queried(network: Network, output: Path, pod: Path) -> None:
    """Each has a process 1, and both have one network namespace, in which that number names one of them."""
    with ExitStack() as stack:
        for address in ("127.0.0.1", SERVER):
            (output / address).mkdir(mode=0o777)
            running = stack.enter_context(Server(network, Side(folder=pod), output / address, address))
            query = ["nsenter", "--target", str(inside(running)), "--all", str(binaries() / "netacc_ss")]
            answer = subprocess.check_output([*query, "-p", "1", "--json"], timeout=PATIENCE_S)
            assert json.loads(answer)["program"] == "redis-server"
            assert "redis-server" in subprocess.check_output([*query], text=True, timeout=PATIENCE_S)


def host(*words: str) -> subprocess.CompletedProcess[str]:
    """A tool in the host's namespaces."""
    tool, *arguments = words
    return subprocess.run(
        [str(binaries() / tool), *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def inside(running: Server) -> int:
    """The number that the server has on the host."""
    (server,) = children(running.process.pid)
    return server


@pytest.mark.parametrize(
    "side",
    [Side(), Side(root_is=GAMES), Side(runs_as=(GAMES, GAMES))],
    ids=["root", "mapped users", "another user"],
)
def test_root_of_the_host_sees_containers(side: Side, network: Network, output: Path) -> None:
    with Server(network, side, output) as running:
        pid = str(inside(running))
        listed = json.loads(host("netacc_ss", "--json").stdout)
        assert [each["program"] for each in listed if each["pid"] == int(pid)] == ["redis-server"]
        assert json.loads(host("netacc_ss", "-p", pid, "--json").stdout)["program"] == "redis-server"
        assert (
            f'netacc_process{{pid="{pid}",program="redis-server"'
            in host("netacc", "exporter", "--once").stdout
        )
        assert pid in host("netacc", "top", "--once").stdout.split()
        assert f"process {pid}: " in host("netacc", "demote", "-p", pid).stdout
        # The client's own container has the number of a process of its own, or none.
        asked = ["ip", "netns", "exec", network.client, *UNSHARE, str(binaries() / "netacc_ss"), "--json"]
        assert json.loads(subprocess.check_output(asked, timeout=PATIENCE_S)) == []


def test_a_process_that_takes_the_name_of_another_is_found_out(network: Network, output: Path) -> None:
    """In its container's network any process may listen in the name of any other."""
    with Server(network, Side(), output) as running:
        program = "tests.apps.programs.impostor"
        inner = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-m", program]
        words = ["ip", "netns", "exec", network.server, *inner]
        with subprocess.Popen(words, cwd=REPO, stdout=subprocess.PIPE, text=True) as impostor:
            try:
                names = expect(impostor, "listening").split()[1:]
                assert names == ["2"]
                victim = subprocess.Popen(
                    [
                        "ip",
                        "netns",
                        "exec",
                        network.server,
                        *UNSHARE,
                        "sh",
                        "-c",
                        "sleep 1000 & echo $!; wait",
                    ],
                    stdout=subprocess.PIPE,
                    text=True,
                )
                try:
                    assert expect(victim) == "2"
                    (shell,) = children(victim.pid)
                    (sleeper,) = children(shell)
                    answer = host("netacc_ss", "-p", str(sleeper))
                    assert (answer.returncode, answer.stdout) == (
                        4,
                        "",
                    ) and "listens in its name" in answer.stderr
                    listed = json.loads(host("netacc_ss", "--json").stdout)
                    assert sleeper not in {each["pid"] for each in listed}
                    assert inside(running) in {each["pid"] for each in listed}
                finally:
                    victim.kill()
                    victim.wait()
            finally:
                impostor.kill()


LOCKSTEP = [sys.executable, "-m", "tests.apps.programs.lockstep"]
#: Several times as many as it takes to get onto a link.
ROUNDS = 400


@pytest.mark.parametrize("is_loopback", [True, False], ids=["loopback", "two networks"])
def test_equal_addresses_are_not_confused(is_loopback: bool, output: Path, pod: Path) -> None:
    """Two connections with all four numbers equal, one in each network, at the same position all the time. A
    peer that is found by address alone is the wrong one for one of them."""
    address, side = "127.0.0.1" if is_loopback else SERVER, Side(folder=pod)
    with ExitStack() as stack:
        networks = [stack.enter_context(Network(f"n{number}{os.getpid()}")) for number in (1, 2)]

        def start(namespace: str, name: str, does: str, seed: int) -> subprocess.Popen[str]:
            words = [*LOCKSTEP, does, address, str(PORT), str(seed)]
            command = container(namespace, side, name, output, words)
            started = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            stack.callback(started.wait)
            stack.callback(started.kill)
            return started

        clients = []
        for seed, network in enumerate(networks):
            expect(start(network.server, f"server{seed}", "listen", seed), "listening")
            where = network.server if is_loopback else network.client
            clients.append(start(where, f"client{seed}", "connect", seed))
        for _ in range(ROUNDS):
            for client in clients:
                send_line(client)
            assert [expect(client) for client in clients] == ["right", "right"]
        for client in clients:
            assert client.stdin is not None
            client.stdin.close()
            assert client.wait(PATIENCE_S) == 0
    links = [seen(output, f"client{seed}", "python").link_bytes for seed in (0, 1)]
    assert any(links) and (all(links) or not is_loopback), (
        "a connection is found by its addresses in one of two networks"
    )


def send_line(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go on\n")
    process.stdin.flush()


def expect(process: subprocess.Popen[str], start: str = "") -> str:
    """The next line of a process that begins so."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(start):
            return line.strip()
    raise AssertionError(f"no line {start}")


def test_users_are_kept_apart_and_a_group_joins_them(network: Network, output: Path, pod: Path) -> None:
    nobody, games = Side(pod, runs_as=(NOBODY, NOBODY)), Side(pod, runs_as=(GAMES, GAMES))
    assert_linked(*exchange(network, output, nobody, nobody))
    (output / "client.stats").unlink()
    _, client = exchange(network, output, nobody, games)
    assert_tcp("peer-elsewhere", client)


def test_a_group_joins_users(network: Network, output: Path, pod: Path) -> None:
    nobody = Side(pod, runs_as=(NOBODY, STAFF), group=STAFF)
    games = Side(pod, runs_as=(GAMES, STAFF), group=STAFF, prepare="umask 077")
    assert_linked(*exchange(network, output, nobody, games))


def test_a_user_that_could_be_any_is_refused(network: Network, output: Path, pod: Path) -> None:
    """In its user namespace the kernel shows every other user by the number that this one has."""
    client = Side(pod, before=["unshare", "--user", f"--map-user={NOBODY}"])
    _, loaded = exchange(network, output, Side(folder=pod), client)
    assert loaded.refused and loaded.link_bytes == 0
    assert "staying on TCP" in loaded.log and "user namespace" in loaded.log


def plant(pod: Path, kind: str) -> None:
    """What another user may have put where this one's directory belongs."""
    place = pod / "netacc-0"
    if kind == "folder":
        place.mkdir(mode=0o777)
    elif kind == "link":
        place.symlink_to(pod.parent)
    else:
        place.write_text("")
    os.chown(place, GAMES, GAMES, follow_symlinks=False)


@pytest.mark.parametrize("kind", ["folder", "link", "file"])
def test_what_another_user_planted_is_passed_over(
    kind: str, network: Network, output: Path, pod: Path
) -> None:
    plant(pod, kind)
    before = sorted(pod.iterdir())
    side = Side(folder=pod)
    assert_linked(*exchange(network, output, side, side))
    assert sorted(pod.iterdir()) == before
    assert not (pod / "netacc-0/table").exists()


def test_a_folder_that_others_can_write_is_refused(network: Network, output: Path, pod: Path) -> None:
    pod.chmod(0o777)
    for side in exchange(network, output, Side(folder=pod), Side(folder=pod)):
        assert side.refused and "no-backend" in side.reasons
        assert "staying on TCP: " in side.log and "chmod 700 or 1777" in side.log
    assert list(pod.iterdir()) == []


#: Mounts of a container, without a shared folder: whether two of them could still be joined by one.
MOUNTS = {
    "no /dev/shm": "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3",
    "tiny /dev/shm": "mount -t tmpfs -o size=64k none /dev/shm",
    "read-only /dev/shm": "mount -t tmpfs -o ro none /dev/shm",
    "full /dev/shm": "mount -t tmpfs -o size=4m none /dev/shm && ! dd if=/dev/zero of=/dev/shm/x 2>/dev/null",
    "read-only root": "mount -o remount,bind,ro /",
}


@pytest.mark.parametrize("kind", MOUNTS)
def test_a_folder_serves_whatever_else_is_missing(kind: str, network: Network, pod: Path) -> None:
    (pod / "out").mkdir(mode=0o777)
    side = Side(folder=pod, prepare=MOUNTS[kind])
    assert_linked(*exchange(network, pod / "out", side, side))


@pytest.mark.parametrize("kind", [kind for kind in MOUNTS if kind != "read-only root"])
def test_without_room_in_shared_memory_it_stays_on_tcp(kind: str, network: Network, output: Path) -> None:
    side = Side(prepare=MOUNTS[kind])
    for seen_there in exchange(network, output, side, side):
        assert seen_there.refused and seen_there.link_bytes == 0
        assert "staying on TCP: " in seen_there.log


def test_a_volume_that_is_too_small_is_a_reason(network: Network, output: Path) -> None:
    with volume(output / "small", size="64k") as small:
        side = Side(folder=small)
        for seen_there in exchange(network, output, side, side):
            assert seen_there.refused and "memory for the rendezvous table" in seen_there.log
        assert list(small.iterdir()) == []


def test_the_pod_of_the_documentation(network: Network, output: Path) -> None:
    """Its init container's command and its environment, on a volume that anyone can write."""
    text = (REPO / "docs/containers/kubernetes.yaml").read_text()
    (described_volume,) = yaml.safe_load(text)["spec"]["volumes"]
    size = described_volume["emptyDir"]["sizeLimit"].removesuffix("i")
    with volume(output / "netacc", mode="0777", size=size) as mounted:
        library = binaries() / "libnetacc-preload.so"
        text = text.replace("/usr/lib/x86_64-linux-gnu/libnetacc-preload.so", str(library))
        spec = yaml.safe_load(text.replace("/netacc", str(mounted)))["spec"]
        user = spec["securityContext"]["runAsUser"]
        (init,) = spec["initContainers"]
        runs_as = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        subprocess.run([*runs_as, *init["command"]], check=True, timeout=PATIENCE_S)
        for described in spec["containers"]:
            environment = {each["name"]: each["value"] for each in described["env"]}
            side = Side(Path(environment["NACC_SHM_DIR"]), runs_as=(user, user))
            assert environment["LD_PRELOAD"] == str(mounted / library.name)
            assert (mounted / library.name).exists()
        with Server(network, side, output, "127.0.0.1") as running:
            assert_linked(running.load(network.server, side), running.end())


def test_under_the_filter_of_a_container_runtime(network: Network, output: Path, pod: Path) -> None:
    side = Side(pod, before=[sys.executable, "-m", "tests.apps.programs.docker_filter"])
    assert_linked(*exchange(network, output, side, side))


def test_a_killed_container_leaves_nothing_for_long(network: Network, output: Path, pod: Path) -> None:
    """The others cannot look its processes up: the lock of its place shows that they have ended."""
    side = Side(folder=pod)
    own = pod / f"netacc-{os.geteuid()}"
    with Server(network, side, output) as running:
        sockets = {path for path in own.iterdir() if path.is_socket()}
        idle = [*LOCKSTEP, "listen", CLIENT, str(PORT), "0"]
        victim = subprocess.Popen(
            container(network.client, side, "victim", output, idle), stdout=subprocess.PIPE, text=True
        )
        expect(victim, "listening")
        killed = {path for path in own.iterdir() if path.is_socket()} - sockets
        assert killed
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        running.load(network.client, side)
        assert not killed & set(own.iterdir())
        running.end()
    assert list(pod.iterdir()) == []
