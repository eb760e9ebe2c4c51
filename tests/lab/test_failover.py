"""A conversation with checked blocks goes on over TCP after any fault of the link, and comes back to it.

Each scenario writes its cost to results/local/failover.json: a line of JSON with the longest time of a block
and the test's bound for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.lab.conversation import LINK_PORT, STEADY, Conversation, begin_on_link
from tests.lab.failover import LONGEST_CUT, Hosts, comes_back
from tests.lab.lib import UpLab, attempts, down, fabric, link, up


@pytest.fixture(scope="module")
def quiet_rxe() -> Iterator[UpLab]:
    """Two hosts with SoftRoCE on a link that loses nothing."""
    name = f"failover-{os.getpid()}"
    yield up(name, "--hosts", "2")
    down(name)


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    """Two hosts with the device that the test names, and the end of its faults there."""
    kind = str(request.param)
    lab = request.getfixturevalue({"rxe": "quiet_rxe"}.get(kind, kind))
    yield Hosts(kind, lab)
    lab.end_commands()
    link(lab)
    if kind == "erdma":
        fabric(lab, {"set": {"stall_transmit": False}})
    for host in (1, 2):
        lab.run(host, "tc", "qdisc", "del", "dev", "lab0", "clsact")
        lab.run(host, "tc", "qdisc", "del", "dev", "lab0", "root")
        lab.run(host, "pkill", "-KILL", "-f", STEADY)


def on(*kinds: str, long: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Runs the test on these devices, and on others where there is time."""
    more = [pytest.param(kind, marks=pytest.mark.long) for kind in long]
    return pytest.mark.parametrize("hosts", [*kinds, *more], indirect=True)


@on("siw", long=("rxe", "erdma"))
def test_a_device_is_taken_away_and_comes_back(hosts: Hosts) -> None:
    """The kernel waits for processes that have it open, so the command ends only if the link is closed."""
    conversation = begin_on_link(hosts.lab)
    hosts.take_device()
    conversation.wait_for_progress()
    hosts.bring_device()
    comes_back(conversation)
    hosts.report("device removed", conversation.end())


@on("siw")
@pytest.mark.parametrize(
    "host", [pytest.param(1, id="acceptor"), pytest.param(2, id="opener", marks=pytest.mark.long)]
)
def test_a_queue_pair_is_put_into_error(hosts: Hosts, host: int) -> None:
    """While device and network stay as they are: the kernel aborts the TCP connection that is beneath it.

    Only the firewall below does that to a queue pair of SoftRoCE.
    """
    conversation = begin_on_link(hosts.lab)
    side = {1: "sport", 2: "dport"}[host]
    hosts.lab.out(host, "modprobe", "tcp_diag")
    killed = hosts.lab.out(host, "ss", "-H", "-t", "-K", "state", "established", side, "=", f":{LINK_PORT}")
    assert len(killed.splitlines()) == 1, killed
    conversation.wait_for_progress()
    assert "state ACTIVE" in hosts.lab.out(host, "rdma", "link", "show", f"{hosts.device}/1")
    assert conversation.links_failed() >= 1
    comes_back(conversation)
    hosts.report(f"queue pair in error at the {'acceptor' if host == 1 else 'opener'}", conversation.end())


@on(long=("erdma",))
@pytest.mark.parametrize("function", [pytest.param(0, id="acceptor"), pytest.param(1, id="opener")])
def test_a_function_reports_a_fatal_error(hosts: Hosts, function: int) -> None:
    """By an asynchronous event, for each of its queue pairs, on which nothing goes any more."""
    conversation = begin_on_link(hosts.lab)
    (answer,) = fabric(hosts.lab, {"fault": {"function": function, "event": "qp_fatal"}})
    assert answer["queues"] >= 1, answer
    conversation.wait_for_progress()
    assert conversation.links_failed() >= 1
    comes_back(conversation)
    hosts.report(f"fatal error at the {('acceptor', 'opener')[function]}", conversation.end())


@on(long=("erdma",))
def test_a_function_sends_nothing_any_more(hosts: Hosts) -> None:
    """And reports nothing: the ends find that the other one does not answer (core/proto/SPEC.md, 2.6)."""
    conversation = begin_on_link(hosts.lab)
    fabric(hosts.lab, {"set": {"stall_transmit": True}})
    conversation.wait_for_progress()
    assert conversation.links_silent() >= 1
    fabric(hosts.lab, {"set": {"stall_transmit": False}})
    comes_back(conversation)
    hosts.report("function silent", conversation.end())


