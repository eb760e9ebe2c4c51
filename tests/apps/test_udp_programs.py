"""UDP programs of other projects, each with the library on both sides and on one side only."""

from __future__ import annotations

import getpass
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.apps.lib.lab import Lab
from tests.apps.lib.modes import Mode
from tests.apps.lib.net import free_port, inside, wait_bound, wait_listening
from tests.apps.lib.process import Process
from tests.apps.test_datagrams import Seen

PACKET = 1400
#: Some are lost on a busy machine, by the kernel alone as well.
MOST_LOST = 0.9
REQUESTS = 2000
NAMES = 200
ROUNDS = 50
#: Of a file that TFTP sends in blocks of 512 bytes.
FILE_BYTES = 1_000_000
PAGES = 48
#: Lines in each direction.
LINES = 60
#: Of a film, of which some may be lost.
FRAMES, MOST_FRAMES_LOST = 50, 10


def counted(lab: Lab, name: str) -> dict[str, str]:
    return {"NETACC_EXIT_STATS": str(lab.folder / f"{name}.counted")}


def seen(lab: Lab, name: str) -> Seen:
    return Seen.of(Path(counted(lab, name)["NETACC_EXIT_STATS"]))


def judge(mode: Mode, lab: Lab, flows: int) -> None:
    """With the library on both sides, they have had so many flows; on one side, none."""
    for name, accelerated in (("server", mode.server), ("client", mode.client)):
        if accelerated:
            found = seen(lab, name)
            if mode.one_sided:
                assert found.flows == found.sent_link == found.received_link == 0, found
            else:
                assert found.flows >= flows and found.sent_link + found.received_link > 0, found


def test_iperf3(mode: Mode, lab: Lab) -> None:
    """Breaks if a server that waits in select for TCP and UDP misses datagrams in rings."""
    port = str(free_port())
    server = lab.start(
        "server",
        ["iperf3", "--server", "--one-off", "--bind", "127.0.0.1", "--port", port],
        accelerated=mode.server,
        env=counted(lab, "server"),
    )
    wait_listening(int(port), server)
    argv = ["iperf3", "--client", "127.0.0.1", "--port", port, "--json", "--udp", "--time", "1"]
    argv += ["--bitrate", "50M", "--length", str(PACKET)]
    client = lab.start("client", argv, accelerated=mode.client, env=counted(lab, "client"))
    end = json.loads(client.finish(100))["end"]["sum"]
    assert server.wait() == 0
    assert end["packets"] > 0 and end["lost_packets"] <= MOST_LOST * end["packets"], end
    if mode is Mode.SHM:
        assert seen(lab, "server").received_link > 0
    judge(mode, lab, flows=1)


def test_memcached(mode: Mode, lab: Lab) -> None:
    """Several of its threads wait on one socket. The client checks each answer."""
    port = free_port()
    argv = ["memcached", "-l", "127.0.0.1", "-p", "0", "-U", str(port), "-t", "2"]
    if os.geteuid() == 0:
        argv += ["-u", "root"]
    lab.start("memcached", argv, accelerated=mode.server)
    client = lab.start(
        "client",
        [sys.executable, "-m", "tests.apps.programs.memcached_udp_client", str(port), str(REQUESTS)],
        accelerated=mode.client,
        env=counted(lab, "client"),
    )
    assert client.finish(100) == f"{REQUESTS} values\n"
    if mode is Mode.SHM:
        assert seen(lab, "client").flows == 2
    elif mode.client:
        assert seen(lab, "client").flows == 0


def dnsmasq(lab: Lab, mode: Mode, *options: str, before: Sequence[str] = ()) -> Process:
    argv = ["dnsmasq", "--no-daemon", "--conf-file=/dev/null", f"--pid-file={lab.folder}/pid"]
    argv += [f"--user={getpass.getuser()}", *options]
    return lab.start("server", argv, accelerated=mode.server, env=counted(lab, "server"), before=before)


def end(server: Process, how: signal.Signals = signal.SIGTERM) -> None:
    """In good order, so that it leaves its counters."""
    server.popen.send_signal(how)
    server.wait()


