"""Fixtures of the tests of real programs, and the table of the bytes that they moved."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apps.lib.compiling import compile_program
from tests.apps.lib.lab import Lab
from tests.apps.lib.modes import Mode
from tests.apps.lib.paths import RESULTS, binaries, missing_binaries
from tests.apps.lib.results import Result, Results

RESULTS_KEY = pytest.StashKey[Results]()
LAB_KEY = pytest.StashKey[Lab]()
#: Of the rows, in what a process leaves to the one that has started it.
ROWS = "netacc_results"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RESULTS_KEY] = Results()


def backend_environment(config: pytest.Config) -> dict[str, str]:
    """The library itself chooses shared memory on one host; no setting changes that."""
    backend = config.getoption("backend")
    return {} if backend == "shm" else {"NACC_BACKEND": backend}


@pytest.fixture
def results(request: pytest.FixtureRequest) -> Results:
    """The table that is printed when all is done."""
    return request.config.stash[RESULTS_KEY]


@pytest.fixture(scope="session")
def public_tmp() -> Iterator[Path]:
    """A temporary folder that other users may enter (pytest's own is private)."""
    with tempfile.TemporaryDirectory(prefix="netacc-apps-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.fixture(scope="session")
def old_kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that starts others as on a kernel without the younger system calls."""
    return compile_program(tmp_path_factory.mktemp("old_kernel"), "old_kernel")


@pytest.fixture
def lab(request: pytest.FixtureRequest, public_tmp: Path) -> Iterator[Lab]:
    """Starts programs, and stops them when the test is over, however it ended."""
    with tempfile.TemporaryDirectory(dir=public_tmp, prefix="test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        bench = Lab(folder, env=backend_environment(request.config))
        request.node.stash[LAB_KEY] = bench
        try:
            yield bench
        finally:
            bench.close()


@pytest.fixture
def namespace(need_condition: Callable[[str, bool], None]) -> Iterator[str]:
    """A network namespace of this test's own, with its loopback up."""
    name = f"netacc-test-{os.getpid()}"
    added = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    need_condition("netns", added.returncode == 0)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


@pytest.fixture
def library() -> None:
    """The test needs the built library."""
    if missing := missing_binaries():
        pytest.fail(f"{binaries()} lacks {', '.join(missing)}: run `make build`", pytrace=False)


@pytest.fixture(params=list(Mode), ids=[mode.value for mode in Mode])
def mode(request: pytest.FixtureRequest) -> Mode:
    """Runs the test in every mode."""
    chosen: Mode = request.param
    if chosen is not Mode.TCP:
        request.getfixturevalue("library")
    return chosen


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    bench = item.stash.get(LAB_KEY, None)
    if bench and report.failed and report.when != "teardown":
        report.sections += bench.report()
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of several (`pytest -n`) gives its rows to the one that prints the table."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[ROWS] = [dataclasses.asdict(row) for row in session.config.stash[RESULTS_KEY].rows]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:  # noqa: ANN401 (pytest-xdist has no types)
    rows = getattr(node, "workeroutput", {}).get(ROWS, ())
    node.config.stash[RESULTS_KEY].rows += [Result(**row) for row in rows]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    results = config.stash[RESULTS_KEY]
    if not results.rows:
        return
    terminalreporter.section("bytes over the link")
    for line in results.table():
        terminalreporter.write_line(line)
    path = RESULTS / "apps.json"
    results.write(path)
    terminalreporter.write_line(f"written to {path.relative_to(config.rootpath)}")
