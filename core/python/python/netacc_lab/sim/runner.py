"""One run: the simulator as a process of its own, so that a crash is a failed run and nothing more."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from netacc_lab import __version__
from netacc_lab.records import Contents, converting
from netacc_lab.records.folder import write_into
from netacc_lab.sim.resolve import Resolved
from netacc_lab.sim.store import Code, Recorded, Store

#: Exit codes of the simulator program that leave a folder, by status.
STATUSES = {0: "complete", 3: "stalled", 4: "unfinished", 5: "broken"}

Progress = Callable[[dict[str, Any]], None]


class SimulatorError(Exception):
    """The simulator program failed and left nothing."""


@dataclass(frozen=True)
class Task:
    """A run to be made, as it goes to a worker: plain values only."""

    key: str
    resolved: Resolved
    program: Path
    #: Of the program that the key was made with.
    code_version: str
    folder: Path


@dataclass(frozen=True)
class Done:
    """The outcome of a task. `error` is empty unless there is no folder."""

    key: str
    status: str
    hit: bool
    error: str = ""

    @property
    def failed(self) -> bool:
        """No folder, no progress, or a wrong byte; a run that left questions open has not failed."""
        return self.status in ("error", "stalled", "broken")


def make(task: Task, progress: Progress | None = None) -> Done:
    """Makes a run, or finds it made."""
    store = Store(task.folder)
    found = store.find(task.key)
    if found:
        return Done(task.key, found.status, hit=True)
    try:
        with store.making(task.key) as folder:
            status = _simulate(task, folder, progress)
    except (SimulatorError, OSError) as error:
        return Done(task.key, "error", hit=False, error=str(error))
    return Done(task.key, status, hit=False)


def _simulate(task: Task, folder: Path, progress: Progress | None) -> str:
    version = Code(task.program).version
    if version != task.code_version:
        found = f"{version}, not {task.code_version}"
        raise SimulatorError(f"{task.program} is another one where the run is made: {found}")
    scenario = folder / "scenario.json"
    scenario.write_text(json.dumps(task.resolved))
    command = [str(task.program), f"--code-version={version}", str(scenario), str(folder)]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            assert process.stdout
            for line in process.stdout:
                if progress:
                    progress(json.loads(line))
            code = process.wait()
        except BaseException:
            process.kill()
            raise
        errors.seek(0)
        message = errors.read().strip()
    if code not in STATUSES or not (folder / "meta.json").exists():
        how = f"signal {-code}" if code < 0 else f"status {code}"
        raise SimulatorError(f"the simulator ended with {how}: {message[-2000:] or 'without a message'}")
    record(folder, command)
    return STATUSES[code]


def record(folder: Path, command: list[str]) -> None:
    """Makes the folder of a run a record."""
    meta = json.loads((folder / "meta.json").read_text())
    header = converting.of_simulation(folder, meta).header
    header.command = command
    header.versions["netacc_lab"] = __version__
    write_into(folder, Contents(header))


__all__ = ["STATUSES", "Done", "Progress", "Recorded", "SimulatorError", "Task", "make"]
