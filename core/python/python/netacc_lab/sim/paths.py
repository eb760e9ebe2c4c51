"""Paths in a checkout of the project, which environment variables can change."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


class NotFoundError(Exception):
    """A file of the project that is needed is not there."""


def root() -> Path:
    """The checkout: `NETACC_ROOT`, or the one around this file, or the one around the working folder."""
    named = os.environ.get("NETACC_ROOT")
    if named:
        return Path(named)
    for start in (Path(__file__).resolve(), Path.cwd()):
        for folder in (start, *start.parents):
            if (folder / "sim/scenarios").is_dir() and (folder / "models/profiles").is_dir():
                return folder
    raise NotFoundError("no checkout of netacc-lab around here: set NETACC_ROOT")


def scenarios_folder() -> Path:
    """Ready scenarios."""
    return root() / "sim/scenarios"


def profiles_folder() -> Path:
    """Profiles."""
    return root() / "models/profiles"


def runs_folder() -> Path:
    """Where runs are kept: `NETACC_RUNS`, or in the checkout."""
    named = os.environ.get("NETACC_RUNS")
    return Path(named) if named else root() / "results/local/sim"


def simulator() -> Path:
    """The simulator program: `NETACC_SIMULATOR`, or the one built by `ci/run.sh ns3`, or the one in PATH."""
    named = os.environ.get("NETACC_SIMULATOR")
    built = root() / "target/ns3/netacc-simulator"
    found = named or (str(built) if built.exists() else shutil.which("netacc-simulator"))
    if not found or not Path(found).exists():
        raise NotFoundError(
            "there is no netacc-simulator: `ci/run.sh sim-tools` builds it; NETACC_SIMULATOR names another"
        )
    return Path(found)