@on("siw", long=("rxe",))
def test_a_firewall_drops_rdma_packets(hosts: Hosts) -> None:
    """TCP goes on, and no device reports it.

    SoftRoCE finds that nothing is acknowledged. Soft-iWARP would find that as late as TCP does, on which it
    is built: there the ends find that the other one does not answer (core/proto/SPEC.md, 2.6).
    """
    conversation = begin_on_link(hosts.lab)
    for host in (1, 2):
        hosts.lab.out(host, "modprobe", "-a", "cls_u32", "act_gact", "sch_ingress")
        hosts.lab.out(host, "tc", "qdisc", "add", "dev", "lab0", "clsact")
        rule = f"protocol ip u32 {what_is_rdma(hosts.kind, host)}"
        hosts.lab.out(host, "tc", "filter", "add", "dev", "lab0", "ingress", *rule.split(), "action", "drop")
    conversation.wait_for_progress()
    # The device's finding is not that of the ends.
    silent = conversation.links_silent()
    assert (silent >= 1) == (hosts.kind == "siw"), silent
    for host in (1, 2):
        hosts.lab.out(host, "tc", "qdisc", "del", "dev", "lab0", "clsact")
    comes_back(conversation)
    hosts.report("firewall", conversation.end())


def what_is_rdma(kind: str, host: int) -> str:
    """Of packets to a host, as a filter of tc's u32: protocol 17 is UDP, 6 is TCP."""
    if kind == "rxe":
        return "match ip protocol 17 0xff match ip dport 4791 0xffff"
    # The first host accepts links, the second one asks for them.
    return f"match ip protocol 6 0xff match ip {'dport' if host == 1 else 'sport'} {LINK_PORT} 0xffff"


def until_a_link_fails(conversation: Conversation) -> None:
    for _ in attempts():
        if conversation.links_failed() > 0:
            return
    pytest.fail("no link has failed")


@on(long=("rxe", "siw"))
def test_the_interface_is_down_for_a_while(hosts: Hosts) -> None:
    """Neither TCP nor the link gets anywhere meanwhile."""
    conversation = begin_on_link(hosts.lab)
    hosts.lab.out(1, "ip", "link", "set", "lab0", "down")
    until_a_link_fails(conversation)
    hosts.lab.out(1, "ip", "link", "set", "lab0", "up")
    conversation.wait_for_progress()
    comes_back(conversation)
    hosts.report("interface down", conversation.end(), LONGEST_CUT)


@on(long=("rxe",))
def test_a_peer_cut_off_when_its_link_fails_gets_another_link(hosts: Hosts) -> None:
    """SoftRoCE does not survive a message of its connection manager that finds no way.

    Whichever end is waited for, the other one's link fails while its interface is down, and it must keep that
    to itself.
    """
    conversation = begin_on_link(hosts.lab)
    for host in (1, 2):
        hosts.lab.out(host, "ip", "link", "set", "lab0", "down")
    until_a_link_fails(conversation)
    for host in (1, 2):
        hosts.lab.out(host, "ip", "link", "set", "lab0", "up")
    conversation.wait_for_progress()
    comes_back(conversation)
    hosts.report("both interfaces down", conversation.end(), LONGEST_CUT)


@on("siw", long=("rxe", "erdma"))
def test_a_peer_that_is_killed_is_noticed(hosts: Hosts) -> None:
    conversation = begin_on_link(hosts.lab)
    hosts.lab.out(1, "kill", "-KILL", conversation.server)
    error, longest = conversation.failure()
    # Never the end of a stream that has all its bytes.
    assert error in ("ConnectionResetError", "BrokenPipeError")
    hosts.report("peer killed", longest)


@on(long=("rxe", "siw", "erdma"))
def test_one_packet_of_twenty_is_lost(hosts: Hosts) -> None:
    """The link may stay, or be left for a while: in the end it is there again."""
    conversation = begin_on_link(hosts.lab)
    link(hosts.lab, "--loss", "5%")
    conversation.wait_for_progress(200)
    link(hosts.lab)
    conversation.wait_for_promotions(conversation.counters().streams_demoted + 1)
    conversation.wait_for_progress()
    hosts.report("5 % loss", conversation.end())
