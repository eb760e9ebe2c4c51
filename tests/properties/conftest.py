"""The executors of the session, and how much is drawn."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from netacc_lab.differential import Differential
from netacc_lab.strategies import Profile

from tests.apps.lib.paths import REPO, binaries

PROFILE = Profile(os.environ.get("NETACC_PROFILE", "fast"))
# Programs for each property. NETACC_EXAMPLES names another number.
EXAMPLES = {Profile.FAST: 250, Profile.BALANCED: 4000, Profile.EXPENSIVE: 20000}

settings.register_profile(
    "netacc",
    max_examples=int(os.environ.get("NETACC_EXAMPLES", EXAMPLES[PROFILE])),
    deadline=None,
    # The fast profile is part of every run of the tests, which must not depend on luck; the others explore.
    derandomize=PROFILE is Profile.FAST,
    # A program takes milliseconds and a stuck one seconds; the executors are the session's on purpose.
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
        HealthCheck.data_too_large,
    ],
    print_blob=True,
)
settings.load_profile("netacc")


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Differential]:
    """Real processes, natively and accelerated."""
    missing = [
        name
        for name in ("netacc-exec", "netacc_run", "libnetacc-preload.so")
        if not (binaries() / name).exists()
    ]
    if missing:
        pytest.fail(f"{binaries()} lacks {', '.join(missing)}: run ci/run.sh build")
    log: Path = tmp_path_factory.mktemp("props") / "netacc.log"
    with Differential(binaries(), log=log) as differential:
        yield differential


@pytest.fixture(scope="session")
def static_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Differential]:
    """As `lab`, but the executor is linked statically with musl, whose functions differ from glibc's."""
    executable = REPO / "target/x86_64-unknown-linux-musl/release/netacc-exec"
    if not executable.exists():
        pytest.fail(f"no {executable}: run ci/run.sh props")
    log: Path = tmp_path_factory.mktemp("static") / "netacc.log"
    with Differential(binaries(), log=log, executable=executable) as differential:
        yield differential


@pytest.fixture(scope="session")
def oracle() -> Iterator[Differential]:
    """Kernel TCP against itself."""
    with Differential(binaries(), accelerated=False) as differential:
        yield differential