def test_dns(mode: Mode, lab: Lab) -> None:
    """Breaks if a server that asks for the destination of each datagram, and names it as the source of its
    answers, does not get both on rings."""
    port = free_port()
    hosts = lab.folder / "hosts"
    hosts.write_text("".join(f"10.2.0.{i} h{i}.example\n" for i in range(NAMES)))
    server = dnsmasq(lab, mode, "--no-resolv", "--no-hosts", f"--addn-hosts={hosts}", f"--port={port}")
    query(mode, lab, port, server)


UNBOUND = """server:
 interface: 127.0.0.1
 port: {port}
 directory: "{folder}"
 chroot: ""
 username: ""
 pidfile: ""
 use-syslog: no
 do-daemonize: no
 so-reuseport: no
 local-zone: "example." static
"""


def test_unbound(mode: Mode, lab: Lab) -> None:
    """A resolver that waits for UDP, TCP and signals in libevent. By default its sockets have SO_REUSEPORT
    and are the kernel's alone."""
    port = free_port()
    conf = lab.folder / "unbound.conf"
    data = "".join(f' local-data: "h{i}.example. A 10.2.0.{i}"\n' for i in range(NAMES))
    conf.write_text(UNBOUND.format(port=port, folder=lab.folder) + data)
    argv = ["unbound", "-d", "-c", str(conf)]
    server = lab.start("server", argv, accelerated=mode.server, env=counted(lab, "server"))
    query(mode, lab, port, server)


def query(mode: Mode, lab: Lab, port: int, server: Process) -> None:
    """By dnsperf, from two sockets."""
    queries = lab.folder / "queries"
    queries.write_text("".join(f"h{i}.example A\n" for i in range(NAMES)))
    wait_listening(port, server)
    argv = [
        "dnsperf",
        "-s",
        "127.0.0.1",
        "-p",
        str(port),
        "-d",
        str(queries),
        "-n",
        str(ROUNDS),
        "-c",
        "2",
        "-q",
        "20",
    ]
    client = lab.start("client", argv, accelerated=mode.client, env=counted(lab, "client"))
    printed = client.finish(100)
    assert re.search(rf"NOERROR {NAMES * ROUNDS} \(100.00%\)", printed), printed
    end(server)
    judge(mode, lab, flows=2)


def test_tftp(mode: Mode, lab: Lab, namespace: str) -> None:
    """A server with a socket for each transfer. The port is a fixed one."""
    root = lab.folder / "root"
    root.mkdir()
    content = random.Random(5).randbytes(FILE_BYTES)
    (root / "file").write_bytes(content)
    options = (
        "--port=0",
        "--enable-tftp",
        f"--tftp-root={root}",
        "--listen-address=127.0.0.1",
        "--bind-interfaces",
    )
    server = dnsmasq(lab, mode, *options, before=inside(namespace))
    fetched = lab.folder / "fetched"
    # Until the server is there.
    argv = [
        "curl",
        "--silent",
        "--retry",
        "50",
        "--retry-delay",
        "1",
        "--retry-all-errors",
        "-o",
        str(fetched),
    ]
    client = lab.start(
        "client",
        [*argv, "tftp://127.0.0.1/file"],
        accelerated=mode.client,
        env=counted(lab, "client"),
        before=inside(namespace),
    )
    client.finish(100)
    assert fetched.read_bytes() == content
    end(server)
    judge(mode, lab, flows=1)


def test_sockperf(mode: Mode, lab: Lab) -> None:
    port = str(free_port())
    server = lab.start(
        "server",
        ["sockperf", "server", "-i", "127.0.0.1", "-p", port],
        accelerated=mode.server,
        env=counted(lab, "server"),
    )
    # Its own record of the messages is too short for as many as there could be.
    argv = ["sockperf", "ping-pong", "-i", "127.0.0.1", "-p", port, "-t", "1", "-m", "64", "--mps", "100000"]
    client = lab.start("client", argv, accelerated=mode.client, env=counted(lab, "client"))
    printed = client.finish(100)
    faults = "# dropped messages = 0; # duplicated messages = 0; # out-of-order messages = 0"
    assert faults in printed, printed
    end(server, signal.SIGINT)
    judge(mode, lab, flows=2)


