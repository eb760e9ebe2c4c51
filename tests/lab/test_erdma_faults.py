"""Faults of an eRDMA function on command: what the library does, and how long a conversation stands still.

Each test writes its cost to results/local/failover.json, as those in `test_failover.py` do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.apps.lib.paths import binaries
from tests.lab.conversation import PORT, PROGRESS_FILE, SERVER, STEADY, Conversation, begin, begin_on_link
from tests.lab.failover import Hosts, comes_back
from tests.lab.lib import UpLab, attempts, fabric, restore

# The functions of the first host, which accepts links, and of the second, which asks for them.
ACCEPTOR, OPENER = 0, 1
ENDS = pytest.mark.parametrize(
    "function", [pytest.param(ACCEPTOR, id="acceptor"), pytest.param(OPENER, id="opener")]
)
# In the driver, a command that is not answered takes 15 s; then it gives up the queue.
MUTE_SECONDS = 60.0


@pytest.fixture
def hosts(erdma: UpLab) -> Iterator[Hosts]:
    """Two hosts with emulated functions, whose settings are as before in the end."""
    (before,) = fabric(erdma, {"get": "settings"})
    yield Hosts("erdma", erdma)
    restore(erdma, before)
    erdma.end_commands()
    for host in (1, 2):
        erdma.run(host, "pkill", "-KILL", "-f", STEADY)


def counted(hosts: Hosts, counter: str) -> int:
    """A counter, of both functions."""
    (answer,) = fabric(hosts.lab, {"get": "counters"})
    return sum(function[counter] for function in answer["functions"])


def fail(hosts: Hosts, function: int, event: str) -> None:
    """Reports an event for each of a function's queues, of which there are some."""
    (answer,) = fabric(hosts.lab, {"fault": {"function": function, "event": event}})
    assert answer["queues"] >= 1, answer


def recovers(hosts: Hosts, conversation: Conversation, scenario: str) -> None:
    """The link fails, the conversation goes on over TCP, and comes back."""
    conversation.wait_for_progress()
    assert conversation.links_failed() >= 1
    comes_back(conversation)
    hosts.report(scenario, conversation.end())


def bring_back(hosts: Hosts, settings: dict[str, Any], *of: int) -> None:
    """Functions whose driver has given up a command do so again as they should.

    Not before the driver has let go of a function: it would carry out the commands that the driver has given
    up, whose memory has other uses by now.
    """
    hosts.lab.end_commands()
    for host in of:
        hosts.take_device(host)
    fabric(hosts.lab, {"set": settings})
    for host in of:
        hosts.bring_device(host)
    begin_on_link(hosts.lab).end()


def is_answered_meanwhile(hosts: Hosts, host: int, process: str) -> None:
    """netacc_ss is answered by a process that waits in the driver, before and after the answer."""
    waits = f"grep -q erdma_post_cmd_wait /proc/{process}/task/*/wchan"
    hosts.lab.wait_for(host, waits)
    ask = f"{binaries()}/netacc_ss -p {process} -s all >/dev/null"
    # The driver still waits after the answer, so it was not the helper that answered.
    hosts.lab.out(host, "sh", "-c", f"{ask} && {waits}")


def name_of(function: int) -> str:
    return ("acceptor", "opener")[function]


@ENDS
@pytest.mark.parametrize(
    "event",
    [
        "access_error",
        *(pytest.param(event, marks=pytest.mark.long) for event in ("empty_receive_queue", "other")),
    ],
)
def test_an_event_ends_the_link(hosts: Hosts, event: str, function: int) -> None:
    """The driver makes a fatal error of the queue pair of each. `qp_fatal` is in `test_failover.py`."""
    conversation = begin_on_link(hosts.lab)
    fail(hosts, function, event)
    recovers(hosts, conversation, f"{event} at the {name_of(function)}")


@pytest.mark.long
@ENDS
def test_an_error_of_a_completion_queue_ends_its_link(hosts: Hosts, function: int) -> None:
    """The queue itself goes on, but nobody could tell which completions it has lost."""
    conversation = begin_on_link(hosts.lab)
    fail(hosts, function, "cq_error")
    recovers(hosts, conversation, f"cq_error at the {name_of(function)}")


@pytest.mark.long
@ENDS
@pytest.mark.parametrize("flushes", ["none", "all"])
def test_a_link_fails_however_its_work_is_flushed(hosts: Hosts, flushes: str, function: int) -> None:
    """Breaks if the library waits for completions that never come, or is surprised by more of them."""
    fabric(hosts.lab, {"set": {"flushes": flushes}})
    conversation = begin_on_link(hosts.lab)
    fail(hosts, function, "qp_fatal")
    recovers(hosts, conversation, f"qp_fatal, flushes {flushes}, at the {name_of(function)}")


