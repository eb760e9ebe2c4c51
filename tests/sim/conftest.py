"""Fixtures of the tests of scenarios: a scenario that takes a moment, and folders of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from netacc_lab.sim import paths

#: Two hosts, one switch, a few hundred requests.
SMALL = """
question = "What does a request take on an empty network?"

[topology]
kind = "star"
hosts = 3
rate = "25Gbit/s"
delay = "1us"

[device]
profile = "roce-100g"

[[workload]]
name = "get"
clients = 2
connections = 4
request = "64B"
response = "1KiB"

[measure]
warmup = "100us"
duration = "1ms"
seeds = [1, 2]
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes the small scenario with replacements: pairs of texts."""

    def do(*replacements: tuple[str, str], name: str = "small") -> Path:
        text = SMALL
        for old, new in replacements:
            assert old in text, old
            text = text.replace(old, new)
        path = tmp_path / f"{name}.toml"
        path.write_text(text)
        return path

    return do


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's runs are kept."""
    folder = tmp_path / "runs"
    monkeypatch.setenv("NETACC_RUNS", str(folder))
    paths.simulator()  # Raises the instruction to build it if there is none.
    return folder
