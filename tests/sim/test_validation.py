"""Simulation agrees with closed forms and published results."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.rows import Row, table
from tests.sim.validation import CHECKS


@pytest.mark.parametrize("name", CHECKS)
def test_simulation_agrees(name: str, tmp_path: Path) -> None:
    """Breaks if a model leaves its bounds: the table shows the figure."""
    rows = CHECKS[name](tmp_path)
    assert rows
    assert all(row.holds for row in rows), "\n" + table(name, rows, "")


def test_a_row_can_fail() -> None:
    """Breaks if any figure would pass."""
    assert not Row("", 100, 111, "", 0.1).holds
    assert not Row("", 100, 111, "", 0.1, bound="most").holds
    assert not Row("", 100, 89, "", 0.1, bound="least").holds
    assert Row("", 100, 109, "", 0.1).holds
