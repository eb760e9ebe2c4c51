"""Options, calls, signals, descriptors: small C programs (`programs/calls`) do on a link what they do in the
kernel, and the counters show the carrier of their bytes."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.apps.lib.compiling import compile_c
from tests.apps.lib.counters import query
from tests.apps.lib.paths import REPO, binaries

SOURCES = REPO / "tests/apps/programs/calls"

#: How often a program uses a connection at most until it is on a link.
ROUNDS = 2000

#: Why the connections of a program are on TCP in the end, where it is not because the program ends.
BY_ENDING = {
    "requested",
    "peer-request",
    "peer-not-accelerated",
    "peer-not-accepted",
    "peer-keeps-tcp",
    "not-yet",
}


@dataclass(frozen=True)
class Expected:
    """The expected carrier of a program's bytes."""

    #: At least so many went over a link. 0: none did, from the first to the last. None: either may be.
    link_bytes: int | None = 1
    #: A reason that must be counted for connections on TCP.
    reason: str = ""
    #: A reason that must not be counted.
    no_reason: str = ""
    #: The conditions that the machine must permit.
    condition: str = ""


ON_LINK = Expected(link_bytes=40_000)
#: On a link, although something happens beside it that only the kernel can do.
STAYS = Expected(link_bytes=40_000, no_reason="kernel-only-operation")
#: On a link until something is asked for that only the kernel can do.
LEAVES = Expected(reason="kernel-only-operation")
#: Never on a link.
KERNEL = Expected(link_bytes=0, reason="kernel-only-operation")
#: On a link, where few bytes are moved.
BRIEFLY = Expected()
#: On a link until it is lent to a process that does not have the library.
HANDED_ON = Expected(reason="inherited")
#: On a link until it is given away, and no more when it comes back.
GIVEN_AWAY = Expected(reason="shared")
#: On a link until another program gets it when it is started.
STARTED = Expected(reason="shared")
#: On a link again once the program that was started with it is no more.
COMES_BACK = Expected(link_bytes=40_000, reason="shared")
#: Never on a link, for a reason that no process can report.
NO_LINK = Expected(link_bytes=0)
#: On a link until the program confines itself.
CONFINED = Expected(reason="sandboxed")
#: On a link until another program gets it when it is started, and on one of that program's afterwards. Each
#: end sends 1,200,000 bytes: on a busy machine many of them before there is a link.
TAKEN_OVER = Expected(link_bytes=800_000, reason="shared")
#: The same, by a message.
RECEIVED = Expected(link_bytes=800_000, reason="inherited")
#: Used before it can be on a link, and perhaps on the way to one.
YOUNG = Expected(link_bytes=None)

