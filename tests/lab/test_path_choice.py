"""Where a link takes longer than TCP to bring answers, connections stay on TCP, until that changes."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.apps.lib.counters import Counters, parse
from tests.apps.lib.paths import REPO, binaries
from tests.lab.conversation import PORT, SECONDS, SERVER, Conversation, begin
from tests.lab.lib import COMMAND_SECONDS, UpLab, attempts, fabric, line_from, whole_wire

POUR = str(REPO / "tests/lab/programs/pour.py")

# Far above an emulated machine's time for an answer on either path.
SLOW_MS = 50
# What is delayed, on the device's link or beside it.
LINK, TCP = "link", "tcp"
# IP protocols of packets: RoCE's are UDP.
PROTOCOLS = {TCP: "6", LINK: "17"}
# Blocks within which the choice is made, which takes the median of sixteen answers: on a link it times one of
# eight, over TCP each.
MANY, FEW = 8 * 16 + 40, 16 + 64
# Seconds for which a link that was left is not tried again, at first.
PAUSE = 10.0

# The line of `netacc_ss` for the client's connection: FD LOCAL REMOTE STATE PATH QP REASON.
ON_LINK, LEFT = '$5 == "link"', '$5 == "tcp" && $7 == "link-slower"'


@contextmanager
def bands(lab: UpLab) -> Iterator[None]:
    """Adds a slow band for packets of the second host. It is empty at first."""
    qdisc = ("dev", "lab0", "root")
    lab.out(2, "modprobe", "-a", "sch_prio", "sch_netem", "cls_u32")
    # Everything goes into the first band.
    lab.out(2, "tc", "qdisc", "replace", *qdisc, "handle", "1:", "prio", "priomap", *["0"] * 16)
    lab.out(2, "tc", "qdisc", "add", "dev", "lab0", "parent", "1:3", "netem", "delay", f"{SLOW_MS}ms")
    try:
        yield
    finally:
        delay(lab, None)
        lab.out(2, "tc", "qdisc", "replace", *qdisc, "netem", *lab.impairment)


@pytest.fixture(params=["rxe", pytest.param("erdma", marks=pytest.mark.long)])
def lab(request: pytest.FixtureRequest) -> Iterator[UpLab]:
    """Two hosts, between which one path can be made the slower one."""
    lab = request.getfixturevalue(request.param)
    assert isinstance(lab, UpLab)
    with whole_wire(lab), bands(lab):
        yield lab


def delay(lab: UpLab, path: str | None) -> None:
    """Data of this path alone is slow; or none."""
    of = ("dev", "lab0", "parent", "1:")
    lab.out(2, "tc", "filter", "del", *of)
    if lab.device == "erdma_0":
        # Its data is in no packet that the host's kernel sees.
        fabric(lab, {"set": {"delay_us": 1000 * SLOW_MS if path == LINK else 0}})
        path = path if path == TCP else None
    if path:
        match = ("u32", "match", "ip", "protocol", PROTOCOLS[path], "0xff", "flowid", "1:3")
        lab.out(2, "tc", "filter", "add", *of, "protocol", "ip", "prio", "1", *match)


@dataclass(frozen=True)
class Change:
    """When something has come to be, by the host's clock: after one look, by the end of another."""

    after: float
    by: float


def wait_until(conversation: Conversation, condition: str) -> Change:
    """Until that holds of the asker's line in `netacc_ss`."""
    script = f"""
        last=0
        while :; do
            read -r begun _ < /proc/uptime
            {binaries()}/netacc_ss -p {conversation.client} -s sock |
                awk '$3 == "{SERVER}:{PORT}" && {condition} {{ found = 1 }} END {{ exit !found }}' && break
            last=$begun
            sleep 0.1
        done
        read -r now _ < /proc/uptime
        echo "$last $now"
    """
    seconds = str(COMMAND_SECONDS - 10)
    after, by = conversation.lab.out(2, "timeout", seconds, "sh", "-c", script).split()
    return Change(float(after), float(by))


