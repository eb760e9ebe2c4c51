"""An installed package uses its own scenarios and profiles, and one in a checkout the checkout's."""

from __future__ import annotations

from pathlib import Path

import pytest
from netacc_lab.sim import paths


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As a wheel leaves it."""
    for name in ("NETACC_ROOT", "NETACC_RUNS", "NETACC_SIMULATOR"):
        monkeypatch.delenv(name, raising=False)
    shipped = tmp_path / "site/netacc_lab/shipped"
    (shipped / "scenarios").mkdir(parents=True)
    monkeypatch.setattr(paths, "SHIPPED", shipped)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return shipped


def test_an_installed_package_has_its_own(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if it took the scenarios of a checkout of another version, or wrote runs into that."""
    checkout = installed.parents[2] / "checkout"
    for folder in ("sim/scenarios", "models/profiles", "target/ns3/netacc-simulator"):
        (checkout / folder).mkdir(parents=True)
    monkeypatch.chdir(checkout)
    assert paths.scenarios_folder() == installed / "scenarios"
    assert paths.profiles_folder() == installed / "profiles"
    assert paths.runs_folder() == installed.parents[2] / "data/netacc-lab/runs"
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(paths, "__file__", str(installed.parent / "sim/paths.py"))
    with pytest.raises(paths.NotFoundError, match="no netacc-simulator"):
        paths.simulator()


def test_a_checkout_comes_first(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if copies that a build has left behind hid the files that are worked on."""
    for folder in ("sim/scenarios", "models/profiles"):
        (tmp_path / folder).mkdir(parents=True)
    assert installed.is_dir() and paths.scenarios_folder() != installed / "scenarios"
    monkeypatch.setenv("NETACC_ROOT", str(tmp_path))
    assert paths.scenarios_folder() == tmp_path / "sim/scenarios"
    assert paths.runs_folder() == tmp_path / "results/local/sim"