CASES = {
    # options.c
    "reuseport": ON_LINK,
    "ipv6": ON_LINK,
    "dual_stack": ON_LINK,
    "delays": ON_LINK,
    "keepalive": ON_LINK,
    "timeouts": BRIEFLY,
    "inherited_timeouts": BRIEFLY,
    "inherited_options": ON_LINK,
    "inherited_linger": BRIEFLY,
    "linger_with_time": BRIEFLY,
    "buffers": BRIEFLY,
    "buffers_of_a_linked_socket": LEAVES,
    "buffers_of_a_connecting_socket": BRIEFLY,
    "inq": BRIEFLY,
    "info": ON_LINK,
    "timestamps_by_listener": KERNEL,
    "timestamps_before_connect": KERNEL,
    "defer_accept": ON_LINK,
    # zerocopy.c
    "zerocopy": ON_LINK,
    "zerocopy_not_enabled": ON_LINK,
    "zerocopy_young": LEAVES,
    "zerocopy_ipv6": ON_LINK,
    "zerocopy_inherited": ON_LINK,
    "zerocopy_large": ON_LINK,
    "zerocopy_truncated": ON_LINK,
    "zerocopy_epoll": ON_LINK,
    "zerocopy_epoll_edge": ON_LINK,
    "zerocopy_epoll_once": ON_LINK,
    "zerocopy_epoll_plain": LEAVES,
    "zerocopy_wakes": ON_LINK,
    "zerocopy_select": ON_LINK,
    # connection.c
    "connect_twice": ON_LINK,
    "after_refusal": ON_LINK,
    "after_refusal_nonblocking": ON_LINK,
    "disconnect": ON_LINK,
    "disconnect_and_listen": ON_LINK,
    "nonblocking_connect": ON_LINK,
    "accept_flags": ON_LINK,
    "nonblocking_by_copy": ON_LINK,
    # data.c
    "vectors": ON_LINK,
    "flags": ON_LINK,
    "many_messages": ON_LINK,
    "queue_sizes": ON_LINK,
    "urgent": LEAVES,
    "files": ON_LINK,
    "splices": LEAVES,
    "full_young": YOUNG,
    "splice_unread": LEAVES,
    "asynchronous": LEAVES,
    "streams": LEAVES,
    "printed": ON_LINK,
    "reopened": LEAVES,
    # waiting.c
    "cancel_receiving": ON_LINK,
    "cancel_sending": BRIEFLY,
    "cancel_waiting": ON_LINK,
    "cancel_pending": ON_LINK,
    "restart": BRIEFLY,
    "restart_young": YOUNG,
    "restart_send": BRIEFLY,
    "restart_send_young": YOUNG,
    "interrupted_waiting": BRIEFLY,
    "masks": BRIEFLY,
    "sigio": LEAVES,
    "without_descriptors": BRIEFLY,
    "without_descriptors_young": YOUNG,
    "sigio_before_connect": KERNEL,
    # descriptors.c
    "copies": ON_LINK,
    "ranges": ON_LINK,
    "numbers_again": BRIEFLY,
    "lowest_numbers": BRIEFLY,
    "leave_quickly": BRIEFLY,
    "leave_by_last_thread": BRIEFLY,
    "close_under_calls": BRIEFLY,
    "close_under_calls_young": YOUNG,
    "replace_under_calls": BRIEFLY,
    "replace_under_calls_young": YOUNG,
    "taken": Expected(reason="inherited"),
    "inherited_listener": ON_LINK,
    # instances.c
    "nested_in_epoll": ON_LINK,
    "nested_in_poll": ON_LINK,
    "nested_in_select": ON_LINK,
    "nested_servers": ON_LINK,
    "shared_by_threads": ON_LINK,
    "asleep_before_connections": ON_LINK,
    "duplicate_closed": ON_LINK,
    "original_closed": ON_LINK,
    "closed_under_waits": ON_LINK,
    "instance_number_taken": ON_LINK,
    "instance_in_a_child": BRIEFLY,
    "instance_given_away": GIVEN_AWAY,
    # processes.c
    "by_vfork": STARTED,
    "vfork_in_vain": BRIEFLY,
    "vfork_resets_action": BRIEFLY,
    "vfork_shares_memory": ON_LINK,
    "vfork_sends": ON_LINK,
    "vfork_twice": ON_LINK,
    "vfork_redirects": TAKEN_OVER,
    "clone_shares_memory": ON_LINK,
    "clone_beside": ON_LINK,
    "clone_forks": BRIEFLY,
    "raw_clone_forks": TAKEN_OVER,
    "by_daemon": BRIEFLY,
    "daemon_closes": ON_LINK,
    "double_fork": BRIEFLY,
    "last_holder_ends": BRIEFLY,
    "shutdown_by_child": BRIEFLY,
    # shared_options.c
    "set_by_child_raised_low_water": BRIEFLY,
    "set_by_child_lowered_low_water": BRIEFLY,
    "set_by_child_receive_limit": BRIEFLY,
    "set_by_child_send_limit": BRIEFLY,
    "set_by_child_queue": BRIEFLY,
    "set_by_child_zerocopy": BRIEFLY,
    "set_by_child_times": BRIEFLY,
    "set_by_child_peeks": BRIEFLY,
    "left_by_child_raised_low_water": BRIEFLY,
    "left_by_child_lowered_low_water": BRIEFLY,
    "left_by_child_receive_limit": ON_LINK,
    "left_by_child_send_limit": ON_LINK,
    "left_by_child_queue": ON_LINK,
    "left_by_child_zerocopy": ON_LINK,
    "left_by_child_times": BRIEFLY,
    "left_by_child_peeks": BRIEFLY,
    "set_by_parent_raised_low_water": BRIEFLY,
    "set_by_parent_lowered_low_water": BRIEFLY,
    "set_by_parent_receive_limit": BRIEFLY,
    "set_by_parent_send_limit": BRIEFLY,
    "set_by_parent_queue": BRIEFLY,
    "set_by_parent_zerocopy": BRIEFLY,
    "set_by_parent_times": BRIEFLY,
    "set_by_parent_peeks": BRIEFLY,
    "set_by_child_no_waits": BRIEFLY,
    "set_by_parent_no_waits": BRIEFLY,
    "left_by_child_no_linger": ON_LINK,
    "set_by_parent_no_linger": BRIEFLY,
    # spawn.c
    "by_posix_spawn": TAKEN_OVER,
    "by_many_actions": Expected(link_bytes=0, reason="shared", no_reason="kernel-only-operation"),
    "spawn_beside": ON_LINK,
    "by_system": BRIEFLY,
    "by_popen": BRIEFLY,
    "system_comes_back": COMES_BACK,
    "popen_comes_back": COMES_BACK,
    "spawn_comes_back": COMES_BACK,
    "fork_and_exec_comes_back": COMES_BACK,
    "background_program": COMES_BACK,
    "program_beside": ON_LINK,
    "by_cleared_exec": TAKEN_OVER,
    "by_standard_descriptors": STARTED,
    # rights.c
    "rights_many": HANDED_ON,
    "rights_truncated": HANDED_ON,
    "rights_to_itself": GIVEN_AWAY,
    "rights_of_a_listener": YOUNG,
    "rights_to_another": RECEIVED,
    "rights_of_a_client": RECEIVED,
    "rights_twice": RECEIVED,
    "rights_kept": HANDED_ON,
    # unseen.c
    "raw_when_young": Expected(link_bytes=0, reason="unseen-io"),
    "unseen_registration": Expected(link_bytes=0, reason="unseen-io"),
    # ring.c
    "ring_moves_bytes": LEAVES,
    "ring_by_itself": Expected(reason="unseen-io"),
    "ring_with_a_table": LEAVES,
    "ring_registers": ON_LINK,
    "ring_closes": LEAVES,
    "ring_in_a_child": BRIEFLY,
    "ring_waits": BRIEFLY,
    # crowds.c
    "crowd_in_recv": ON_LINK,
    "crowd_in_poll": ON_LINK,
    "crowd_in_poll_of_two": ON_LINK,
    "crowd_in_select": ON_LINK,
    "crowd_in_epoll": ON_LINK,
    "crowd_of_all_kinds": ON_LINK,
    "crowd_that_comes_and_goes": ON_LINK,
    "raw_ring_appears": Expected(link_bytes=40_000, reason="unseen-io"),
    "raw_ring_for_files": Expected(link_bytes=40_000, no_reason="unseen-io"),
    "raw_ring_polls": Expected(link_bytes=0, reason="unseen-io"),
    "raw_ring_receives": Expected(link_bytes=0, reason="unseen-io"),
    "raw_ring_unused": Expected(link_bytes=40_000, reason="unseen-io"),
    # liburing.c
    "liburing_buffers": STAYS,
    "liburing_by_itself": LEAVES,
    "liburing_closes": ON_LINK,
    "liburing_files": STAYS,
    "liburing_listener": STAYS,
    "liburing_moves_bytes": LEAVES,
    "liburing_bad_addresses": STAYS,
    "liburing_polls_epoll": ON_LINK,
    "liburing_sends_rights": GIVEN_AWAY,
    "liburing_waits": LEAVES,
    "liburing_waits_beside": STAYS,
    "liburing_with_a_table": LEAVES,
    # multipath.c
    "multipath_connections": Expected(link_bytes=0, reason="not-tcp", condition="mptcp"),
    "multipath_inherited_listener": Expected(link_bytes=40_000, condition="mptcp"),
    "multipath_listener": Expected(link_bytes=80_000, condition="mptcp"),
    "multipath_listener_ipv6": Expected(link_bytes=80_000, condition="mptcp"),
    "multipath_listener_of_a_child": Expected(link_bytes=80_000, condition="mptcp"),
    # aio.c
    "aio_by_libaio": LEAVES,
    "aio_by_number": LEAVES,
    "aio_bad_addresses": STAYS,
    "aio_files": STAYS,
    "aio_polls_epoll": ON_LINK,
    # sandbox.c
    "sandbox_strict": CONFINED,
    "sandbox_kills": CONFINED,
    "sandbox_kills_thread": CONFINED,
    "sandbox_fails": CONFINED,
    "sandbox_traps": CONFINED,
    "sandbox_all_threads": CONFINED,
    "sandbox_one_thread": CONFINED,
    "sandbox_then_fork": CONFINED,
    # The child, which confines itself, has nothing on a link.
    "sandbox_inherits": STARTED,
    "sandbox_accepts": CONFINED,
    "sandbox_permits": ON_LINK,
    "sandbox_needs": ON_LINK,
    "sandbox_probes": ON_LINK,
    "sandbox_openssh": CONFINED,
    "sandbox_unshares": CONFINED,
    # Confined from its first socket on, so no library counts.
    "started_with_killer": NO_LINK,
    "started_with_trap": NO_LINK,
    "started_with_error": NO_LINK,
    "started_with_permission": ON_LINK,
    # The program demands its link itself: in another root there is no file for counters.
    "drops_privileges": YOUNG,
    # pointers.c
    "bad_buffers": ON_LINK,
    "partly_bad_buffers": ON_LINK,
    "long_buffers": ON_LINK,
    "bad_buffers_after_the_end": ON_LINK,
    "bad_vectors": ON_LINK,
    "bad_lengths": ON_LINK,
    "bad_results": ON_LINK,
    "bad_places_of_events": ON_LINK,
    "bad_sets": ON_LINK,
    "bad_arguments_when_young": ON_LINK,
    "bad_messages": ON_LINK,
    "bad_offsets": ON_LINK,
    "bad_names": ON_LINK,
    # handlers.c
    "handlers": ON_LINK,
    "null_without_signals": ON_LINK,
    "handler_from_the_start": BRIEFLY,
    "without_handler": ON_LINK,
    "handlers_of_children": BRIEFLY,
    "handlers_of_system_v": ON_LINK,
    # interrupts.c
    "handler_sends_at_any_time": ON_LINK,
    "handler_receives_at_any_time": BRIEFLY,
    "handler_closes": BRIEFLY,
    "jumps_out_of_calls": BRIEFLY,
    "queued_signals": BRIEFLY,
    # raw.c
    "raw_bytes": ON_LINK,
    "raw_options": ON_LINK,
    "raw_descriptors": ON_LINK,
    "raw_waits": ON_LINK,
    "raw_waits_interrupted": ON_LINK,
    # order.c
    "order_of_two_links": ON_LINK,
    "order_of_three_links": Expected(link_bytes=6_000),
    "order_beside_one_in_kernel": Expected(link_bytes=4_000, reason="kernel-only-operation"),
    "order_of_two_paths": Expected(link_bytes=40_000, reason="kernel-only-operation"),
    # shortage.c
    "short_in_recv": BRIEFLY,
    "short_in_poll": Expected(no_reason="descriptor-limit"),
    "short_in_epoll": Expected(no_reason="descriptor-limit"),
    "short_in_empty_epoll": Expected(no_reason="descriptor-limit"),
    "short_beside_threads": Expected(reason="descriptor-limit"),
}


