"""Notebooks are saved without results. The documentation's build executes them (`ci/run.sh docs`)."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from netacc_lab.sim import paths


@pytest.mark.parametrize(
    "file", sorted((paths.root() / "notebooks").glob("*.ipynb")), ids=lambda file: file.stem
)
def test_notebook(file: Path) -> None:
    """Breaks if a notebook was saved with results in it, or would be a page without a title."""
    notebook = nbformat.read(file, as_version=4)  # type: ignore[no-untyped-call]
    assert not any(cell.get("outputs") for cell in notebook.cells), "clear the outputs"
    assert notebook.cells[0].source.startswith("# ")
