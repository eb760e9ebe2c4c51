"""Folders of runs, named by scenario and code.

The name is a hash of the resolved scenario and of the code: the simulator program and its ns-3. A second
request for the same run finds its folder. A run is made in a folder of its own beside them and renamed when
it is complete, so a folder with a name is a finished run, also after an interruption.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hdrh.histogram import HdrHistogram

from netacc_lab.sim.resolve import Resolved


@dataclass(frozen=True)
class Code:
    """The simulator program, and its version in the names of folders."""

    program: Path

    @cached_property
    def version(self) -> str:
        """A hash of the program and the version of its ns-3."""
        ns3 = subprocess.run([self.program, "--ns3-version"], capture_output=True, text=True, check=True)
        digest = hashlib.blake2b(self.program.read_bytes(), digest_size=8)
        digest.update(ns3.stdout.encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class Recorded:
    """The folder of a finished run."""

    folder: Path

    @cached_property
    def meta(self) -> dict[str, Any]:
        """`meta.json`: everything that was configured, and how it went."""
        loaded: dict[str, Any] = json.loads((self.folder / "meta.json").read_text())
        return loaded

    @property
    def status(self) -> str:
        """`complete`, `unfinished`, `stalled` or `broken`."""
        return str(self.meta["status"])

    def outcome(self) -> str:
        """How it went, to compare runs by: all but the configuration, the code and how long it took."""
        apart = ("scenario", "code_version", "ns3_version", "wall_s")
        return json.dumps({name: value for name, value in self.meta.items() if name not in apart})

    def histogram(self, group: str, what: str = "latency") -> HdrHistogram:
        """Latencies of a group, in nanoseconds; of short connections also `connect` and `whole`."""
        blob = (self.folder / f"{what}-{group}.hdr").read_bytes()
        return HdrHistogram.decode(base64.b64encode(blob))


class Store:
    """All folders of runs below one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def key(self, resolved: Resolved, code: Code) -> str:
        """The name of a run's folder."""
        text = json.dumps(resolved, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(f"{text}\n{code.version}".encode(), digest_size=16).hexdigest()

    def find(self, key: str) -> Recorded | None:
        """The run, if it was finished."""
        folder = self.folder / key
        return Recorded(folder) if (folder / "meta.json").exists() else None

    @contextmanager
    def making(self, key: str) -> Iterator[Path]:
        """A folder to make a run in: gets its name if the block ends well, is removed else."""
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.folder / f".{key}.{os.getpid()}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            yield partial
            for path in partial.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            try:
                partial.rename(self.folder / key)
            except OSError:
                # Another process has made the same run meanwhile: its folder is as good.
                if self.find(key) is None:
                    raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def all(self) -> list[Recorded]:
        """Every finished run, oldest first."""
        if not self.folder.is_dir():
            return []
        metas = [path for path in self.folder.glob("*/meta.json") if not path.parent.name.startswith(".")]
        return [Recorded(path.parent) for path in sorted(metas, key=lambda path: path.stat().st_mtime)]