def permits_multipath() -> bool:
    """Has the kernel MPTCP, and may processes use it?"""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP).close()
    except OSError:
        return False
    return True


CONDITIONS = {"mptcp": permits_multipath}


@pytest.fixture(scope="session")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs, built."""
    program = tmp_path_factory.mktemp("calls") / "calls"
    return compile_c(program, *sorted(SOURCES.glob("*.c")), "-O1", "-pthread", "-luring", "-laio")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a program under the library."""

    #: Its output, and its status.
    text: str
    link_bytes: int
    reasons: set[str]


def accelerated(folder: Path, program: Path, case: str, rounds: int, **environment: str) -> Outcome:
    """Run a case under the library, which promotes connections at once, so that there is a link in time."""
    counted = folder / "counted"
    log = {"NETACC_EXIT_STATS": str(counted), "NACC_LOG_PATH": str(folder / "log")}
    text = run([binaries() / "netacc_run", "-F", "1", program, case, str(rounds)], **log, **environment)
    lines = counted.read_text().splitlines() if counted.exists() else []
    documents = [json.loads(line) for line in lines]
    reasons = {reason for document in documents for reason, count in document["reasons"].items() if count}
    return Outcome(text, sum(document["cnt"]["tx_bytes_link"] for document in documents), reasons)