@pytest.mark.long
@ENDS
def test_sends_that_complete_early_are_not_taken_for_delivered(hosts: Hosts, function: int) -> None:
    """The function completes them, and its peer never handles them. Each block is compared."""
    peer = 1 - function
    fabric(hosts.lab, {"set": {"completes": "sent"}})
    conversation = begin_on_link(hosts.lab)
    fabric(hosts.lab, {"set": {"function": peer, "stall_receive": True}})
    fail(hosts, peer, "qp_fatal")
    conversation.wait_for_progress()
    fabric(hosts.lab, {"set": {"stall_receive": False}})
    recovers(hosts, conversation, f"completed early, lost on the way from the {name_of(function)}")


@pytest.mark.long
@pytest.mark.parametrize("empty", ["fatal", "stall"])
def test_no_message_finds_an_empty_receive_queue(hosts: Hosts, empty: str) -> None:
    """Breaks if the library sends more than its peer has posted receives for: `fatal` ends the link then."""
    fabric(hosts.lab, {"set": {"empty_receive_queue": empty}})
    conversation = begin_on_link(hosts.lab)
    before = counted(hosts, "qp_failures"), counted(hosts, "rx_requests")
    conversation.wait_for_progress(300)
    assert counted(hosts, "qp_failures") == before[0]
    assert counted(hosts, "rx_requests") >= before[1] + 300
    assert conversation.links_failed() == 0
    hosts.report(f"empty receive queue: {empty}", conversation.end())


@pytest.mark.parametrize("seconds", [1, pytest.param(4, marks=pytest.mark.long)])
def test_a_peer_that_does_not_acknowledge(hosts: Hosts, seconds: int) -> None:
    """RETRY_EXC, before the ends find that the other one does not answer."""
    fabric(hosts.lab, {"set": {"retry_limit_ms": 1000 * seconds}})
    conversation = begin_on_link(hosts.lab)
    fabric(hosts.lab, {"set": {"function": ACCEPTOR, "stall_receive": True}})
    conversation.wait_for_progress()
    assert conversation.links_silent() == 0, "the device's finding is not that of the ends"
    fabric(hosts.lab, {"set": {"stall_receive": False}})
    recovers(hosts, conversation, f"RETRY_EXC after {seconds} s")


@pytest.mark.long
@ENDS
@pytest.mark.parametrize("stall", ["stall_transmit", "stall_receive"])
def test_one_direction_stalls(hosts: Hosts, stall: str, function: int) -> None:
    """Nobody reports it: the ends find that the other one does not answer (core/proto/SPEC.md, 2.6)."""
    conversation = begin_on_link(hosts.lab)
    fabric(hosts.lab, {"set": {"function": function, stall: True}})
    conversation.wait_for_progress()
    assert conversation.links_silent() >= 1
    fabric(hosts.lab, {"set": {stall: False}})
    recovers(hosts, conversation, f"{stall} at the {name_of(function)}")


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 20])
def test_lost_interrupts_cost_time_alone(hosts: Hosts, count: int) -> None:
    """A sleeping end is not woken. Breaks if its queue stays unarmed: then each block takes a second."""
    conversation = begin_on_link(hosts.lab)
    before = counted(hosts, "interrupts_lost")
    fabric(hosts.lab, {"set": {"lose_interrupts": count}})
    for _ in attempts():
        conversation.wait_for_progress()
        if counted(hosts, "interrupts_lost") >= before + 2 * count:
            break
    assert counted(hosts, "interrupts_lost") == before + 2 * count, "as many at each function"
    hosts.report(f"{count} interrupts lost", conversation.end())


@pytest.mark.long
def test_interrupts_that_come_twice_change_nothing(hosts: Hosts) -> None:
    fabric(hosts.lab, {"set": {"duplicate_interrupts": True}})
    conversation = begin_on_link(hosts.lab)
    conversation.wait_for_progress(200)
    assert conversation.links_failed() == 0
    hosts.report("interrupts doubled", conversation.end())


#: QPs, connections, completion queues, memory: by their numbers.
COMMANDS = {"0.1": "CREATE_QP", "0.3": "MODIFY_QP", "0.4": "CREATE_CQ", "0.8": "REG_MR"}


@ENDS
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(number, id=name, marks=() if name == "CREATE_QP" else pytest.mark.long)
        for number, name in COMMANDS.items()
    ],
)
def test_a_command_fails(hosts: Hosts, command: str, function: int) -> None:
    """As on a function that has no more objects: its driver makes EIO of each refusal."""
    refused = counted(hosts, "commands_refused")
    fabric(hosts.lab, {"set": {"function": function, "failing_commands": [command]}})
    conversation = begin(hosts.lab)
    for _ in attempts():
        conversation.wait_for_progress()
        if counted(hosts, "commands_refused") > refused:
            break
    assert counted(hosts, "commands_refused") > refused, "it was tried"
    assert conversation.counters().streams_promoted == 0
    hosts.report(f"{COMMANDS[command]} fails at the {name_of(function)}", conversation.end())
    fabric(hosts.lab, {"set": {"failing_commands": []}})
    hosts.lab.end_commands()
    begin_on_link(hosts.lab).end()


