"""Paths of scenarios, profiles, runs and the simulator: in a checkout, or of an installed package.

Environment variables change them. An installed package has its own scenarios and profiles (`shipped`), which
belong to its version, so it does not look for a checkout that it happens to be started in.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path


class NotFoundError(Exception):
    """A file of the project that is needed is not there."""


#: Only a package that was built, not one that runs in a checkout, has them.
SHIPPED = Path(__file__).resolve().parents[1] / "shipped"


def _is_installed() -> bool:
    return "NETACC_ROOT" not in os.environ and SHIPPED.is_dir() and not _around(SHIPPED)


def _around(start: Path) -> Path | None:
    """The checkout that a file or folder is in."""
    for folder in (start, *start.parents):
        if (folder / "sim/scenarios").is_dir() and (folder / "models/profiles").is_dir():
            return folder
    return None


def root() -> Path:
    """The checkout: `NETACC_ROOT`, or the one around this file, or the one around the working folder."""
    named = os.environ.get("NETACC_ROOT")
    if named:
        return Path(named)
    found = _around(Path(__file__).resolve()) or _around(Path.cwd())
    if found:
        return found
    raise NotFoundError("no checkout of netacc-lab around here: set NETACC_ROOT")


def scenarios_folder() -> Path:
    """Ready scenarios."""
    return SHIPPED / "scenarios" if _is_installed() else root() / "sim/scenarios"


def profiles_folder() -> Path:
    """Profiles."""
    return SHIPPED / "profiles" if _is_installed() else root() / "models/profiles"


def runs_folder() -> Path:
    """Where runs are kept: `NETACC_RUNS`, or in the checkout, or among the user's data (XDG)."""
    named = os.environ.get("NETACC_RUNS")
    if named:
        return Path(named)
    if not _is_installed():
        return root() / "results/local/sim"
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local/share") / "netacc-lab/runs"


def simulator() -> Path:
    """The simulator program: `NETACC_SIMULATOR`, or the checkout's (`ci/run.sh ns3`), or the one in PATH."""
    named = os.environ.get("NETACC_SIMULATOR")
    built = None if _is_installed() else root() / "target/ns3/netacc-simulator"
    found = named or (str(built) if built and built.exists() else shutil.which("netacc-simulator"))
    if not found or not Path(found).exists():
        raise NotFoundError(
            "there is no netacc-simulator: `ci/run.sh sim-tools` builds it; NETACC_SIMULATOR names another"
        )
    return Path(found)