def run(command: list[str | Path], **environment: str) -> str:
    clean = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("LD_PRELOAD", "NACC_", "NETACC_"))
    }
    done = subprocess.run(
        command, env=clean | environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    return f"{done.stdout}{done.stderr}status {done.returncode}"


def test_every_case_is_run(calls: Path) -> None:
    """`serve`, `hold`, `lines` and `under_filter` are the other halves of cases."""
    listed = subprocess.run([calls], capture_output=True, text=True, check=True, timeout=20).stdout.split()
    assert set(listed) - {"serve", "hold", "lines", "under_filter"} == set(CASES)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("case", CASES)
def test_call(case: str, calls: Path, tmp_path: Path, need_condition: Callable[[str, bool], None]) -> None:
    check(case, calls, tmp_path, need_condition)


#: Forks, ends, filters, signals, closed descriptors, shortage, large buffers: all helper threads keep them.
WITH_HELPERS = [
    *(case for case in CASES if case.startswith(("sandbox_", "vfork_", "clone_", "short_", "leave_", "by_"))),
    *(
        "double_fork",
        "last_holder_ends",
        "shutdown_by_child",
        "spawn_beside",
        "instance_in_a_child",
        "instance_given_away",
    ),
    *(
        "jumps_out_of_calls",
        "handler_sends_at_any_time",
        "cancel_sending",
        "close_under_calls",
        "long_buffers",
        "zerocopy_large",
    ),
    *("started_with_killer", "started_with_permission", "order_of_three_links", "without_descriptors"),
]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("case", WITH_HELPERS)
def test_call_beside_four_helper_threads(
    case: str, calls: Path, tmp_path: Path, need_condition: Callable[[str, bool], None]
) -> None:
    check(case, calls, tmp_path, need_condition, NACC_SOR_IO_THREADS="4")


def check(
    case: str,
    calls: Path,
    tmp_path: Path,
    need_condition: Callable[[str, bool], None],
    **environment: str,
) -> None:
    """Runs a case without the library and with it."""
    expected = CASES[case]
    if expected.condition:
        need_condition(expected.condition, CONDITIONS[expected.condition]())
    natively = run([calls, case, "0"])
    assert natively.endswith("status 0"), natively
    # A program that goes on until there is a link must not do so where there is none.
    rounds = 0 if expected.link_bytes == 0 else ROUNDS
    seen = accelerated(tmp_path, calls, case, rounds, **environment)
    assert seen.text == natively
    if expected.link_bytes == 0:
        assert seen.link_bytes == 0
    else:
        assert seen.link_bytes >= (expected.link_bytes or 0)
    reasons = seen.reasons - BY_ENDING
    assert expected.reason in reasons or not expected.reason, f"counted: {seen.reasons}"
    assert expected.no_reason not in reasons, f"counted: {seen.reasons}"


@pytest.mark.usefixtures("library")
def test_a_sleeper_is_woken_beside_a_poller(calls: Path, tmp_path: Path) -> None:
    """NACC_POLL_MS=0: every wait sleeps, so the poller takes many wake-ups meant for the sleeper."""
    seen = accelerated(tmp_path, calls, "shared_by_threads", ROUNDS, NACC_POLL_MS="0")
    assert seen.text == run([calls, "shared_by_threads", "0"])
    assert seen.link_bytes >= 40_000


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("crowd_")])
def test_crowds_on_shared_links(case: str, calls: Path, tmp_path: Path) -> None:
    """A message on a link wakes only the thread that waits for its stream."""
    seen = accelerated(tmp_path, calls, case, ROUNDS, NACC_SOR_CONN_PER_QP="64")
    assert seen.text == run([calls, case, "0"])
    assert seen.link_bytes >= 40_000


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("short_")])
def test_shortage_on_shared_links(case: str, calls: Path, tmp_path: Path) -> None:
    """Threads that wait on one link have a descriptor for signals each, which they give back, too."""
    seen = accelerated(tmp_path, calls, case, ROUNDS, NACC_SOR_CONN_PER_QP="64")
    assert seen.text == run([calls, case, "0"])
    assert seen.link_bytes > 0
    assert ("descriptor-limit" in seen.reasons) == (case == "short_beside_threads")


