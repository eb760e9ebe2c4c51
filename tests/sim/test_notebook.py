"""Notebooks run from the beginning to the end."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from netacc_lab.sim import paths


@pytest.mark.parametrize(
    "file", sorted((paths.root() / "notebooks").glob("*.ipynb")), ids=lambda file: file.stem
)
def test_notebook(file: Path, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if a cell of a notebook fails, or it was saved with results in it."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(file, as_version=4)  # type: ignore[no-untyped-call]
    assert not any(cell.get("outputs") for cell in notebook.cells), "clear the outputs"
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    simulates = any("study(" in cell.source for cell in notebook.cells)
    assert simulates == bool(list(runs.glob("*/meta.json")))
