"""A conversation with checked blocks goes on over TCP, whatever happens to the link, and comes back to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.conversation import STEADY, begin_on_link
from tests.lab.lib import COMMAND_SECONDS, UpLab, attempts, down, up

# An emulated device that finds its peer silent needs a second by its own rule; a machine that is busy, more.
LONGEST_PAUSE = 30.0


@pytest.fixture(scope="module")
def quiet_rxe() -> Iterator[UpLab]:
    """Two hosts with SoftRoCE on a link that loses nothing."""
    yield up("failover", "--hosts", "2")
    down("failover")


@pytest.fixture
def lossless(quiet_rxe: UpLab) -> Iterator[UpLab]:
    """`quiet_rxe`, and the end of what a test started there."""
    yield quiet_rxe
    quiet_rxe.end_commands()
    for host in (1, 2):
        quiet_rxe.run(host, "tc", "qdisc", "del", "dev", "lab0", "clsact")
        quiet_rxe.run(host, "tc", "qdisc", "del", "dev", "lab0", "root")
        quiet_rxe.run(host, "pkill", "-KILL", "-f", STEADY)


def take_device_away(lab: UpLab, kind: str) -> None:
    conversation = begin_on_link(lab)
    lab.out(1, "timeout", "20", "rdma", "link", "delete", f"{kind}0")
    conversation.wait_for_progress()
    counters = conversation.counters()
    # Where the other end is the first to notice, this one is asked to leave the link.
    assert counters.reasons["link-failed"] + counters.reasons["peer-request"] >= 1, counters.describe()
    lab.out(1, "rdma", "link", "add", f"{kind}0", "type", kind, "netdev", "lab0")
    conversation.wait_for_promotions(2)
    conversation.wait_for_progress()
    assert conversation.end() < LONGEST_PAUSE


def test_a_device_is_taken_away_and_comes_back(siw: UpLab) -> None:
    """The kernel waits for whoever has it open, so the command ends only if the link is let go of."""
    take_device_away(siw, "siw")


@pytest.mark.long
def test_a_softroce_device_is_taken_away_and_comes_back(lossless: UpLab) -> None:
    take_device_away(lossless, "rxe")


@pytest.mark.long
def test_a_firewall_drops_what_is_rdma(lossless: UpLab) -> None:
    """TCP goes on, and nobody tells of it: the device finds that nothing is acknowledged."""
    conversation = begin_on_link(lossless)
    rule = (
        "protocol",
        "ip",
        "u32",
        "match",
        "ip",
        "protocol",
        "17",
        "0xff",
        "match",
        "ip",
        "dport",
        "4791",
        "0xffff",
    )
    for host in (1, 2):
        lossless.out(host, "modprobe", "-a", "cls_u32", "act_gact", "sch_ingress")
        lossless.out(host, "tc", "qdisc", "add", "dev", "lab0", "clsact")
        lossless.out(host, "tc", "filter", "add", "dev", "lab0", "ingress", *rule, "action", "drop")
    conversation.wait_for_progress()
    assert conversation.counters().streams_demoted >= 1
    for host in (1, 2):
        lossless.out(host, "tc", "qdisc", "del", "dev", "lab0", "clsact")
    conversation.wait_for_promotions(2)
    conversation.wait_for_progress()
    assert conversation.end() < LONGEST_PAUSE


@pytest.mark.long
def test_the_interface_is_down_for_a_while(lossless: UpLab) -> None:
    """Neither TCP nor the link gets anywhere meanwhile."""
    conversation = begin_on_link(lossless)
    lossless.out(1, "sh", "-c", "ip link set lab0 down; sleep 3; ip link set lab0 up")
    conversation.wait_for_progress()
    conversation.end()


@pytest.mark.long
def test_who_is_cut_off_when_its_link_fails_gets_another_one(lossless: UpLab) -> None:
    """SoftRoCE does not survive a message of its connection manager that finds no way.

    Whichever end is waited for, the other one's link fails while its interface is down, and it must keep that
    to itself.
    """
    conversation = begin_on_link(lossless)
    for host in (1, 2):
        lossless.out(host, "ip", "link", "set", "lab0", "down")
    for _ in attempts():
        if conversation.links_failed() > 0:
            break
    for host in (1, 2):
        lossless.out(host, "ip", "link", "set", "lab0", "up")
    assert conversation.links_failed() > 0
    conversation.wait_for_promotions(2)
    conversation.wait_for_progress()
    conversation.end()


@pytest.mark.long
def test_a_peer_that_is_killed_is_noticed(lossless: UpLab) -> None:
    conversation = begin_on_link(lossless)
    lossless.out(1, "kill", "-KILL", conversation.server)
    printed, _ = conversation.asker.communicate(timeout=COMMAND_SECONDS)
    assert conversation.asker.returncode == 1
    # Never the end of a stream that has all its bytes.
    assert "ConnectionResetError" in printed or "BrokenPipeError" in printed, printed


@pytest.mark.long
def test_one_packet_of_twenty_is_lost(lossless: UpLab) -> None:
    conversation = begin_on_link(lossless)
    for host in (1, 2):
        lossless.out(host, "tc", "qdisc", "replace", "dev", "lab0", "root", "netem", "loss", "5%")
    conversation.wait_for_progress()
    conversation.wait_for_progress()
    conversation.end()