@pytest.mark.usefixtures("library")
def test_unseen_bytes_can_be_tolerated(calls: Path, tmp_path: Path) -> None:
    """NACC_POLICY=log: the connection goes onto a link all the same, and nothing is lost."""
    seen = accelerated(tmp_path, calls, "raw_when_young", ROUNDS, NACC_POLICY="log")
    assert seen.text == run([calls, "raw_when_young", "0"])
    assert seen.link_bytes >= 40_000
    assert "were not seen: log" in (tmp_path / "log").read_text()


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("policy", "end"), [("error", "status 2"), ("abort", "status -6")])
def test_unseen_bytes_can_end_it(policy: str, end: str, calls: Path, tmp_path: Path) -> None:
    seen = accelerated(tmp_path, calls, "raw_when_young", ROUNDS, NACC_POLICY=policy)
    assert seen.text.endswith(end), seen.text
    assert f"were not seen: {policy}" in (tmp_path / "log").read_text()
    if policy == "error":
        assert os.strerror(errno.EIO) in seen.text


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("policy", "end"), [("error", "status 2"), ("abort", "status -6")])
def test_a_ring_can_be_refused(policy: str, end: str, calls: Path, tmp_path: Path) -> None:
    seen = accelerated(tmp_path, calls, "ring_by_itself", ROUNDS, NACC_POLICY=policy)
    assert seen.text.endswith(end), seen.text
    if policy == "error":
        assert os.strerror(errno.ENOSYS) in seen.text


