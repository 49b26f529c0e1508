"""The notebooks in examples/, executed as Jupyter does: in a kernel with its own event loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from machine import Machine, eventually

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples/notebooks").glob("*.ipynb"))
CELL_S = 180
SAYS = {
    "embeddings": ("B-1", "nearness"),
    "evals": ("accuracy", "cost_usd"),
    "tickets": ("3 answered, 1 failed", "missing_field", "True", "&lt;progress"),
}


def text_of(notebook: Any) -> str:
    """Return all that the cells have put out."""
    outputs = [one for cell in notebook.cells for one in cell.get("outputs", ())]
    found = [str(one.get("data", "")) + str(one.get("text", "")) for one in outputs]
    return "\n".join(found).replace("<progress", "&lt;progress")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    """Each cell works, and shows what the text beside it says; no process is left behind."""
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=CELL_S, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    told = text_of(notebook)
    for words in SAYS[path.stem]:
        assert words in told
    eventually(lambda: Machine(tmp_path).leftovers() == [])


def test_notebooks_carry_no_output() -> None:
    """What a reader sees first is the code; outputs of another day would drift from it."""
    assert {path.stem for path in NOTEBOOKS} == set(SAYS)
    for path in NOTEBOOKS:
        cells = nbformat.read(path, as_version=4).cells
        assert not [cell for cell in cells if cell.get("outputs")]
