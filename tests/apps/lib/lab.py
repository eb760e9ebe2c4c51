"""The bench of one test: starts its programs, natively or under netacc_run, and judges the counters."""

from __future__ import annotations

import os
import pwd
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.apps.lib import counters, process
from tests.apps.lib.client import DONE, Report, read_report
from tests.apps.lib.counters import Counters
from tests.apps.lib.modes import Mode
from tests.apps.lib.paths import NEEDED, REPO, binaries
from tests.apps.lib.process import Process

# Variables that would change the measurement if they were inherited.
CLEARED = ("LD_PRELOAD", "NACC_", "NETACC_")


@dataclass(frozen=True)
class Load:
    """A client that has ended: its output, its time, and its counters where it was watched."""

    printed: str
    seconds: float
    seen: Counters | None


@dataclass
class Lab:
    """Everything that one test started. `close` is called for sure, also after a failure."""

    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def start(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        accelerated: bool = False,
        user: str | None = None,
        before: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        config: str = "",
        interactive: bool = False,
        folder: Path | None = None,
    ) -> Process:
        """Start a program.

        `user` runs it, and netacc_run, as that user. `before` is put in front, for example prlimit.
        `config` is added to the netacc.conf of an accelerated program. `interactive` keeps its standard
        input open.
        """
        name = self._unused(name)
        folder = folder or self.folder
        command = [str(word) for word in argv]
        log = folder / f"{name}.netacc.log"
        if accelerated:
            conf = folder / f"{name}.netacc.conf"
            conf.write_text(f'[netacc]\nNACC_LOG_LEVEL=3\nNACC_LOG_PATH="{log}"\n{config}')
            conf.chmod(0o644)
            runner = (self._public_binaries() if user else binaries()) / "netacc_run"
            command = [str(runner), "-f", str(conf), *command]
        if user:
            group = pwd.getpwnam(user).pw_gid
            command = ["setpriv", f"--reuid={user}", f"--regid={group}", "--init-groups", *command]
        clean = {key: value for key, value in os.environ.items() if not key.startswith(CLEARED)}
        started = process.start(
            name,
            [*before, *command],
            folder=folder,
            accelerated=accelerated,
            env=clean | {"PYTHONPATH": str(REPO)} | dict(self.env) | dict(env or {}),
            interactive=interactive,
        )
        started.logs.append(log)
        self.processes.append(started)
        return started

    def run(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        accelerated: bool = False,
        user: str | None = None,
        timeout_s: float = 60.0,
    ) -> str:
        """Start a program, wait for its success and return its output."""
        return self.start(name, argv, accelerated=accelerated, user=user).finish(timeout_s)

    def client(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        accelerated: bool = False,
        env: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
        timeout_s: float = 100.0,
    ) -> tuple[Process, Report]:
        """Run one of our own clients until it reports. It stays, so that its counters can be asked for."""
        started = self.start(name, argv, accelerated=accelerated, env=env, before=before, interactive=True)
        return started, read_report(started.wait_line(DONE, timeout_s))

    def load(self, name: str, argv: Sequence[str | Path], mode: Mode, *, user: str | None = None) -> Load:
        """Run the client of another project to its end.

        Where only the client is preloaded, only it has counters, so it is watched while it runs;
        it must take long enough (a few tenths of a second) to be asked.
        """
        began = time.perf_counter()
        started = self.start(name, argv, accelerated=mode.client, user=user)
        seen = None
        if mode is Mode.CLIENT_ONLY:
            seen = counters.last_of(started)
            self.expect_tcp(seen, who=f"{name}, as last seen")
        printed = started.finish(100)
        return Load(printed, time.perf_counter() - began, seen)

    def dismiss(self, client: Process) -> None:
        """Let one of our own clients end, which it must do in good order."""
        client.end_input()
        client.finish()

    def shared_folder(self, name: str, owner: str) -> Path:
        """A folder that belongs to another user."""
        folder = self.folder / name
        folder.mkdir()
        shutil.chown(folder, owner)
        return folder

    def remark(self, text: str) -> None:
        """Something to read when the test fails."""
        self.remarks.append(text)

    def close(self) -> None:
        """Stop everything, the last first."""
        for started in reversed(self.processes):
            started.stop()

    def report(self) -> list[tuple[str, str]]:
        """Title and text of each part of a failure's report."""
        parts = [(started.name, started.report()) for started in self.processes]
        if self.remarks:
            parts.insert(0, ("counters", "\n".join(self.remarks)))
        return parts

    def expect_link(self, seen: Counters, *, who: str, payload_bytes: int, share: float) -> None:
        """The payload, all of it, was counted, and at least that share of it went over the link."""
        self.remark(f"{who}: {seen.describe()}")
        assert seen.all_bytes >= payload_bytes, (
            f"{who} counted {seen.all_bytes} bytes, but {payload_bytes} bytes of payload were moved"
        )
        assert seen.streams_promoted > 0, f"{who} promoted no stream: {seen.describe()}"
        assert seen.link_share >= share, (
            f"{who} moved {seen.link_share:.4f} of its bytes over the link, not {share}: {seen.describe()}"
        )

    def expect_tcp(self, seen: Counters, *, who: str, payload_bytes: int = 0) -> None:
        """Everything stayed on TCP, was counted, and a reason was given."""
        self.remark(f"{who}: {seen.describe()}")
        assert seen.link_bytes == 0, f"{who} moved {seen.link_bytes} bytes over a link that cannot exist"
        assert seen.all_bytes >= payload_bytes, (
            f"{who} counted {seen.all_bytes} bytes, but {payload_bytes} bytes of payload were moved"
        )
        assert seen.reasons, f"{who} gives no reason for staying on TCP: {seen.describe()}"

    def judge(
        self, mode: Mode, *, server: Process, client: Process | Load, payload_bytes: int, share: float
    ) -> Counters:
        """Check the counters of both sides in this mode, while the server still runs.

        Returns the counters of the server, or of the client if only that one counts.
        """
        judged = Counters()
        if isinstance(client, Load):
            judged = client.seen or judged
        sides = (("client", client, mode.client), ("server", server, mode.server))
        for who, side, accelerated in sides:
            if not accelerated or isinstance(side, Load):
                continue
            judged = counters.totals(side)
            if mode is Mode.SHM:
                self.expect_link(judged, who=who, payload_bytes=payload_bytes, share=share)
            else:
                self.expect_tcp(judged, who=who, payload_bytes=payload_bytes)
        return judged

    def _unused(self, name: str) -> str:
        taken = {started.name for started in self.processes}
        count = 2
        candidate = name
        while candidate in taken:
            candidate = f"{name}-{count}"
            count += 1
        return candidate

    def _public_binaries(self) -> Path:
        """A copy that every user can read: the working copy may be below a private home."""
        public = self.folder / "public"
        if not public.exists():
            public.mkdir()
            for name in NEEDED:
                shutil.copy(binaries() / name, public)
        return public
