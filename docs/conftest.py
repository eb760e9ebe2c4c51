"""Runs the commands of tutorials and compares what they print. `ci/run.sh docs` does `pytest docs`.

A block of language `sh` is run and must succeed. A block of language `console` has commands after `$ `,
their further lines after `> `, and their output, in which `...` stands for anything; a command that
prints nothing must succeed. All blocks of a page share one shell and a folder that is removed at the end. A
block that cannot run everywhere has a comment in front: `<!-- skip: next "needs a cloud" -->`, or `if(not
lab, reason="needs a lab")` in place of the reason. The reasons are printed. `lab` is true if
NETACC_TUTORIALS names it (`ci/run.sh lab`), `simulator` if there is one.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, Example, OutputChecker
from pathlib import Path
from typing import Any

from netacc_lab.sim import paths
from sybil import Example as Block
from sybil import Sybil
from sybil.parsers.markdown import CodeBlockParser, SkipParser

ROOT = Path(__file__).resolve().parent.parent
SECONDS_MOST = 120
MATCHING = ELLIPSIS | NORMALIZE_WHITESPACE


def free_port() -> int:
    """A free port, also while another run of the same page goes on.

    It is below those that the kernel gives to clients: a client could take such a port before the server.
    """
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                continue
            return port


class Shell:
    """One bash, with a folder of its own, for all blocks of a page."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="netacc-tutorial-")
        programs = Path(os.environ.get("NETACC_BIN_DIR") or ROOT / "target/release").resolve()
        path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
        env = {
            **os.environ,
            "PATH": path,
            "NETACC_ROOT": str(ROOT),
            "NETACC_RUNS": f"{self.folder.name}/runs",
            "PORT": str(free_port()),
        }
        self.bash = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.folder.name,
            env={**env, "LC_ALL": "C.UTF-8", "TERM": "dumb", "NO_COLOR": "1"},
            text=True,
            start_new_session=True,
        )

    def run(self, command: str) -> tuple[str, int]:
        """The output of a command, and its status. Jobs in the background continue."""
        assert self.bash.stdin
        assert self.bash.stdout
        script = Path(self.folder.name) / ".command"
        script.write_text(command)
        end = f"-- end {os.urandom(8).hex()} "
        # The status first, because the command may not end its last line.
        self.bash.stdin.write(f". ./.command </dev/null; printf '\\n{end}%d\\n' $?\n")
        self.bash.stdin.flush()
        late = threading.Timer(SECONDS_MOST, self.kill)
        late.start()
        lines: list[str] = []
        try:
            for line in self.bash.stdout:
                if line.startswith(end):
                    return "".join(lines).removesuffix("\n"), int(line.removeprefix(end))
                lines.append(line)
        finally:
            late.cancel()
        logs = [f"{log.name}:\n{log.read_text()[-2000:]}" for log in Path(self.folder.name).glob("*.log")]
        output_so_far = "\n".join(["".join(lines), *logs])
        raise AssertionError(f"no end after {SECONDS_MOST} s, or the shell has ended:\n{output_so_far}")

    def kill(self) -> None:
        """Ends the shell and all jobs that it has left."""
        try:
            os.killpg(self.bash.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.bash.wait()

    def close(self) -> None:
        """At the end of the page."""
        self.kill()
        self.folder.cleanup()


def commands(text: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with its expected output."""
    command, expected = "", ""
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, expected
            command, expected = line.removeprefix("$ "), ""
        elif line.startswith("> ") and not expected:
            command += "\n" + line.removeprefix("> ")
        else:
            assert command, f"output before a command: {line}"
            expected += line + "\n"
    if command:
        yield command, expected


def run_console(block: Block) -> None:
    """Compares the output of each command."""
    checker = OutputChecker()
    for command, expected in commands(block.parsed):
        printed, status = block.namespace["shell"].run(command)
        if not expected:
            assert (printed, status) == ("", 0), f"$ {command}\n{printed}[status {status}]"
        elif not checker.check_output(expected, printed, MATCHING):
            difference = checker.output_difference(Example(command, expected), printed, MATCHING)
            raise AssertionError(f"$ {command}\n{difference}[status {status}]")


def run_script(block: Block) -> None:
    """Runs commands whose output does not matter."""
    printed, status = block.namespace["shell"].run(block.parsed)
    assert status == 0, f"{block.parsed}\n{printed}[status {status}]"


def begin(namespace: dict[str, Any]) -> None:
    """The names that conditions of a page can use, and its shell."""
    try:
        paths.simulator()
        namespace["simulator"] = True
    except paths.NotFoundError:
        namespace["simulator"] = False
    namespace["lab"] = "lab" in os.environ.get("NETACC_TUTORIALS", "").split()
    namespace["shell"] = Shell()


def end(namespace: dict[str, Any]) -> None:
    """Leaves nothing behind."""
    namespace["shell"].close()


pytest_collect_file = Sybil(
    parsers=[CodeBlockParser("console", run_console), CodeBlockParser("sh", run_script), SkipParser()],
    pattern="tutorials/*.md",
    setup=begin,
    teardown=end,
).pytest()
