"""Labs as a test sees them: `netacc lab` and what it answers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

from tests.apps.lib.paths import binaries

# A guest in emulation on a busy machine: far above any honest run.
BOOT_SECONDS = 150
COMMAND_SECONDS = 100

Result = subprocess.CompletedProcess[str]


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
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def argv(self, host: int, command: Sequence[str]) -> list[str]:
        limit = ("--timeout", str(COMMAND_SECONDS))
        return [str(binaries() / "netacc"), "lab", "exec", "--name", self.name, *limit, str(host), *command]

    def run(self, host: int, *command: str, text: str | None = None) -> Result:
        """Run a command on a host to its end."""
        return netacc_lab(*self.argv(host, command)[2:], text=text, seconds=COMMAND_SECONDS + 20)

    def out(self, host: int, *command: str) -> str:
        """What a command that succeeds writes to its stdout."""
        result = self.run(host, *command)
        assert result.returncode == 0, f"{command}: {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result.stdout

    def start(self, host: int, *command: str) -> subprocess.Popen[str]:
        """Start a command on a host; it is ended with the test."""
        process = subprocess.Popen(
            self.argv(host, command),
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

    def end_commands(self) -> None:
        """End what `start` started."""
        for process in self.started:
            process.kill()
            process.wait()
        self.started.clear()


def line_from(stream: IO[str] | None) -> str:
    """The next line of a command that runs."""
    assert stream is not None
    return stream.readline()


def up(name: str, *arguments: str) -> UpLab:
    """Boot a lab that stays."""
    result = netacc_lab("up", "--name", name, "--json", *arguments)
    assert result.returncode == 0, result.stderr
    return UpLab(name, json.loads(result.stdout))


def down(name: str) -> Result:
    """Switch a lab off."""
    return netacc_lab("down", "--name", name)


@contextmanager
def whole_wire(lab: UpLab) -> Iterator[None]:
    """Takes loss and delay off the link between the hosts for a while, if it has them."""
    before = [
        json.loads(lab.out(i, "tc", "-j", "qdisc", "show", "dev", "lab0"))[0].get("kind") for i in (1, 2)
    ]
    impaired = before == ["netem", "netem"]
    change = ("tc", "qdisc", "change", "dev", "lab0", "root", "netem")
    for host in (1, 2) if impaired else ():
        lab.out(host, *change, "loss", "0%", "delay", "0ms")
    yield
    for host in (1, 2) if impaired else ():
        lab.out(host, *change, "loss", "1%", "delay", "1ms")
