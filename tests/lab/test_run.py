"""`netacc lab run`, `shell` and `setup`: labs that come and go with one command."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
from pathlib import Path

from tests.apps.lib.paths import binaries
from tests.lab.lib import BOOT_SECONDS, line_from, netacc_lab


def machines_of(name: str) -> list[str]:
    """The command lines of the machines that belong to a lab."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # ended meanwhile
        if line.startswith("qemu-system") and f"/{name}/" in line:
            found.append(line)
    return found


def start_run() -> subprocess.Popen[str]:
    """A `run` whose command prints that it has begun, and does not end."""
    lab_run = [str(binaries() / "netacc"), "lab", "run", "--where", "vm", "--"]
    command = ["sh", "-c", "echo up; exec sleep 1000"]
    return subprocess.Popen([*lab_run, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_run_returns_status_and_output() -> None:
    result = netacc_lab(
        "run", "--where", "vm", "--", "sh", "-c", "cat; rdma link; exit 7", text="to be read\n"
    )
    assert result.returncode == 7, result.stderr
    assert result.stdout.startswith("to be read\nlink rxe0/1 state ACTIVE")
    assert "up after" in result.stderr


def test_both_hosts_run_the_command() -> None:
    script = 'echo "$NETACC_LAB_HOST $(hostname)"; exit $((NETACC_LAB_HOST * 10 - 10))'
    result = netacc_lab("run", "-q", "--hosts", "2", "--rdma", "none", "--", "sh", "-c", script)
    assert result.returncode == 10, result.stderr
    assert sorted(result.stdout.splitlines()) == ["1| 1 lab1", "2| 2 lab2"]
    assert result.stderr == ""


def test_a_host_has_one_processor_and_room_for_another() -> None:
    """Breaks if QEMU took its memory for its own alone: without barriers the network dies."""
    files = [f"/sys/devices/system/cpu/{name}" for name in ("online", "possible")]
    result = netacc_lab("run", "-q", "--where", "vm", "--rdma", "none", "--", "cat", *files)
    assert result.stdout.splitlines() == ["0", "0-1"]


def test_this_machines_own_driver_is_used_where_there_is_one() -> None:
    """A guest is such a machine: its kernel has the driver, and the command is root there."""
    inner = f"{binaries()}/netacc lab run --no-install -- sh -c 'rdma link; exit 5'"
    # The outer lab's interface has the name that the inner one will use.
    script = f"ip link delete lab0; {inner}; echo status $?; ip -o link; rdma link"
    result = netacc_lab("run", "-q", "--rdma", "none", "--", "sh", "-c", script)
    lines = result.stdout.splitlines()
    assert lines[0].startswith("link rxe0/1 state ACTIVE"), result
    assert lines[1] == "status 5"
    assert "lab0" not in "".join(lines[2:]), "the interface is removed again"


def test_an_interrupt_ends_the_machines_too() -> None:
    process = start_run()
    name = f"run-{process.pid}"
    try:
        assert line_from(process.stdout) == "up\n"
        assert len(machines_of(name)) == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    finally:
        process.kill()
        process.wait()
    assert machines_of(name) == []
    assert name not in netacc_lab("status").stdout


def test_a_killed_run_leaves_no_machine() -> None:
    process = start_run()
    with process:
        assert line_from(process.stdout) == "up\n"
        machine = Path("/proc") / str(process.pid) / "task" / str(process.pid) / "children"
        children = machine.read_text().split()
        assert len(children) == 1
        pidfd = os.pidfd_open(int(children[0]))
        process.kill()
    # Waits for its end, and fails by the test's own limit if there is none.
    with os.fdopen(pidfd, "rb", buffering=0) as ended:
        assert select.select([ended], [], [], 60)[0]


def test_a_machine_that_does_not_come_up_is_given_up() -> None:
    result = netacc_lab("run", "--where", "vm", "--boot-timeout", "1", "--", "true")
    assert result.returncode == 125
    assert "host 1: it did not come up in time" in result.stderr


def test_a_device_that_cannot_be_made_is_reported() -> None:
    result = netacc_lab("run", "--where", "vm", "--kernel", "0.0.0-none", "--no-install", "--", "true")
    assert result.returncode == 125
    assert "linux-image-0.0.0-none" in result.stderr


def test_arguments_that_make_no_sense_are_refused() -> None:
    for arguments, why in {
        ("run", "--loss", "1%", "--where", "vm", "true"): "--hosts 2",
        ("run", "--hosts", "3", "true"): "1..=2",
        ("run", "--loss", "much", "true"): "percentage",
        ("up", "--name", "../x"): "a lab's name",
        ("run", "--rw", "/no/such/folder", "--where", "vm", "true"): "/no/such/folder",
    }.items():
        result = netacc_lab(*arguments)
        assert result.returncode in (2, 125), result
        assert why in result.stderr


def test_a_shell_has_a_terminal() -> None:
    ours, theirs = pty.openpty()
    command = [str(binaries() / "netacc"), "lab", "shell", "-q", "--rdma", "none"]
    env = {**os.environ, "SHELL": "/bin/sh", "PS1": "ready> ", "TERM": "dumb"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    try:
        seen = read_until(ours, b"ready> ")
        os.write(ours, b"tty && stty size && echo $((6 * 7)) && exit 9\r")
        seen = read_until(ours, b"42")
        assert b"/dev/pts/" in seen
        assert process.wait(timeout=60) == 9
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(terminal: int, wanted: bytes) -> bytes:
    """The output of a terminal up to and with `wanted`; bounded by the limit of the test."""
    seen = b""
    while wanted not in seen:
        seen += os.read(terminal, 4096)
    return seen


def test_setup_reports_what_it_found() -> None:
    found = json.loads(netacc_lab("setup", "--json", "--rdma", "siw", seconds=2 * BOOT_SECONDS).stdout)
    assert Path(found["image"]).exists()
    assert Path(found["modules"]).is_dir()
    assert found["accel"] in ("kvm", "tcg")
    assert found["own_kernel"] is (found["own_kernel_obstacle"] is None)
    assert found["cache_bytes"] >= Path(found["module"]).stat().st_size
    assert Path(found["module"]).is_relative_to(found["cache"])


def test_all_missing_packages_are_in_one_message(tmp_path: Path) -> None:
    """Breaks if a user without root had to get packages installed twice: the programs, then the driver."""
    env = {"PATH": "/nowhere", "NETACC_LAB_CACHE": str(tmp_path)}
    arguments = ("--rdma", "siw", "--kernel", "6.1.0-0-none", "--no-install")
    result = netacc_lab("run", *arguments, "--", "true", env=env)
    assert result.returncode == 125
    packages = result.stderr.partition("apt-get install ")[2].split(",")[0].split()
    assert {"qemu-system-x86", "linux-headers-6.1.0-0-none", "make"} <= set(packages), result.stderr
