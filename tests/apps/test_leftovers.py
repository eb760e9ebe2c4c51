"""Files that processes leave in /dev/shm: nothing if the last of a network namespace ends in good order, and
nothing for long if it is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.apps.lib.compiling import compile_program
from tests.apps.lib.paths import binaries
from tests.apps.test_calls import WAITS, run

pytestmark = pytest.mark.usefixtures("library")

SHM = Path("/dev/shm")
PREFIX = f"netacc-{os.geteuid()}-"
#: Runs a command in a network namespace of its own, in which there is a loopback.
APART = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
NOBODY = 65534


@pytest.fixture(autouse=True)
def root(need_condition: Callable[[str, bool], None]) -> None:
    need_condition("root", os.geteuid() == 0)


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(tmp_path_factory.mktemp("limits"), "limits")


def namespace_of(pid: int | str) -> str:
    return str(Path(f"/proc/{pid}/ns/net").stat().st_ino)


def left() -> set[str]:
    """The folders of this user's, but for that of the namespace in which the tests run: others may use it."""
    names = {path.name for path in SHM.iterdir() if path.name.startswith(PREFIX)}
    return names - {PREFIX + namespace_of("self")}


@contextmanager
def server() -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A process with the library in a namespace of its own, and the folder that it uses."""
    command = [*APART, str(binaries() / "netacc_run"), sys.executable, "-c", WAITS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            yield process, SHM / (PREFIX + namespace_of(process.pid))
        finally:
            process.kill()


def start_elsewhere(program: Path) -> None:
    """Processes begin and end in a namespace that is new."""
    text = run([*APART, binaries() / "netacc_run", "-F", "1", program, "none", "-", "-", "2", "2", "100"])
    assert text.endswith("status 0"), text


def test_an_orderly_end_leaves_nothing(program: Path) -> None:
    before = left()
    start_elsewhere(program)
    assert left() <= before
    with server() as (process, folder):
        assert (folder / "table").exists()
        process.communicate(timeout=20)
        assert not folder.exists()


#: Lists the folder of its namespace, and ends in the way of its argument.
ENDS = """
import os, socket, sys
listener = socket.create_server(("127.0.0.1", 0))
namespace = str(os.stat("/proc/self/ns/net").st_ino)
print(*[name for name in os.listdir("/dev/shm") if name.endswith(namespace)], flush=True)
os._exit(3) if sys.argv[1] == "_exit" else sys.exit(3)
"""


@pytest.mark.parametrize("ending", ["_exit", "exit"])
def test_however_it_ends(ending: str) -> None:
    text = run([*APART, binaries() / "netacc_run", sys.executable, "-c", ENDS, ending])
    assert text.startswith(PREFIX) and text.endswith("status 3"), text
    assert not (SHM / text.split()[0]).exists()


def test_files_of_the_killed_are_removed_by_the_next(program: Path) -> None:
    with server() as (process, folder):
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=20)
        assert (folder / "table").exists(), "no process could remove it"
        start_elsewhere(program)
        assert not folder.exists()


def test_the_last_to_leave_removes_it_though_others_were_killed() -> None:
    with server() as (first, folder):
        into = ["nsenter", "--net", "--target", str(first.pid)]
        command = [*into, str(binaries() / "netacc_run"), sys.executable, "-c", WAITS]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as second:
            assert second.stdout is not None
            assert second.stdout.readline() == b"up\n"
            first.send_signal(signal.SIGKILL)
            first.wait(timeout=20)
            second.communicate(timeout=20)
        assert not folder.exists()


def test_files_in_use_stay(program: Path) -> None:
    with server() as (_, folder):
        before = (folder / "table").stat().st_ino
        start_elsewhere(program)
        assert (folder / "table").stat().st_ino == before
        assert run([binaries() / "netacc_ss", "-c"]).endswith("status 0")
        assert (folder / "table").stat().st_ino == before


def test_the_table_takes_little_memory() -> None:
    """It is 2.3 MB long, and mostly a hole: also after a search for stale entries."""
    with server() as (process, folder):
        into = ["nsenter", "--net", "--target", str(process.pid)]
        assert run([*into, binaries() / "netacc_ss", "-c"]).endswith("status 0")
        assert (folder / "table").stat().st_blocks * 512 <= 32 << 10


def test_files_in_use_in_another_pid_namespace_stay(program: Path) -> None:
    """There its process cannot be looked up: the lock shows that it lives, and then that it does not."""
    apart = ["unshare", "--net", "--pid", "--fork", "--kill-child", *APART[2:]]
    script = "import os\nprint(os.stat('/proc/self/ns/net').st_ino, flush=True)\n" + WAITS
    command = [*apart, str(binaries() / "netacc_run"), sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            folder = SHM / (PREFIX + process.stdout.readline().decode().strip())
            assert process.stdout.readline() == b"up\n"
            start_elsewhere(program)
            assert (folder / "table").exists()
        finally:
            process.kill()
    process.wait(timeout=20)
    start_elsewhere(program)
    assert not folder.exists()


def test_ss_clears_other_namespaces() -> None:
    with server() as (process, folder):
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=20)
        text = run([binaries() / "netacc_ss", "-c"])
        assert "cleared" in text and text.endswith("status 0"), text
        assert not folder.exists()


def test_files_of_other_users_are_left_alone(program: Path) -> None:
    """A name that could be ours, with a pipe in it, or a link to a file of ours."""
    strange = [SHM / f"{PREFIX}1", SHM / f"{PREFIX}2"]
    try:
        for folder in strange:
            folder.mkdir(mode=0o777)
        os.mkfifo(strange[0] / "table")
        (strange[1] / "table").symlink_to("/etc/hostname")
        for folder in strange:
            os.chown(folder / "table", NOBODY, NOBODY, follow_symlinks=False)
            os.chown(folder, NOBODY, NOBODY)
        start_elsewhere(program)
        assert all((folder / "table").is_symlink() or (folder / "table").is_fifo() for folder in strange)
        assert Path("/etc/hostname").exists()
    finally:
        for folder in strange:
            (folder / "table").unlink(missing_ok=True)
            folder.rmdir()


#: Runs a command while another user has the name of its namespace's folder.
TAKEN = f"""
name=/dev/shm/{PREFIX}$(stat -Lc %i /proc/self/ns/net)
mkdir -m 700 $name && chown {NOBODY} $name
"$@"
ls -d $name*
rmdir $name
"""


def test_a_name_that_another_user_took_keeps_nobody_apart(program: Path, tmp_path: Path) -> None:
    """Namespaces have the numbers of ones that have ended, and any user can make folders."""
    command: list[str | Path] = [binaries() / "netacc_run", "-F", "1", program]
    command += ["none", "-", "-", "1", "2", "20000"]
    text = run([*APART, "sh", "-c", TAKEN, "sh", *command], NETACC_EXIT_STATS=str(tmp_path / "counted"))
    assert "0 wrong, 0 stopped" in text and text.endswith("status 0"), text
    # The last to leave has removed the folder with another name.
    assert len([word for word in text.split() if word.startswith(str(SHM))]) == 1
    counted = [json.loads(line)["cnt"] for line in (tmp_path / "counted").read_text().splitlines()]
    assert sum(each["tx_bytes_link"] for each in counted) > 0


def test_many_come_and_go_at_once(program: Path) -> None:
    """The last to leave and the first to come meet at the same folder: programs work, and nothing is left."""
    before = left()
    each = f"{binaries() / 'netacc_run'} -F 1 {program} none - - 1 2 30"
    script = f"for i in $(seq 12); do (for n in 1 2 3; do {each} || echo failed; done) & done; wait"
    text = run([*APART, "sh", "-c", script])
    assert "failed" not in text and text.endswith("status 0"), text
    assert text.count("clients: 2 connections, 3840 bytes, 0 wrong, 0 stopped") == 36
    assert left() <= before
