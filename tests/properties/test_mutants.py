"""The deliberate faults of `mutants.toml` fit the sources: otherwise that is seen only when the job runs."""

from __future__ import annotations

import tomllib

from tests.apps.lib.paths import REPO


def test_every_mutant_applies() -> None:
    mutants = tomllib.loads((REPO / "tests/properties/mutants.toml").read_text())["mutant"]
    found = {m["name"]: (REPO / m["file"]).read_text().count(m["find"]) for m in mutants}
    assert found == {m["name"]: m.get("count", 1) for m in mutants}
    assert all(m["find"] != m["replace"] for m in mutants)
