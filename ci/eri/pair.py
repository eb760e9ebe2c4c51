"""Two machines, each reached by a command (`ssh HOST`, `netacc lab exec 1 --`), and their processes."""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

#: Runs a command under the rsockets of the host: without any, ld.so would only warn, and it would run on TCP.
RSPRELOAD = """
for folder in /usr/lib/*/rsocket /usr/lib64/rsocket /usr/lib/rsocket
do
    f=$folder/librspreload.so
    if [ -e "$f" ]; then exec env LD_PRELOAD="$f" "$@"; fi
done
echo 'librspreload.so of librdmacm is not installed' >&2
exit 127
"""
#: The exit status of ssh if it does not reach a host.
UNREACHABLE = 255
#: Bytes of a program's output that are kept for a message.
TAIL = 600
#: Default settings of the library: links are compared even where they are slower.
ON_LINKS = {"NACC_PATH_CHOICE": "link"}


class Failed(Exception):  # noqa: N818
    """An operation that failed, with its error."""


@dataclass(frozen=True)
class Host:
    """A machine."""

    #: Runs the following words on the machine. ssh joins them into a line, so they are quoted for it.
    reach: tuple[str, ...]
    address: str
    address6: str = ""
    quoted: bool = False
    name: str = ""

    def argv(self, command: Sequence[str]) -> list[str]:
        return [*self.reach, shlex.join(command)] if self.quoted else [*self.reach, *command]


@dataclass(frozen=True)
class Stack:
    """A carrier of connections: words that a command line begins with."""

    name: str
    launcher: tuple[str, ...] = ()

    @staticmethod
    def tcp() -> Stack:
        return Stack("tcp")

    @staticmethod
    def rsockets() -> Stack:
        return Stack("rsockets", ("sh", "-c", RSPRELOAD, "rsockets"))

    @staticmethod
    def netacc(binaries: Path, **settings: str) -> Stack:
        variables = [f"{name}={value}" for name, value in {**ON_LINKS, **settings}.items()]
        return Stack("netacc", ("env", *variables, str(binaries / "netacc_run")))

    def of(self, *command: str) -> list[str]:
        return [*self.launcher, *command]


