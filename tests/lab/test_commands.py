"""Commands in a lab that is up: status, output, input, files, and interrupted commands."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.apps.lib.paths import binaries
from tests.lab.lib import UpLab, down, line_from, netacc_lab, up


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["sh", "-c", "exit 42"], 42),
        (["sh", "-c", "kill -TERM $$"], 143),
        (["/no/such/program"], 127),
        (["/etc/passwd"], 126),
    ],
)
def test_the_status_is_the_commands_own(rxe: UpLab, command: list[str], status: int) -> None:
    assert rxe.run(1, *command).returncode == status


def test_output_arrives_whole_on_its_own_stream(rxe: UpLab) -> None:
    result = rxe.run(2, "sh", "-c", "seq 1 50000; echo complaint >&2; hostname >&2")
    assert result.stdout == "".join(f"{number}\n" for number in range(1, 50001))
    assert result.stderr == "complaint\nlab2\n"


def test_input_arrives_whole(rxe: UpLab) -> None:
    text = "".join(f"line {number}\n" for number in range(100_000))
    result = rxe.run(1, "sha256sum", text=text)
    assert result.stdout.split()[0] == hashlib.sha256(text.encode()).hexdigest()


def test_unread_input_stops_nothing(rxe: UpLab) -> None:
    assert rxe.run(1, "true", text="x" * 1_000_000).returncode == 0


def test_a_command_runs_here_with_this_environment(rxe: UpLab) -> None:
    name = "NETACC_TEST_OF_THE_LAB"
    os.environ[name] = "täst"
    try:
        seen = rxe.out(2, "sh", "-c", f'pwd; echo "${name}"; echo "$NETACC_LAB_HOST $NETACC_LAB_PEER"')
    finally:
        del os.environ[name]
    assert seen.splitlines() == [str(Path.cwd()), "täst", "2 10.99.0.1"]


def test_writes_last_only_where_they_were_allowed_to(rxe: UpLab, kept: Path, tmp_path: Path) -> None:
    lost = tmp_path / "lost"
    rxe.out(1, "sh", "-c", f"echo one > {kept}/file && echo two > {lost} && cat {lost}")
    assert (kept / "file").read_text() == "one\n"
    assert not lost.exists()
    # The hosts share such a folder, and see files that are written on this side.
    assert rxe.out(2, "cat", f"{kept}/file") == "one\n"
    (kept / "from-here").write_text("three\n")
    assert rxe.out(2, "cat", f"{kept}/from-here") == "three\n"


def test_processes_left_by_a_command_are_not_awaited(rxe: UpLab) -> None:
    assert rxe.out(1, "sh", "-c", "sleep 1000 & echo $!").strip().isdigit()


def test_a_command_ends_with_its_requester(rxe: UpLab) -> None:
    """By the hang-up alone: the command that looks takes the port of the one that came first."""
    running = [rxe.start(1, "sh", "-c", "echo $$; exec sleep 1000") for _ in range(2)]
    pids = [line_from(process.stdout).strip() for process in running]
    rxe.end_commands()
    for pid in pids:
        rxe.wait_for(1, f"[ ! -e /proc/{pid} ]")


def test_a_port_is_usable_after_a_command_was_killed_in_a_flood(rxe: UpLab) -> None:
    """Anywhere in a frame."""
    for _ in range(3):
        flood = rxe.start(1, "yes")
        assert line_from(flood.stdout) == "y\n"
        rxe.end_commands()
        assert rxe.out(1, "echo", "again") == "again\n"


def test_commands_run_at_the_same_time_up_to_a_bound(rxe: UpLab) -> None:
    running = [rxe.start(2, "sh", "-c", "echo $$; exec sleep 1000") for _ in range(8)]
    pids = {line_from(process.stdout).strip() for process in running}
    assert len(pids) == 8
    refused = rxe.run(2, "true")
    assert refused.returncode == 2
    assert "8 commands run on that host already" in refused.stderr
    rxe.end_commands()
    assert rxe.run(2, "true").returncode == 0


def test_a_command_has_only_the_time_that_it_is_given(rxe: UpLab) -> None:
    result = netacc_lab(
        "exec", "--name", rxe.name, "--timeout", "1", "1", "sh", "-c", "echo $$; exec sleep 1000"
    )
    assert result.returncode == 124
    rxe.wait_for(1, f"[ ! -e /proc/{result.stdout.strip()} ]")


def test_redis_accelerated_in_the_lab(rxe: UpLab) -> None:
    """The build of this machine runs inside, library and all."""
    run = str(binaries() / "netacc_run")
    server = rxe.start(1, run, "redis-server", "--port", "7777", "--save", "", "--dir", "/tmp")
    rxe.wait_for(1, "redis-cli -p 7777 ping 2>/dev/null | grep -q PONG")
    benchmark = [
        run,
        "redis-benchmark",
        "-p",
        "7777",
        "-c",
        "4",
        "-n",
        "2000",
        "-d",
        "512",
        "-t",
        "set",
        "--csv",
    ]
    assert '"SET"' in rxe.out(1, *benchmark)
    pid = rxe.out(1, "pgrep", "-x", "redis-server").split()[0]
    seen = rxe.out(1, str(binaries() / "netacc_ss"), "-p", pid, "-s", "all", "--json")
    assert json.loads(seen)
    assert server.poll() is None


def test_status_lists_a_lab_and_up_does_not_replace_it(rxe: UpLab) -> None:
    labs = json.loads(netacc_lab("status", "--json").stdout)
    assert rxe.record in labs
    assert [host["address"] for host in rxe.record["hosts"]] == ["10.99.0.1", "10.99.0.2"]
    again = netacc_lab("up", "--name", rxe.name)
    assert again.returncode == 125
    assert "is running already" in again.stderr


def test_a_host_that_reaches_nobody_is_noticed() -> None:
    """Breaks if hosts without a network pass for ones that answer: each test that follows would fail."""
    lab = up(f"apart-{os.getpid()}", "--hosts", "2", "--rdma", "none")
    try:
        assert lab.answers()
        lab.out(2, "ip", "link", "set", "lab0", "down")
        assert not lab.answers()
        lab.out(2, "ip", "link", "set", "lab0", "up")
        assert lab.answers()
    finally:
        down(lab.name)


def test_a_lab_with_a_hung_host_is_booted_again() -> None:
    """Breaks if one kernel that hangs costs all tests that follow."""
    lab = up(f"still-{os.getpid()}", "--hosts", "1")
    try:
        assert lab.answers()
        before = lab.out(1, "cat", "/proc/sys/kernel/random/boot_id")
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.connect(str(Path(lab.record["hosts"][0]["console"]).with_suffix(".qmp")))
            with monitor.makefile("rw") as lines:
                lines.readline()
                for command in ("qmp_capabilities", "stop"):
                    lines.write(json.dumps({"execute": command}))
                    lines.flush()
                    while "return" not in json.loads(lines.readline()):
                        pass
        assert not lab.answers(seconds=3)
        lab.boot_again()
        assert lab.answers()
        assert lab.out(1, "cat", "/proc/sys/kernel/random/boot_id") != before
    finally:
        down(lab.name)


def test_packets_can_be_carried_at_real_time_priority() -> None:
    """By the emulator's first thread: one that runs the guest's processor would not let go of it."""
    lab = up(f"real-{os.getpid()}", "--hosts", "1", "--real-time")
    try:
        console = lab.record["hosts"][0]["console"]
        found = subprocess.run(["pgrep", "-f", console], capture_output=True, text=True, check=True)
        emulator = int(found.stdout)
        threads = {int(task.name) for task in Path(f"/proc/{emulator}/task").iterdir()}
        favoured = {thread for thread in threads if os.sched_getscheduler(thread) != os.SCHED_OTHER}
        assert favoured == {emulator} < threads
        assert os.sched_getscheduler(emulator) & ~os.SCHED_RESET_ON_FORK == os.SCHED_FIFO
    finally:
        down(lab.name)


def test_missing_labs_and_hosts_are_reported(rxe: UpLab) -> None:
    assert down("never-started").returncode == 125
    missing = netacc_lab("exec", "--name", rxe.name, "3", "true")
    assert missing.returncode == 2
    assert "has no host 3" in missing.stderr
