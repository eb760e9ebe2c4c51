"""Figures that a profile was fitted on are marked: they, and what follows from them, are no predictions."""

from __future__ import annotations

from pathlib import Path

import pytest
from netacc_lab.sim import ScenarioError, SerialEngine, paths, profiles, resolve, study
from netacc_lab.sim.columns import table

from tests.sim.conftest import Write

#: The load of the NetACC guide, on any network.
GUIDE = (
    ('[device]\nprofile = "roce-100g"', '[host]\nprofile = "g8ae-4xlarge"\nclient-threads = 4'),
    (
        'clients = 2\nconnections = 4\nrequest = "64B"\nresponse = "1KiB"',
        'kind = "redis-like"\nclients = 1\nconnections = 100',
    ),
)
FITTED = {"requests_per_s": "fitted", "mean_ns": "follows", "bytes_per_s": "follows"}


def kinds(file: Path, **sweep: object) -> dict[str, str]:
    (run,) = resolve.runs(file, sweep={key: [value] for key, value in sweep.items()}, seeds=[1])
    return dict(run.kinds)


def test_the_load_of_a_fit_is_known(write: Write) -> None:
    """Breaks if a fitted rate were taken for a prediction, or the mean that follows from it."""
    file = write(*GUIDE)
    assert kinds(file) == FITTED
    assert kinds(file, **{"stack.kind": "kernel-tcp"}) == FITTED
    assert kinds(file, **{"topology.delay": "3us", "workload.0.name": "other"}) == FITTED


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("workload.0.connections", 101),
        ("workload.0.request", "600B"),
        ("workload.0.service", "1us"),
        ("workload.0.depth", 2),
        ("host.client-threads", 5),
        ("host.work-factor", 1.1),
        ("stack.kind", "gazelle-like"),
        ("stack.system-call", "360ns"),
    ],
)
def test_other_loads_and_costs_are_predicted(write: Write, key: str, value: object) -> None:
    """Breaks if the figures of something else than was fitted on were marked."""
    assert kinds(write(*GUIDE), **{key: value}) == {}


def test_the_same_cost_in_the_scenario_changes_nothing(write: Write) -> None:
    assert kinds(write(*GUIDE), **{"stack.system-call": "350ns"}) == FITTED


def test_two_workloads_are_predicted(write: Write) -> None:
    more = '\n[[workload]]\nname = "more"\nclients = 1\nrequest = "64B"\nresponse = "64B"\n\n[measure]'
    assert kinds(write(*GUIDE, ("\n[measure]", more))) == {}


def test_tables_name_the_kinds(write: Write, runs: Path) -> None:
    """Breaks if a reader of the table, or of the JSON, could not tell a fit from a prediction."""
    del runs
    file = write(*GUIDE, ("seeds = [1, 2]", "seeds = [1]"))
    fitted = study(file, engine=SerialEngine())
    text = table(fitted)
    assert text.count("(fitted)") == 1 and text.count("(follows)") == 2
    (row,) = fitted.table()
    assert (row["fitted"], row["follows"]) == (["requests_per_s"], ["bytes_per_s", "mean_ns"])
    assert fitted.kinds().startswith("fitted: ")
    predicted = study(file, sweep={"workload.0.connections": [99]}, engine=SerialEngine())
    assert "(f" not in table(predicted)
    assert predicted.kinds().startswith("all figures are predicted")
    assert predicted.table()[0]["fitted"] == []


def test_where_calls_take_no_time_nothing_is_said(write: Write, runs: Path) -> None:
    del runs
    free = study(write(("seeds = [1, 2]", "seeds = [1]")), engine=SerialEngine())
    assert free.kinds() == ""


def test_a_profile_names_figures_that_there_are(tmp_path: Path) -> None:
    good = (paths.profiles_folder() / "netacc.toml").read_text()
    (tmp_path / "bad.toml").write_text(good.replace('"requests_per_s"', '"requests"'))
    with pytest.raises(ScenarioError, match=r"fitted\.0\.figures\.0"):
        profiles.load("stack", "bad.toml", tmp_path / "any.toml")
