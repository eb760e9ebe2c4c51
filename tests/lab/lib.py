"""Labs as a test sees them: `netacc lab` and its output."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tests.apps.lib.paths import REPO, binaries

# A guest in emulation on a busy machine: far above any honest run.
BOOT_SECONDS = 150
COMMAND_SECONDS = 100
ANSWER_SECONDS = 30  # far longer than a host with other work takes for nothing at all
# The same, for commands that are repeated until they show something.
PATIENCE_SECONDS = 100
# Of a server, which is there until the last of those commands has ended.
SERVER_SECONDS = PATIENCE_SECONDS + 2 * COMMAND_SECONDS

# Whether packets go to the other host, if there is one, and come back: nothing listens at that port.
REACHES_PEER = '[ -z "$NETACC_LAB_PEER" ] || (: <"/dev/tcp/$NETACC_LAB_PEER/9") 2>&1 | grep -q refused'

# In emulation a link is slower than TCP, but tests in a lab are about links.
ON_LINKS = {"NACC_PATH_CHOICE": "link"}

# Arguments of a lab with emulated eRDMA functions. NETACC_LAB_ERDMA_MODULE names the module of
# Alibaba Cloud's driver.
ERDMA = ("--rdma", "erdma", "--driver", os.environ.get("NETACC_LAB_DRIVER", "upstream"))

Result = subprocess.CompletedProcess[str]


def programs_and_examples(folder: Path) -> Path:
    """Makes it a folder of our programs, and of the examples, which the lab's tests build for debugging."""
    folder.mkdir()
    for program in binaries().iterdir():
        if program.name != "examples":
            (folder / program.name).symlink_to(program)
    (folder / "examples").symlink_to(REPO / "target/debug/examples")
    return folder


def netacc_lab(
    *arguments: str, text: str | None = None, seconds: float = BOOT_SECONDS, env: dict[str, str] | None = None
) -> Result:
    """Run `netacc lab ARGUMENTS` to its end."""
    stdin = subprocess.DEVNULL if text is None else None
    return subprocess.run(
        [str(binaries() / "netacc"), "lab", *arguments],
        stdin=stdin,
        input=text,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env=env,
    )


@dataclass
class UpLab:
    """A lab that is up."""

    name: str
    record: dict[str, Any]
    #: Faults of the packets that each host sends on the link, as arguments of netem.
    impairment: tuple[str, ...] = ()
    #: Of `netacc lab up`.
    arguments: tuple[str, ...] = ()
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def device(self) -> str:
        """The name of each host's RDMA device."""
        return {"rxe": "rxe0", "siw": "siw0", "erdma": "erdma_0"}[self.record["rdma"]]

    def argv(self, host: int, command: Sequence[str], seconds: int = COMMAND_SECONDS) -> list[str]:
        limit = ("--timeout", str(seconds))
        reach = [str(binaries() / "netacc"), "lab", "exec", "--name", self.name, *limit, str(host)]
        return [*reach, "env", *(f"{name}={value}" for name, value in ON_LINKS.items()), *command]

    def run(self, host: int, *command: str, text: str | None = None) -> Result:
        """Run a command on a host to its end."""
        return netacc_lab(*self.argv(host, command)[2:], text=text, seconds=COMMAND_SECONDS + 20)

    def out(self, host: int, *command: str) -> str:
        """The stdout of a command that succeeds."""
        result = self.run(host, *command)
        assert result.returncode == 0, f"{command}: {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result.stdout

    def start(self, host: int, *command: str, seconds: int = SERVER_SECONDS) -> subprocess.Popen[str]:
        """Start a command on a host; it is ended with the test, or after so long."""
        process = subprocess.Popen(
            self.argv(host, command, seconds),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def wait_for(self, host: int, condition: str) -> None:
        """Wait until a shell condition holds on a host. The loop is inside: one command, however long."""
        self.out(
            host, "timeout", str(COMMAND_SECONDS - 10), "sh", "-c", f"until {condition}; do sleep 0.1; done"
        )

    def answers(self, seconds: int = ANSWER_SECONDS) -> bool:
        """Whether every host runs a command within so long, and reaches the other one."""
        hosts = range(1, len(self.record["hosts"]) + 1)
        probe = ["bash", "-c", REACHES_PEER]
        runs = (netacc_lab(*self.argv(host, probe, seconds)[2:]) for host in hosts)
        return all(result.returncode == 0 for result in runs)

    def boot_again(self) -> None:
        """End a lab in which a host stands still, and boot another one in its place."""
        self.end_commands()
        down(self.name)
        self.record = up(self.name, *self.arguments).record

    def end_commands(self) -> None:
        """End the processes that `start` started."""
        for process in self.started:
            process.kill()
            process.wait()
        self.started.clear()


def attempts() -> Iterator[int]:
    """Numbers of attempts at a case that depends on timing, until PATIENCE_SECONDS have passed.

    The time at which a connection gets onto a link depends on the speed of an emulated machine, its other
    load, and lost packets. So the first attempt may fail, and one of them must succeed.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    for number in itertools.count():
        yield number
        if time.monotonic() > until:
            return


def fabric(lab: UpLab, *requests: dict[str, Any]) -> list[dict[str, Any]]:
    """What the process with a lab's eRDMA functions answers to requests (models/erdma/README.md)."""
    requests_of = itertools.chain.from_iterable(("--request", json.dumps(request)) for request in requests)
    result = netacc_lab("fabric", "--name", lab.name, *requests_of)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def restore(lab: UpLab, before: dict[str, Any]) -> None:
    """Sets all of the functions' settings as they were."""
    each = ({"set": {"function": at, **settings}} for at, settings in enumerate(before["functions"]))
    fabric(lab, {"set": before["wire"]}, *each)


def link(lab: UpLab, *impairment: str) -> None:
    """Has the link between a lab's hosts lose and delay so much, or nothing."""
    result = netacc_lab("fabric", "--name", lab.name, *impairment)
    assert result.returncode == 0, result.stderr


def line_from(stream: IO[str] | None) -> str:
    """The next line of a command that runs."""
    assert stream is not None
    return stream.readline()


def up(name: str, *arguments: str) -> UpLab:
    """Boot a lab that stays."""
    result = netacc_lab("up", "--name", name, "--json", *arguments)
    assert result.returncode == 0, result.stderr
    given = dict(itertools.pairwise(arguments))
    impairment = [(name, given[f"--{name}"]) for name in ("loss", "delay") if f"--{name}" in given]
    return UpLab(name, json.loads(result.stdout), tuple(itertools.chain(*impairment)), arguments)


def down(name: str) -> Result:
    """Switch a lab off."""
    return netacc_lab("down", "--name", name)


@contextmanager
def whole_wire(lab: UpLab) -> Iterator[None]:
    """Takes loss and delay off the link between the hosts for a while, if it has them.

    For tests that are not about loss: a lost packet of an RDMA device costs hundreds of milliseconds.
    """

    def change(*impairment: str) -> None:
        for host in (1, 2) if lab.impairment else ():
            lab.out(host, "tc", "qdisc", "change", "dev", "lab0", "root", "netem", *impairment)

    change("loss", "0%", "delay", "0ms")
    try:
        yield
    finally:
        change(*lab.impairment)
