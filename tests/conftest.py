"""Rules for all tests: nothing is left out in silence.

A test that a backend cannot pass is listed in `exclude/<backend>.toml`, one that the machine may not allow
asks with `need_condition`; both with a reason (tests/exclude/README.md). Every other skip is a failure.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests.exclude.rules import Exclusion, ListError, read_conditions, read_exclusions

EXCLUDE = Path(__file__).parent / "exclude"
EXPLAINED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--backend", default="shm", help="backend under test (default: %(default)s)")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    backend = config.getoption("backend")
    try:
        exclusions = read_exclusions(EXCLUDE / f"{backend}.toml")
    except (OSError, tomllib.TOMLDecodeError, ListError) as error:
        raise pytest.UsageError(str(error)) from error
    nodes = [item.nodeid for item in items]
    # Where only part of a file was asked for, an entry that matches nothing proves nothing.
    partial = any("::" in argument for argument in config.args)
    whole_files = set() if partial else {node.split("::")[0] for node in nodes}
    for exclusion in exclusions:
        matching = [item for item in items if exclusion.matches(item.nodeid)]
        for item in matching:
            item.add_marker(pytest.mark.skip(reason=f"excluded on {backend}: {exclusion.reason}"))
            item.stash[EXPLAINED] = True
        if not matching and (exclusion.file in whole_files or not _file_exists(config, exclusion)):
            raise pytest.UsageError(f"{backend}.toml: no test is called {exclusion.test!r}")


def _file_exists(config: pytest.Config, exclusion: Exclusion) -> bool:
    return (config.rootpath / exclusion.file).exists()


@pytest.fixture
def need_condition(request: pytest.FixtureRequest) -> Callable[[str, bool], None]:
    """Call with a condition's name and whether it holds; skips with the listed reason when it does not."""

    def need(name: str, is_met: bool) -> None:
        conditions = read_conditions(EXCLUDE / "conditions.toml")
        if name not in conditions:
            pytest.fail(f"conditions.toml does not list {name!r}")
        if not is_met:
            request.node.stash[EXPLAINED] = True
            pytest.skip(f"{name}: {conditions[name]}")

    return need


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and not item.stash.get(EXPLAINED, False):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped without a listed reason: {report.longrepr}"
    return report