@dataclass
class Started:
    """A command that runs on a host."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def output(self) -> str:
        return "".join(self.lines)[-TAIL:].strip()

    def ending(self) -> str | None:
        """Its exit status, if it has ended. 128 and more: a signal."""
        status = self.process.poll()
        if status is None:
            return None
        how = f"signal {status - 128}" if status > 128 else f"status {status}"
        return f"ended with {how}: {self.output()}"


class Pair:
    """Two hosts and the processes that were started on them. Numbers of hosts are 1 and 2."""

    def __init__(
        self, hosts: tuple[Host, Host], binaries: Path, *, seconds: float = 60, watch_seconds: float = 1.5
    ) -> None:
        """`seconds`: the time limit of every operation, on this machine and the others.

        `watch_seconds`: the interval at which `watched` reads counters. That takes a host's processor time.
        """
        self.hosts = hosts
        self.binaries = binaries
        self.seconds = seconds
        self.watch_seconds = watch_seconds
        self.folder = f"/tmp/netacc-pair-{time.time_ns() % 10**9}"
        self._started: list[tuple[int, str, Started]] = []

    def address(self, host: int) -> str:
        return self.hosts[host - 1].address

    def run(
        self, host: int, *command: str, seconds: float | None = None, given: bytes = b""
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end, with its standard input. Fails if the host cannot be reached."""
        limit = seconds or self.seconds
        at = self.hosts[host - 1]
        argv = at.argv(["timeout", f"{limit:.0f}", *command])
        who = f"host {host} ({at.name or at.address})"
        try:
            ran = subprocess.run(argv, input=given, capture_output=True, check=False, timeout=limit + 30)
        except subprocess.TimeoutExpired:
            raise Failed(f"{who} does not answer") from None
        except OSError as error:
            raise Failed(f"{who}: {error}") from None
        out, err = (stream.decode(errors="replace") for stream in (ran.stdout, ran.stderr))
        if at.quoted and ran.returncode == UNREACHABLE:
            raise Failed(f"{who} cannot be reached: {err.strip()[-TAIL:]}")
        return subprocess.CompletedProcess(argv, ran.returncode, out, err)

    def out(self, host: int, *command: str, seconds: float | None = None) -> str:
        """The output of a command that succeeds."""
        result = self.run(host, *command, seconds=seconds)
        if result.returncode != 0:
            how = (
                "not finished in time"
                if result.returncode == 124
                else f"ended with status {result.returncode}"
            )
            tail = (result.stderr.strip() or result.stdout.strip())[-TAIL:]
            words = [word for word in command if "=" not in word and word != "env"]
            raise Failed(f"{Path(words[0]).name} on host {host} {how}: {tail}")
        return result.stdout

    def start(self, host: int, *command: str) -> Started:
        """Starts a command, which `end` ends."""
        file = f"{self.folder}-{len(self._started)}.pid"
        script = f'echo $$ >{file}; exec "$@"'
        argv = self.hosts[host - 1].argv(["sh", "-c", script, "sh", *command])
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        started = Started(process)

        def keep() -> None:
            assert process.stdout
            started.lines.extend(process.stdout)

        threading.Thread(target=keep, daemon=True).start()
        self._started.append((host, file, started))
        return started

    def wait_for(self, host: int, condition: str, what: str, *needed: Started) -> None:
        """Waits until a shell condition is true on the host, as long as the process that it needs lives."""
        deadline = time.monotonic() + self.seconds
        while self.run(host, "sh", "-c", condition, seconds=20).returncode != 0:
            for started in needed:
                if ending := started.ending():
                    raise Failed(ending)
            if time.monotonic() > deadline:
                output = "; ".join(started.output() for started in needed)
                raise Failed(f"{what}: not within {self.seconds:.0f} s. {output[-TAIL:]}")
            time.sleep(0.2)

    def of(self, started: Started, script: str) -> str:
        """The output of a shell script, whose first argument is the process's id."""
        (host, file) = next((host, file) for host, file, one in self._started if one is started)
        return self.out(host, "sh", "-c", f"set -- $(cat {file}); {script}")

    def signal(self, started: Started, name: str) -> None:
        """Sends a signal to the process."""
        for host, file, one in self._started:
            if one is started:
                self.run(host, "sh", "-c", f"kill -{name} $(cat {file})")

    def end(self) -> None:
        """Ends all started processes, and removes their files: the next program begins without any."""
        for host in (1, 2):
            files = [file for at, file, _ in self._started if at == host]
            # Its children first, while it is stopped; otherwise it would start others.
            each = 'p=$(cat "$f"); kill -STOP "$p"; pkill -KILL -P "$p"; kill -KILL "$p"; rm -f "$f"'
            script = f"for f; do {each}; done 2>/dev/null; rm -rf {self.folder}-*"
            # Files on a host that cannot be reached stay there.
            with contextlib.suppress(Failed):
                self.run(host, "sh", "-c", script, "sh", *files)
        for _, _, started in self._started:
            try:
                started.process.wait(10)
            except subprocess.TimeoutExpired:
                started.process.kill()
                started.process.wait()
        self._started.clear()

    def counters(self, host: int) -> dict[int, dict[str, int]]:
        """The counters of the accelerated processes of a host, by process."""
        ss = self.binaries / "netacc_ss"
        script = (
            f"{ss} --json | sed -n 's/.*\"pid\": \\([0-9]*\\).*/\\1/p' | "
            f"while read p; do {ss} -p $p -s cnt --json | tr -d '\\n'; echo; done"
        )
        found = {}
        for line in self.run(host, "sh", "-c", script).stdout.splitlines():
            with contextlib.suppress(ValueError):
                counted = json.loads(line)
                found[int(counted["pid"])] = counted["cnt"]
        return found

    @contextlib.contextmanager
    def watched(self, host: int) -> Iterator[Watch]:
        """Keeps the counters of a host's accelerated processes, also of those that end meanwhile."""
        watch = Watch(self, host)
        watch.inspect()
        watch.before = dict(watch.last)
        over = threading.Event()

        def inspect() -> None:
            while not over.wait(self.watch_seconds):
                with contextlib.suppress(Failed):
                    watch.inspect()

        thread = threading.Thread(target=inspect)
        thread.start()
        try:
            yield watch
        finally:
            over.set()
            thread.join()
            watch.inspect()


class Watch:
    """The bytes that the processes of a host have moved over links and over TCP."""

    def __init__(self, pair: Pair, host: int) -> None:
        self._pair, self._host = pair, host
        self.before: dict[int, dict[str, int]] = {}
        self.last: dict[int, dict[str, int]] = {}

    def inspect(self) -> None:
        self.last |= self._pair.counters(self._host)

    def bytes(self, path: str) -> int:
        """The bytes over `link` or `tcp`, in both directions, since the watch began."""
        names = (f"rx_bytes_{path}", f"tx_bytes_{path}")

        def total(of: dict[int, dict[str, int]]) -> int:
            return sum(counted[name] for counted in of.values() for name in names)

        return total(self.last) - total(self.before)

    def share(self) -> float:
        """The share of bytes on links."""
        link, tcp = self.bytes("link"), self.bytes("tcp")
        return link / (link + tcp) if link + tcp else 0.0
