"""UDP between processes: the same datagrams in the same order as by the kernel, and many of them on rings."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.apps.lib.lab import Lab
from tests.apps.lib.modes import Mode
from tests.apps.lib.net import free_port
from tests.apps.lib.paths import binaries
from tests.apps.programs.datagram_holders import NUMBERS
from tests.apps.programs.datagram_leaving import NUMBERS as NUMBERS_OF_A_ROUND
from tests.apps.programs.datagram_returns import EXCHANGES
from tests.apps.programs.datagram_server import WAYS

BURSTS = 400
#: Of a burst the first datagram wakes the receiver, and the others take the ring, unless it sleeps again.
#: On a busy machine most bursts have gone before the receiver runs, and those that follow a datagram in the
#: kernel take the kernel, too.
SHARE = 0.02
#: Of test_calls' datagrams that are to take the ring: two phases of 40, without those before there is a flow.
WARM = 10
#: On a busy machine all datagrams may have gone before there is a flow.
ATTEMPTS = 5
#: While two threads sleep, it is not known which one a datagram wakes.
WITHOUT_SHARE = {"threads"}
#: Those whose sockets stay in the kernel.
KERNELS = {"nested", "once"}


@dataclass(frozen=True)
class Seen:
    """What one process has counted when it ended."""

    flows: int
    sent_link: int
    received_link: int
    sent_kernel: int
    received_kernel: int
    taken_back: int

    @classmethod
    def of(cls, counted: Path) -> Seen:
        if not counted.exists():
            # The library has had nothing to do.
            return cls(0, 0, 0, 0, 0, 0)
        (line,) = counted.read_text().splitlines()
        count = json.loads(line)["cnt"]
        ways = [f"datagrams_{what}_{by}" for by in ("link", "kernel") for what in ("sent", "received")]
        ways.append("datagrams_taken_back")
        return cls(count["datagram_flows"], *(count[way] for way in ways))


@dataclass(frozen=True)
class Ran:
    server: Seen | None
    client: Seen | None


def run(
    lab: Lab, mode: Mode, way: str, address: str = "127.0.0.1", how: str = "sendto", config: str = ""
) -> Ran:
    """One conversation, which the client checks. The counts are those of accelerated processes."""
    port = free_port()
    counted = [lab.folder / "server.counted", lab.folder / "client.counted"]
    module = "tests.apps.programs.datagram_"
    server = lab.start(
        "server",
        [
            sys.executable,
            "-m",
            module + "server",
            "0.0.0.0" if how == "alternating" else address,
            str(port),
            way,
        ],
        accelerated=mode.server,
        env={"NETACC_EXIT_STATS": str(counted[0])},
        config=config,
    )
    server.wait_line("ready")
    order = "any" if way == "threads" else "ordered"
    client = lab.start(
        "client",
        [sys.executable, "-m", module + "client", address, str(port), str(BURSTS), how, order],
        accelerated=mode.client,
        env={"NETACC_EXIT_STATS": str(counted[1])},
    )
    printed = client.finish(100)
    assert server.wait() == 0
    assert f"received {BURSTS // 50 + (BURSTS - BURSTS // 50) * 16}" in printed
    sides = zip((mode.server, mode.client), counted, strict=True)
    return Ran(*(Seen.of(file) if accelerated else None for accelerated, file in sides))


@pytest.mark.parametrize("way", sorted(WAYS))
def test_ways_to_wait(mode: Mode, way: str, lab: Lab) -> None:
    ran = run(lab, mode, way)
    if mode is Mode.SHM and way not in KERNELS:
        assert ran.server is not None and ran.client is not None
        assert ran.server.flows == ran.client.flows == 2
        total = ran.server.received_link + ran.server.received_kernel
        assert ran.server.received_link >= (0 if way in WITHOUT_SHARE else SHARE) * total, ran
        assert (ran.server.received_link, ran.client.received_link) == (
            ran.client.sent_link,
            ran.server.sent_link,
        )
    else:
        for seen in (ran.server, ran.client):
            assert seen is None or seen.flows == seen.sent_link == seen.received_link == 0, ran


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("how", ["sendto", "connected"])
@pytest.mark.usefixtures("library")
def test_addresses(address: str, how: str, lab: Lab) -> None:
    ran = run(lab, Mode.SHM, "blocking", address, how)
    assert ran.server is not None
    assert ran.server.received_link > 0 and ran.server.sent_link > 0, ran


@pytest.mark.usefixtures("library")
def test_two_addresses_of_one_socket(lab: Lab) -> None:
    """Breaks if datagrams are lost in a ring that the receiver takes for the one of another flow."""
    ran = run(lab, Mode.SHM, "blocking", how="alternating")
    assert ran.server is not None and ran.client is not None
    assert ran.server.received_kernel > ran.server.received_link and ran.server.sent_link > 0, ran


@pytest.mark.usefixtures("library")
def test_switched_off(lab: Lab) -> None:
    ran = run(lab, Mode.SHM, "blocking", config="NACC_DATAGRAMS=0\n")
    assert ran.server is not None and ran.client is not None
    assert ran.server.flows == ran.client.flows == ran.server.received_link == 0, ran


def calls(lab: Lab, name: str, script: str, *, accelerated: bool) -> tuple[list[str], list[Seen]]:
    """What the calls of a script answer, and what its processes have counted."""
    folder = lab.folder / name
    folder.mkdir()
    started = lab.start(
        name,
        [sys.executable, "-m", *f"tests.apps.programs.{script}".split()],
        accelerated=accelerated,
        env={"NETACC_EXIT_STATS": str(folder / "counted")},
    )
    printed = started.finish(100).splitlines()
    lines = (folder / "counted").read_text().splitlines() if accelerated else []
    seen = []
    for number, line in enumerate(lines):
        one = folder / str(number)
        one.write_text(line + "\n")
        seen.append(Seen.of(one))
    return printed, seen


@pytest.mark.usefixtures("library")
def test_calls_answer_as_the_kernels(lab: Lab) -> None:
    kernels, _ = calls(lab, "kernel", "datagram_calls", accelerated=False)
    ours, seen = calls(lab, "rings", "datagram_calls", accelerated=True)
    assert ours == kernels
    assert json.loads(kernels[-1]) == ["ended"]
    # Both processes have received from rings, before and after the socket was connected.
    assert sum(one.received_link > WARM for one in seen) == 2, seen


@pytest.mark.usefixtures("library")
def test_packet_info_is_the_kernels(lab: Lab) -> None:
    """Breaks if a server on all addresses answers from another one than it was asked at."""
    kernels, _ = calls(lab, "kernel", "datagram_info", accelerated=False)
    ours, seen = calls(lab, "rings", "datagram_info", accelerated=True)
    assert ours == kernels
    assert json.loads(kernels[-1]) == ["ended"]
    # A process with both sockets, and the one at the other end of each.
    assert len(seen) == 3 and all(one.received_link > WARM for one in seen), seen


REASONS = ["", "reuse-port", "kernel-wait", "kernel-option", "group-address", "peer-not-accelerated"]
HOLDING = """
import select, socket, sys
held = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(6)]
for one in held:
    one.bind(("127.0.0.1", 0))