def has_stayed_away(before: Counters, after: Counters) -> bool:
    """Whether the asker was on TCP, as the faster path, at two looks and all the while between them."""
    left = all(
        any(socket.path == "tcp" and socket.reason == "link-slower" for socket in shown.sockets)
        for shown in (before, after)
    )
    return left and before.streams_promoted == after.streams_promoted


@pytest.mark.timeout(300)
def test_the_slower_path_is_left(lab: UpLab) -> None:
    conversation = begin(lab, NACC_PATH_CHOICE="measured")
    # In emulation it may be slower as it is. Not so slow as to be in the way of its own promotion.
    wait_until(conversation, f"({ON_LINK} || {LEFT})")
    for _ in attempts():
        delay(lab, LINK)
        left = wait_until(conversation, LEFT)
        at_first = conversation.client_counters()
        assert at_first.streams_promoted >= 1, "it was on the link"
        # The link would be as good as ever. But only where the anchor turns out to be as slow as it was is it
        # taken again at once: here that is known, and it has been asked for since.
        delay(lab, None)
        conversation.wait_for_progress(FEW)
        if has_stayed_away(at_first, conversation.client_counters()):
            break
    else:
        pytest.fail("it goes to and fro")

    # It is the other path that is slow now, which shows when the link is tried again, and no sooner.
    delay(lab, TCP)
    back = wait_until(conversation, ON_LINK)
    assert back.by - left.after >= PAUSE, "the choice is reluctant"
    conversation.end()


@pytest.mark.timeout(300)
def test_a_pinned_path_is_kept(lab: UpLab) -> None:
    """Breaks if the pin does not keep a connection on a link that is slower."""
    conversation = begin(lab, NACC_PATH_CHOICE="link")
    wait_until(conversation, ON_LINK)
    delay(lab, LINK)
    before = conversation.client_counters()
    conversation.wait_for_progress(MANY)
    counters = conversation.client_counters()
    assert not counters.reasons["link-slower"], counters.describe()
    # Unless the link failed, for which a device may have other reasons, it has carried all of them.
    if counters.streams_demoted == before.streams_demoted:
        assert counters.since(before).tcp_bytes == 0, counters.describe()
    conversation.end()


@pytest.mark.timeout(300)
def test_a_stream_in_one_direction_leaves_the_slower_path(lab: UpLab) -> None:
    """It has no answers, so its rates are compared."""
    reported, port = "/tmp/pour", "7008"
    run = [str(binaries() / "netacc_run"), sys.executable, POUR]
    lab.out(2, "rm", "-f", reported, f"{reported}.stop")
    drain = lab.start(1, *run, "drain", SERVER, port, seconds=SECONDS)
    assert line_from(drain.stdout) == "listening\n"
    delay(lab, LINK)
    command = ["env", "NACC_PATH_CHOICE=measured", *run]
    pour = lab.start(2, *command, "pour", SERVER, port, reported, seconds=SECONDS)
    lab.wait_for(2, f"test -s {reported}")
    pid = lab.out(2, "cat", reported)
    shown = [str(binaries() / "netacc_ss"), "-p", pid, "-s", "all", "--json"]
    # It has left, and the rate of the other path is measured again.
    both = "grep -q link-slower /tmp/look && grep -q bulk_bytes_per_s_tcp /tmp/look"
    lab.wait_for(2, f"{shlex.join(shown)} >/tmp/look && {both}")
    counters = parse(lab.out(2, *shown))
    assert counters.link_bytes > 0 and counters.reasons["link-slower"] > 0, "it has been there, and left"
    (stream,) = (one for one in json.loads(lab.out(2, *shown))["sock"] if one["remote"] == f"{SERVER}:{port}")
    assert stream["bulk_bytes_per_s_tcp"] > 0
    lab.out(2, "touch", f"{reported}.stop")
    sent, _ = pour.communicate(timeout=COMMAND_SECONDS)
    received, _ = drain.communicate(timeout=COMMAND_SECONDS)
    assert sent and sent == received, "each byte"
