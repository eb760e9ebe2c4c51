"""Labs that several tests share: booting takes longer than most tests."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apps.lib.paths import binaries
from tests.lab.lib import ERDMA, UpLab, down, up

# By their devices.
LABS = ("rxe", "siw", "erdma")


# Before xdist reads the marks.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one lab are for one process, where there are several (`pytest -n 2 --dist loadgroup`)."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(lab_of(item)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Groups are suffixes of names, which not every pytest lets xdist set: all would boot all labs."""
    if getattr(session.config.option, "loadgroup", False):
        ungrouped = [item.nodeid for item in session.items if "@" not in item.nodeid]
        if ungrouped:
            pytest.exit(f"pytest-xdist groups no tests under pytest {pytest.__version__}", returncode=4)


def lab_of(item: pytest.Item) -> str:
    """The lab that a test uses: by its fixtures, or by the parameter that names one."""
    fixtures = getattr(item, "fixturenames", ())
    for lab in LABS:
        if {lab, f"shared_{lab}"} & set(fixtures):
            return lab
    named = {
        str(value).partition("-")[0]
        for value in getattr(getattr(item, "callspec", None), "params", {}).values()
    }
    return next((lab for lab in LABS if lab in named), "own")


@pytest.fixture(scope="session", autouse=True)
def netacc() -> Path:
    """The program under test."""
    program = binaries() / "netacc"
    assert program.exists(), f"{program} is missing: run 'ci/run.sh build' first"
    return program


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the writes of the lab `rxe` last."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="session")
def shared_rxe(netacc: Path, kept: Path) -> Iterator[UpLab]:
    """Two hosts with SoftRoCE, joined by a link that loses and delays a little."""
    del netacc
    name = f"rxe-{os.getpid()}"
    yield up(name, "--hosts", "2", "--loss", "1%", "--delay", "1ms", "--rw", str(kept))
    down(name)


@pytest.fixture(scope="session")
def shared_siw(netacc: Path) -> Iterator[UpLab]:
    """Two hosts with soft-iWARP."""
    del netacc
    name = f"siw-{os.getpid()}"
    yield up(name, "--hosts", "2", "--rdma", "siw")
    down(name)


@pytest.fixture(scope="session")
def shared_erdma(netacc: Path) -> Iterator[UpLab]:
    """Two hosts with an emulated eRDMA function each, its true driver and provider."""
    del netacc
    name = f"erdma-{os.getpid()}"
    yield up(name, "--hosts", "2", *ERDMA)
    down(name)


def served(lab: UpLab) -> Iterator[UpLab]:
    """A lab whose hosts answer. Ends the processes that a test started there.

    A host's kernel has stood still, in a driver's own code (`repair_siw` in ci/lab/src/drivers.rs), and
    another's network, after SoftRoCE had warned of a queue pair that it could not clean up. The tests after
    such a test, and its second chance, get a lab of their own.
    """
    if not lab.answers():
        warnings.warn(f"a host of {lab.name} stands still: booted again", stacklevel=1)
        lab.boot_again()
    yield lab
    lab.end_commands()


@pytest.fixture
def rxe(shared_rxe: UpLab) -> Iterator[UpLab]:
    """`shared_rxe` for a test."""
    yield from served(shared_rxe)


@pytest.fixture
def siw(shared_siw: UpLab) -> Iterator[UpLab]:
    """`shared_siw` for a test."""
    yield from served(shared_siw)


@pytest.fixture
def erdma(shared_erdma: UpLab) -> Iterator[UpLab]:
    """`shared_erdma` for a test."""
    yield from served(shared_erdma)


@pytest.fixture(params=["siw", pytest.param("erdma", marks=pytest.mark.long)])
def iwarp(request: pytest.FixtureRequest) -> UpLab:
    """Two hosts, with each of the devices that speak iWARP."""
    lab = request.getfixturevalue(request.param)
    assert isinstance(lab, UpLab)
    return lab


@pytest.fixture(params=["rxe", "siw", "erdma"])
def pair(request: pytest.FixtureRequest) -> UpLab:
    """Two hosts, with each of the devices."""
    lab = request.getfixturevalue(request.param)
    assert isinstance(lab, UpLab)
    return lab
