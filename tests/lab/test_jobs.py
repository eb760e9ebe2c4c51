"""The lab in other projects' continuous integration: an example on each device, and the action's steps."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apps.lib.paths import binaries
from tests.ci.jobs import EXAMPLE, ActionRun
from tests.lab.lib import UpLab, netacc_lab, whole_wire

NOBODY = 65534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")


@pytest.fixture(scope="module")
def project() -> Iterator[Path]:
    """The example, built where another user reaches it."""
    with tempfile.TemporaryDirectory(prefix="netacc-example-") as folder:
        shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True)
        Path(folder).chmod(0o755)
        subprocess.run(["make", "-s", "-C", folder, "CFLAGS=-O2 -Wall -Wextra -Werror"], check=True)
        yield Path(folder)


def test_the_example_passes_and_fails_on_each_device(pair: UpLab, project: Path) -> None:
    """Breaks if a stranger's test of verbs that is right did not pass, or one that is wrong did."""
    with whole_wire(pair):
        both = f'cd {project} && $0 ./verbs-test both "$NETACC_LAB_ADDRESS"'
        right = pair.run(1, "sh", "-c", both, "env")
        assert right.returncode == 0, right.stderr
        assert right.stdout == f"client: 65536 bytes by RDMA WRITE over {pair.device}, all right\n"
        wrong = pair.run(1, "sh", "-c", f"CORRUPT=1; export CORRUPT; {both}", "env")
        assert wrong.returncode == 1
        assert "client: byte 21845 is 163 and should be 162" in wrong.stderr
        script = ["sh", "-c", f"cd {project} && ./run-test.sh"]
        server = pair.start(1, *script)
        client = pair.run(2, *script)
        assert client.returncode == 0, client.stderr
        assert client.stdout == right.stdout
        assert server.wait(timeout=60) == 0


# A request of iWARP (RFC 5044, 7.1: its key, no flags, revision 1, no private data) that is given up.
GIVES_UP = """
import socket, sys, time
while True:
    try:
        with socket.create_connection((sys.argv[1], 18515)) as client:
            client.sendall(b"MPA ID Req Frame" + bytes([0, 1, 0, 0]))
            client.recv(4096)  # the server's reply
            break
    except ConnectionRefusedError:
        time.sleep(0.05)
"""


def test_the_example_outlives_a_client_that_gives_up(siw: UpLab, project: Path) -> None:
    """Breaks if a request whose connection has ended, as soft-iWARP reports at times, ends the server."""
    script = ["sh", "-c", f"cd {project} && ./run-test.sh"]
    server = siw.start(1, *script)
    siw.out(2, "python3", "-c", GIVES_UP, siw.record["hosts"][0]["address"])
    client = siw.run(2, *script)
    assert client.returncode == 0, client.stderr
    assert server.wait(timeout=60) == 0
    assert server.stdout is not None
    assert server.stdout.read() == "server: the client's offer: Work Request Flushed Error\n"


@pytest.fixture
def home() -> Iterator[Path]:
    """A home of a user without any rights."""
    with tempfile.TemporaryDirectory(prefix="netacc-home-") as folder:
        os.chown(folder, NOBODY, NOBODY)
        yield Path(folder)


def restored(folder: Path, key: str) -> None:
    """Puts into a folder what an earlier job's cache would have; it is another user's."""
    programs = folder / "programs" / key
    programs.mkdir(parents=True)
    for name in ("netacc", "netacc-erdma"):
        shutil.copy(binaries() / name, programs)
    (folder / "cache").mkdir()
    (folder / "cache/lock").touch()
    kernel = Path(json.loads(netacc_lab("setup", "--no-install", "--json").stdout)["cache"]) / "kernel"
    if kernel.exists():  # else the machine's own kernel is used
        subprocess.run(["cp", "-a", "--reflink=auto", str(kernel), str(folder / "cache")], check=True)


def test_the_action_runs_the_example_for_a_user_without_rights(home: Path, project: Path) -> None:
    """Breaks if a step of the action needs root, more than its cache, or does not pass the status on."""
    command = "./run-test.sh && ! CORRUPT=1 ./run-test.sh && exit 7"
    run = ActionRun(home, {"command": command, "timeout": "100"}, AS_NOBODY)
    results = {}
    for step in run.steps():
        if not run.wanted(step):
            continue
        if "uses" in step:
            assert re.fullmatch(r"netacc-lab-\w+[\d.]*-rxe-[0-9a-f]{16}", run.value(step["with"]["key"]))
            restored(Path(run.value(step["with"]["path"])), run.outputs["key"].rpartition("-")[2])
            continue
        results[step["name"]] = run.run(step, project)
    last = results.pop("Run the command")
    for name, result in results.items():
        assert result.returncode == 0, f"{name}: {result.stderr}"
    assert last.returncode == 7, last.stderr
    assert last.stdout == "client: 65536 bytes by RDMA WRITE over rxe0, all right\n"
    assert "client: byte 21845 is 163 and should be 162" in last.stderr
    # Nothing was downloaded or installed, and later steps find the program.
    assert not re.search("download|install", last.stderr + results["Install what the lab needs"].stderr)
    (path,) = (home / "github_path").read_text().splitlines()
    assert (Path(path) / "netacc").exists()
