"""Where things are."""

from __future__ import annotations

import os
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
PROGRAMS = REPO / "tests/apps/programs"  # Python ones run as modules: python -m tests.apps.programs.NAME
RESULTS = REPO / "results/local"

NEEDED = ("netacc_run", "netacc_ss", "netacc-loader", "libnetacc-preload.so")


def binaries() -> Path:
    """The folder with the library and its commands: built by `make build`, or $NETACC_BIN_DIR."""
    return Path(os.environ.get("NETACC_BIN_DIR", REPO / "target/release"))


def missing_binaries() -> list[str]:
    return [name for name in NEEDED if not (binaries() / name).exists()]
