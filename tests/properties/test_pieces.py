"""A run in pieces counts what one run does."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from netacc_lab.pieces import OtherRunError, Pieces

from tests.apps.lib.paths import binaries

DESCRIPTION = {"first_seed": 0, "profile": "fast"}


def run(path: Path, seeds: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "netacc_lab", "--binaries", str(binaries()), "run", "--native"]
    command += ["--profile", "fast", "--seeds", seeds, "--json", str(path), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def counts(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    # The kernel's own count is not the same in all runs, and nor is time.
    for name in ("kernel_bytes", "moved", "seconds", "pieces"):
        del document[name]
    return document


# Breaks if a piece begins with another program than the one behind the last, or forgets what was counted.
def test_pieces_add_up(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole.json", tmp_path / "parts.json"
    assert run(whole, "100..130").returncode == 0
    for end, revision in ((112, "a"), (130, "b")):
        done = run(parts, f"100..{end}", "--resume", "--revision", revision)
        assert done.returncode == 0, done.stderr
    assert counts(parts) == counts(whole)
    pieces = json.loads(parts.read_text())["pieces"]
    assert [(piece["programs"], piece["revision"]) for piece in pieces] == [(12, "a"), (18, "b")]


# Breaks if counts of other programs are added to those in the file.
def test_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    assert run(path, "0..3").returncode == 0
    before = path.read_text()
    assert run(path, "1..5", "--resume").returncode == 2
    assert path.read_text() == before
    with pytest.raises(OtherRunError):
        Pieces.load(path, {"first_seed": 0, "profile": "balanced"})


# Breaks if a piece is written while a program before a judged one is not judged: it would never be run.
def test_only_first_programs_are_written() -> None:
    pieces = Pieces(DESCRIPTION)
    assert [pieces.judged(index, 0.0) for index in (0, 2, 1, 4, 3)] == [True, False, True, False, True]