held[1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
epoll = select.epoll()
epoll.register(held[2], select.EPOLLIN | select.EPOLLONESHOT)
held[3].setsockopt(socket.SOL_UDP, 101, 1)  # UDP_NO_CHECK6_TX
held[4].setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
held[4].setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nobody:
    nobody.bind(("127.0.0.1", 0))
    unread = nobody.getsockname()
    for _ in range(50):
        held[5].sendto(b"x", unread)
        held[4].sendto(b"x", ("224.0.0.251", 9))
for one in held[:4]:
    for _ in range(50):
        assert one.sendto(b"x", one.getsockname()) == len(one.recv(1))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.usefixtures("library")
def test_sockets_are_shown(lab: Lab) -> None:
    """Breaks if a user cannot see why a UDP socket is not accelerated."""
    holder = lab.start("holder", [sys.executable, "-c", HOLDING], accelerated=True, interactive=True)
    holder.wait_line("ready")
    command = [str(binaries() / "netacc_ss"), "-p", str(holder.popen.pid), "-s", "sock"]

    def shown(*options: str) -> str:
        return subprocess.run([*command, *options], capture_output=True, text=True, check=True).stdout

    found = json.loads(shown("--json"))["udp"]
    assert [one["reason"] for one in found] == REASONS
    for one in found[:4]:
        counts = [one[f"{way}_{by}"] for way in ("rx", "tx") for by in ("link", "kernel")]
        assert (counts[0] + counts[1], counts[2] + counts[3]) == (50, 50), one
        assert one["local"].startswith("127.0.0.1:") and not one["remote"]
        assert one["rings_in"] == one["rings_out"] == (0 if one["reason"] else one["rings_in"])
    text = shown()
    assert "UDP sockets" in text and "kernel-wait" in text
    holder.end_input_quietly()
    assert holder.wait() == 0


DROPPING = """
import socket, struct
one, other = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
for socket_ in (one, other):
    socket_.bind(("127.0.0.1", 0))
other.setsockopt(socket.SOL_SOCKET, 40, 1)  # SO_RXQ_OVFL
other.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
sent = received = dropped = 0
def send():
    global sent
    sent += 1
    one.sendto(bytes(1000), other.getsockname())
def receive(flags):
    global received, dropped
    for _, _, data in other.recvmsg(1000, 100, flags)[1]:
        (dropped,) = struct.unpack("I", data)
    received += 1
for _ in range(100):
    send()
    receive(0)
for _ in range(2):
    for _ in range(1000):
        send()
    try:
        while True:
            receive(socket.MSG_DONTWAIT)
    except BlockingIOError:
        pass
    # Not each datagram of a ring has a new count.
    for _ in range(64):
        send()
        receive(0)
    assert dropped > 0
    print(sent - received - dropped)
"""


@pytest.mark.usefixtures("library")
def test_drops_are_counted(lab: Lab) -> None:
    """Breaks if SO_RXQ_OVFL does not count what found the kernel's buffer full, after a ring was."""
    counted = lab.folder / "counted"
    command = [sys.executable, "-c", DROPPING]
    ran = lab.start("dropping", command, accelerated=True, env={"NETACC_EXIT_STATS": str(counted)})
    assert ran.finish(100).split() == ["0", "0"]
    # A full ring each time.
    assert Seen.of(counted).received_link > 200


@pytest.mark.parametrize("way", ["child", "both", "daemon", "alone", "exec", "spawn", "rights"])
@pytest.mark.usefixtures("library")
def test_another_holder_receives_what_was_in_a_ring(way: str, lab: Lab) -> None:
    """Breaks if a datagram is lost, doubled or overtaken when a socket is inherited or sent in a message."""
    native, _ = calls(lab, "kernel", f"datagram_holders {way}", accelerated=False)
    for attempt in range(ATTEMPTS):
        ours, seen = calls(lab, f"rings-{attempt}", f"datagram_holders {way}", accelerated=True)
        assert ours == native
        numbers = [int(number) for line in ours for number in line.split()[1:]]
        assert numbers == list(range(len(numbers))) and len(numbers) >= NUMBERS
        # They were in the ring, or nothing is shown. The first ones may have taken the kernel.
        if max(one.taken_back for one in seen) >= NUMBERS // 2:
            return
    pytest.fail(f"the datagrams were not in the ring: {seen}")


@pytest.mark.parametrize("way", ["child", "parent", "options", "both"])
@pytest.mark.usefixtures("library")
def test_a_socket_has_rings_again_when_one_process_holds_it(way: str, lab: Lab) -> None:
    """Breaks if a forked process never has rings, has them beside another holder, or misses an option."""
    native, _ = calls(lab, "kernel", f"datagram_returns {way}", accelerated=False)
    for attempt in range(ATTEMPTS):
        ours, seen = calls(lab, f"rings-{attempt}", f"datagram_returns {way}", accelerated=True)
        assert ours == native
        on_links = sum(one.received_link for one in seen)
        if way == "both":
            assert on_links == 0, seen
            return
        # Both ends have received most of them there; a time slice that ends makes one of them sleep.
        if on_links > EXCHANGES // 2:
            return
    pytest.fail(f"most datagrams have taken the kernel: {seen}")


#: Reasons for which a socket that came from another program stays in the kernel.
PASSED = {
    "rights": "",
    "rights-kept": "shared",
    "exec": "",
    "shell": "",
    "inetd": "",
    "after": "",
    "option": "kernel-option",
    "group": "reuse-port",
    "instance": "kernel-wait",
}


#: Enough to look for other holders many times, and to receive from rings if there are any.
MOVED = 2000
PATIENCE_S = 60.0


def until_moved(pid: str, way: str) -> dict[str, int | str]:
    """The UDP socket of a process, once it has moved enough by the `way`."""
    command = [str(binaries() / "netacc_ss"), "-p", pid, "-s", "sock", "--json"]
    deadline = time.monotonic() + PATIENCE_S
    while True:
        shown = subprocess.run(command, capture_output=True, text=True, check=False)
        # A process that has not needed the library yet does not answer.
        found: list[dict[str, int | str]] = json.loads(shown.stdout)["udp"] if shown.returncode == 0 else []
        if found and int(found[0][way]) >= MOVED:
            return found[0]
        assert time.monotonic() < deadline, found


@pytest.mark.parametrize("way", list(PASSED))
@pytest.mark.usefixtures("library")
def test_a_passed_socket_has_rings_if_one_process_holds_it(way: str, lab: Lab) -> None:
    """Breaks if a received socket never has rings, or has some beside another holder or a kernel's option."""
    program = [sys.executable, "-m", "tests.apps.programs.datagram_passed"]
    holder = lab.start("holder", [*program, way], accelerated=True)
    port = holder.wait_line("port").split()[1]
    pid = holder.wait_line("holder").split()[1]
    client = lab.start("client", [*program, "client", port], accelerated=True, interactive=True)
    reason = PASSED[way]
    seen = until_moved(pid, "rx_kernel" if reason else "rx_link")
    assert seen["reason"] == reason and (not reason or seen["rx_link"] == 0), seen
    client.end_input_quietly()
    assert client.wait() == holder.wait() == 0


@pytest.mark.parametrize("way", ["exec-of-both", "exec-of-both-with-one"])
@pytest.mark.usefixtures("library")
def test_a_program_that_is_replaced_with_both_ends_loses_nothing(way: str, lab: Lab) -> None:
    """Breaks if what a socket has sent to another one of the program is lost for the next program."""
    command = [sys.executable, "-m", "tests.apps.programs.datagram_holders", way]
    printed = lab.start("program", command, accelerated=True).finish(100)
    assert printed.split() == ["reader", *map(str, range(NUMBERS))]


@pytest.mark.usefixtures("library")
def test_what_a_sender_has_left_is_received(lab: Lab) -> None:
    """Breaks if the ring of a closed sender becomes another flow's while it is not read."""
    ours, seen = calls(lab, "rings", "datagram_holders left", accelerated=True)
    assert ours == [" ".join(["reader", *map(str, range(NUMBERS))])]
    assert seen[0].received_link > NUMBERS // 2, seen


LEAVING = ["close", "connect", "exit", "_exit", "exec", "fork", "kill"]
ROUNDS = 10 * len(LEAVING)
#: A flow within a host is made in less.
WARM_MS = 12


@pytest.mark.parametrize("how", ["recv", "poll", "epoll"])
@pytest.mark.usefixtures("library")
def test_a_sender_that_ends_at_once_loses_nothing(how: str, lab: Lab) -> None:
    """Breaks if a datagram of a sender that is gone is not received, or wakes no sleeper."""
    port, counted = str(free_port()), lab.folder / "counted"
    program = [sys.executable, "-m", "tests.apps.programs.datagram_leaving"]
    receive = [*program, "receive", "127.0.0.1", port, how, str(ROUNDS)]
    stats = {"NETACC_EXIT_STATS": str(counted)}
    receiver = lab.start("receiver", receive, accelerated=True, env=stats)
    receiver.wait_line("ready")
    send = [*program, "send", "127.0.0.1", port, str(WARM_MS), str(ROUNDS), *LEAVING]
    assert lab.start("sender", send, accelerated=True).finish(100).split() == ["sent"]
    assert receiver.finish(100).splitlines()[-1] == f"received {ROUNDS * NUMBERS_OF_A_ROUND}"
    seen = Seen.of(counted)
    assert seen.flows >= ROUNDS and seen.received_link > ROUNDS, seen


BENCH = ["bench", "datagrams", "-q", "--pairs", "1", "--seconds", "0.2", "--json", "-"]


@pytest.mark.parametrize(("sizes", "batch", "flows"), [([64, 1472], 1, 1), ([512], 8, 1), ([64], 1, 16)])
@pytest.mark.usefixtures("library")
def test_bench_datagrams(sizes: list[int], batch: int, flows: int) -> None:
    """Breaks if one datagram a call, many of them, or many flows, measured nothing."""
    command = [str(binaries() / "netacc"), *BENCH, "--batch", str(batch), "--flows", str(flows)]
    command += ["-d", ",".join(map(str, sizes))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    report = json.loads(done.stdout)
    assert (report["batch"], report["flows"]) == (batch, flows)
    assert [one["size"] for one in report["sizes"]] == sizes
    for one in report["sizes"]:
        (kernel,), (library,) = one["udp"]["rounds"], one["library"]["rounds"]
        assert kernel["on_link"] is None and library["on_link"] > 0
        for measured in (kernel, library):
            assert measured["packets_per_s"] > 0 and 0 <= measured["lost"] < 1
            assert measured["round_trip_us"]["count"] > 0
    assert "kernel UDP" in done.stderr


def test_bench_datagrams_refuses_what_udp_cannot_carry(library: None) -> None:
    del library
    command = [str(binaries() / "netacc"), *BENCH, "-d", "70000"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert refused.returncode == 2 and "70000" in refused.stderr