@pytest.mark.long
def test_commands_take_long(hosts: Hosts) -> None:
    """Breaks if a program waits for them: its connection is on TCP meanwhile."""
    fabric(hosts.lab, {"set": {"command_delay_us": 300_000}})
    conversation = begin_on_link(hosts.lab)
    hosts.report("300 ms for each command", conversation.end())


@pytest.mark.long
@pytest.mark.timeout(600)
@ENDS
def test_the_command_queue_is_mute(hosts: Hosts, function: int) -> None:
    """Links that there are do not notice. New ones cannot be had until the function is brought back."""
    conversation = begin_on_link(hosts.lab)
    fabric(hosts.lab, {"set": {"function": function, "command_mute": True}})
    conversation.wait_for_progress(200)
    assert conversation.links_failed() == 0
    hosts.report(f"command queue mute at the {name_of(function)}, on a link", conversation.end())
    hosts.lab.end_commands()
    later = begin(hosts.lab)
    later.wait_for_progress(200)
    assert later.counters().streams_promoted == 0
    hosts.report(f"command queue mute at the {name_of(function)}, from the start", later.end(), MUTE_SECONDS)
    bring_back(hosts, {"command_mute": False}, function + 1)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_link_is_made_with_a_mute_command_queue(hosts: Hosts) -> None:
    """For another client. Breaks if only the helper, which waits for the device, answers netacc_ss."""
    conversation = begin_on_link(hosts.lab)
    fabric(hosts.lab, {"set": {"function": ACCEPTOR, "command_mute": True}})
    run = ("env", "NACC_PROMOTE_AFTER=1", str(binaries() / "netacc_run"), sys.executable, STEADY)
    hosts.lab.start(2, *run, "ask", SERVER, PORT, f"{PROGRESS_FILE}.second")
    is_answered_meanwhile(hosts, 1, conversation.server)
    conversation.wait_for_progress()
    assert conversation.links_failed() == 0
    hosts.report("command queue mute, and another link is made", conversation.end())
    bring_back(hosts, {"command_mute": False}, 1)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_an_event_comes_with_a_mute_command_queue(hosts: Hosts) -> None:
    """The helper puts the queue pair into error. Breaks if only it answers netacc_ss."""
    conversation = begin_on_link(hosts.lab)
    fabric(hosts.lab, {"set": {"function": ACCEPTOR, "command_mute": True}})
    fail(hosts, ACCEPTOR, "qp_fatal")
    is_answered_meanwhile(hosts, 1, conversation.server)
    conversation.wait_for_progress()
    hosts.report("command queue mute, and an event comes", conversation.end(), MUTE_SECONDS)
    bring_back(hosts, {"command_mute": False}, 1)


#: A function that does nothing any more, as if its process had been killed.
DEAD = {"command_mute": True, "stall_transmit": True, "stall_receive": True}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_netacc_ss_is_answered_while_the_driver_waits(hosts: Hosts) -> None:
    """Each helper ends a silent link, for which the driver waits 15 s. Breaks if only it answers."""
    conversation = begin_on_link(hosts.lab)
    fabric(hosts.lab, {"set": DEAD})
    is_answered_meanwhile(hosts, 1, conversation.server)
    is_answered_meanwhile(hosts, 2, conversation.client)
    conversation.wait_for_progress()
    hosts.report("both functions do nothing, and netacc_ss is asked", conversation.end(), MUTE_SECONDS)
    bring_back(hosts, dict.fromkeys(DEAD, False), 1, 2)


#: What `ibv_devinfo -v` prints of a function with these settings.
SMALL = {"log_max_recv_wr": 8, "log_max_cqe": 12, "log_max_mr_size": 26, "qp_blocks": 1, "firmware_patch": 30}
SHOWN = ("max_mr_size:\t\t\t0x4000000", "max_qp:\t\t\t\t1023")


@pytest.mark.long
@ENDS
def test_functions_differ(hosts: Hosts, function: int) -> None:
    """In their firmware and their limits. Links are made for the lesser one."""
    host = function + 1
    (before,) = fabric(hosts.lab, {"get": "settings"})
    fabric(hosts.lab, {"set": {"function": function, **SMALL}})
    hosts.take_device(host)
    hosts.bring_device(host)
    try:
        small, large = (hosts.lab.out(each, "ibv_devinfo", "-v") for each in (host, 3 - host))
        assert all(line in small and line not in large for line in SHOWN), small
        versions = [info.partition("fw_ver:")[2].split()[0] for info in (small, large)]
        assert versions[0] != versions[1]
        hosts.report(f"a lesser function at the {name_of(function)}", begin_on_link(hosts.lab).end())
    finally:
        restore(hosts.lab, before)
        hosts.take_device(host)
        hosts.bring_device(host)