@pytest.mark.parametrize(
    ("kind", "listen"),
    [("openbsd", ["-l", "127.0.0.1"]), ("traditional", ["-l", "-s", "127.0.0.1", "-p"])],
)
def test_netcat(mode: Mode, kind: str, listen: list[str], lab: Lab) -> None:
    """Breaks if a program that looks at its first datagram, and then connects to its source, misses one. The
    socket that listens has SO_REUSEPORT: it is the kernel's alone."""
    port = str(free_port())
    ends: list[Process] = []
    for name, accelerated, where in (
        ("server", mode.server, [*listen, port]),
        ("client", mode.client, ["127.0.0.1", port]),
    ):
        command = [f"nc.{kind}", "-u", "-q", "0", *where]
        ends.append(
            lab.start(name, command, accelerated=accelerated, env=counted(lab, name), interactive=True)
        )
        wait_bound(int(port), ends[0])
    for number in range(LINES):
        for sender, receiver in (ends[::-1], ends):
            sender.send_line(f"{number:06}")
            receiver.wait_line(f"{number:06}")
    expected = "".join(f"{number:06}\n" for number in range(LINES))
    assert [one.stdout() for one in ends] == [expected, expected]
    for one in ends:
        one.end_input()
        one.finish()
    for name, accelerated in (("server", mode.server), ("client", mode.client)):
        if accelerated:
            assert seen(lab, name).flows == 0, name


@pytest.mark.long
def test_rtp(mode: Mode, lab: Lab) -> None:
    """A film by ffmpeg. Breaks if a frame comes changed, or frames are missing."""
    film, port = lab.folder / "film.ts", str(free_port())
    ffmpeg = ["ffmpeg", "-nostdin", "-loglevel", "error"]
    made = ["-f", "lavfi", "-i", "testsrc=size=320x240:rate=25", "-frames:v", str(FRAMES), "-g", "1"]
    lab.run("film", [*ffmpeg, *made, "-c:v", "mpeg2video", str(film)])
    sums = ["-c", "copy", "-f", "framemd5", "-"]
    sent = frames(lab.run("sums", [*ffmpeg, "-i", str(film), *sums]))
    url = f"rtp://127.0.0.1:{port}"
    receiver = lab.start(
        "server", [*ffmpeg, "-i", url, *sums], accelerated=mode.server, env=counted(lab, "server")
    )
    wait_bound(int(port), receiver)
    argv = [*ffmpeg, "-readrate", "2", "-i", str(film), "-c", "copy", "-f", "rtp_mpegts", url]
    client = lab.start("client", argv, accelerated=mode.client, env=counted(lab, "client"))
    client.finish(100)
    end(receiver, signal.SIGINT)
    received = frames(receiver.stdout())
    assert received and received == [one for one in sent if one in set(received)]
    assert len(received) >= FRAMES - MOST_FRAMES_LOST, len(received)
    judge(mode, lab, flows=1)


def frames(sums: str) -> list[str]:
    """The length and the sum of each."""
    lines = [line for line in sums.splitlines() if line and not line.startswith("#")]
    return ["".join(line.split(",")[4:6]) for line in lines]


def test_http3(mode: Mode, lab: Lab) -> None:
    """Breaks if QUIC, whose ends keep timers beside their datagrams, loses or waits for some."""
    port = str(free_port())
    certificate, key = lab.folder / "certificate.pem", lab.folder / "key.pem"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=here"]
    subprocess.run(
        [*request, "-out", certificate, "-keyout", key], check=True, capture_output=True, timeout=60
    )
    program = [sys.executable, "-m", "tests.apps.programs.http3"]
    server = lab.start(
        "server",
        [*program, "serve", str(certificate), str(key), port],
        accelerated=mode.server,
        env=counted(lab, "server"),
    )
    server.wait_line("ready")
    client = lab.start(
        "client",
        [*program, "ask", port, str(PAGES)],
        accelerated=mode.client,
        env=counted(lab, "client"),
    )
    assert client.finish(100) == f"{PAGES} answers\n"
    end(server)
    judge(mode, lab, flows=2)
