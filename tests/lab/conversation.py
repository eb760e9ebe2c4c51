"""A conversation with checked blocks between the hosts of a lab (`programs/steady.py`)."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from tests.apps.lib.counters import Counters, parse
from tests.apps.lib.paths import REPO, binaries
from tests.lab.lib import COMMAND_SECONDS, UpLab, line_from

STEADY = str(REPO / "tests/lab/programs/steady.py")
SERVER, PORT, PROGRESS_FILE = "10.99.0.1", "7002", "/tmp/steady"
# Where links for that port are accepted.
LINK_PORT = int(PORT) + 20000
# A test of a conversation may wait for several things, each for as long as a command may take.
SECONDS = 3 * COMMAND_SECONDS


@dataclass
class Conversation:
    """Blocks from the second host to the first, and back."""

    lab: UpLab
    #: Process ids of the two ends, on the first host and on the second.
    server: str
    client: str
    asker: subprocess.Popen[str]

    def blocks(self) -> int:
        """So many have come back."""
        return int(json.loads(self.lab.out(2, "cat", PROGRESS_FILE))["blocks"])

    def counters(self) -> Counters:
        """Those of the first host's end."""
        return self._counters(1, self.server)

    def client_counters(self) -> Counters:
        """Those of the second host's end."""
        return self._counters(2, self.client)

    def _counters(self, host: int, pid: str) -> Counters:
        return parse(self.lab.out(host, str(binaries() / "netacc_ss"), "-p", pid, "-s", "all", "--json"))

    def wait_for_promotions(self, count: int) -> None:
        """Until the server's end has got onto links so often. The way there may take several attempts."""
        self.lab.wait_for(1, f'[ "$({_counter("streams_promoted", self.server)})" -ge {count} ]')

    def links_failed(self) -> int:
        """At either end, so far."""
        return self._both("links_failed")

    def links_silent(self) -> int:
        """At either end, so far: the links that were given up because they were silent."""
        return self._both("links_silent")

    def _both(self, counter: str) -> int:
        ends = ((1, self.server), (2, self.client))
        return sum(int(self.lab.out(host, "sh", "-c", _counter(counter, pid))) for host, pid in ends)

    def wait_for_progress(self, blocks: int = 100) -> None:
        """Until so many more blocks have come back."""
        goal = self.blocks() + blocks
        self.lab.wait_for(2, f'[ "$(sed "s/[^0-9]*\\([0-9]*\\).*/\\1/" {PROGRESS_FILE})" -ge {goal} ]')

    def end(self) -> float:
        """Ends it in good order; the longest time that a block took."""
        self.lab.out(2, "touch", f"{PROGRESS_FILE}.stop")
        printed, _ = self.asker.communicate(timeout=COMMAND_SECONDS)
        assert self.asker.returncode == 0, printed
        return float(_record(printed)["longest"])

    def failure(self) -> tuple[str, float]:
        """How it has ended by itself: the error, and the longest time that a block took, the last too."""
        printed, _ = self.asker.communicate(timeout=COMMAND_SECONDS)
        assert self.asker.returncode == 1, printed
        summary = _record(printed)
        return str(summary["error"]), float(summary["longest"])


def _record(printed: str) -> dict[str, Any]:
    """What the asker said last. The lab may have had something to tell as well, and tells it beside that."""
    lines = [line for line in printed.splitlines() if line.startswith("{")]
    record: dict[str, Any] = json.loads(lines[-1])
    return record


def _counter(name: str, pid: str) -> str:
    """A shell command that prints one counter of a process."""
    return f"{binaries()}/netacc_ss -p {pid} -s cnt | awk '/^{name}/ {{ print $2 }}'"


def begin(lab: UpLab, **env: str) -> Conversation:
    """A conversation that has begun, with these in the environment of the end that connects."""
    lab.out(2, "rm", "-f", PROGRESS_FILE, f"{PROGRESS_FILE}.stop")
    run = [str(binaries() / "netacc_run"), sys.executable, STEADY]
    server = lab.start(1, *run, "serve", SERVER, PORT, seconds=SECONDS)
    words = line_from(server.stdout).split()
    assert words[:2] == ["listening", "as"]
    pairs = (f"{name}={value}" for name, value in env.items())
    asker = lab.start(2, "env", *pairs, *run, "ask", SERVER, PORT, PROGRESS_FILE, seconds=SECONDS)
    lab.wait_for(2, f"test -e {PROGRESS_FILE}")
    client = str(json.loads(lab.out(2, "cat", PROGRESS_FILE))["pid"])
    return Conversation(lab, words[2], client, asker)


def begin_on_link(lab: UpLab) -> Conversation:
    """A conversation that is on a link."""
    conversation = begin(lab)
    conversation.wait_for_promotions(1)
    conversation.wait_for_progress()
    return conversation