@pytest.mark.usefixtures("library")
def test_a_ring_of_the_programs_own_can_be_tolerated(calls: Path, tmp_path: Path) -> None:
    """NACC_POLICY=log: it costs no connection its link, although it might be meant for one."""
    seen = accelerated(tmp_path, calls, "raw_ring_unused", ROUNDS, NACC_POLICY="log")
    assert seen.text == run([calls, "raw_ring_unused", "0"])
    assert "unseen-io" not in seen.reasons
    assert "has not been used yet: log" in (tmp_path / "log").read_text()


#: Loads the module that is its argument, and uses the module's dependencies.
LOADS = """
import ctypes, os, sys
module = ctypes.CDLL(sys.argv[1])
print(module.use_ring(), module.use_aio(os.memfd_create("file")))
"""


@pytest.mark.usefixtures("library")
def test_functions_of_a_module_that_is_loaded_are_found(tmp_path: Path) -> None:
    """Its calls of liburing and libaio arrive at the library, to which those are not visible."""
    module = tmp_path / "module.so"
    source = REPO / "tests/apps/programs/module/module.c"
    compile_c(module, source, "-shared", "-fPIC", "-luring", "-laio")
    program: list[str | Path] = [sys.executable, "-c", LOADS, module]
    natively = run(program)
    assert natively == "0 1\nstatus 0"
    assert run([binaries() / "netacc_run", *program]) == natively


#: Prints that it listens, which makes the library log, and waits for the end of its input.
WAITS = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print("up", flush=True)
sys.stdin.read()
"""


@pytest.mark.usefixtures("library")
def test_sockets_that_a_program_is_started_with_are_listed() -> None:
    """A connection as standard input and a listener: neither was seen being made."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.fileno()
        client = socket.create_connection(listener.getsockname())
        connection, _ = listener.accept()
        with client, connection:
            command = [str(binaries() / "netacc_run"), sys.executable, "-c", WAITS]
            with subprocess.Popen(
                command, stdin=connection.fileno(), stdout=subprocess.PIPE, pass_fds=[number]
            ) as program:
                connection.close()
                assert program.stdout is not None
                assert program.stdout.readline() == b"up\n"
                seen = query(program.pid)
                client.close()
                assert program.wait(timeout=20) == 0
    assert seen is not None
    listed = {item.fd: item for item in seen.sockets}
    assert (listed[0].path, listed[0].reason) == ("tcp", "inherited")
    assert listed[number].listening


@pytest.mark.usefixtures("library")
def test_bytes_written_past_a_link_end_the_connection(calls: Path, tmp_path: Path) -> None:
    """Their place in the stream is not known: their reader sees a reset, and never bytes that are wrong."""
    seen = accelerated(tmp_path, calls, "ring_by_itself", ROUNDS, NACC_POLICY="log")
    assert seen.text.endswith("status 2")
    assert os.strerror(errno.ECONNRESET) in seen.text
    assert "received: by ring" not in seen.text


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("case", ["masks", "raw_waits"])
def test_a_call_that_the_kernel_lacks_fails(case: str, old_kernel: Path, calls: Path) -> None:
    """`epoll_pwait2`, which Linux 5.10 does not have: also while the library could answer, on a link."""
    before: list[str | Path] = [old_kernel, "440"]
    natively = run([*before, calls, case, "0"])
    assert "epoll_pwait2" in natively and "ENOSYS" in natively and natively.endswith("status 0"), natively
    assert run([*before, binaries() / "netacc_run", "-F", "1", calls, case, str(ROUNDS)]) == natively
