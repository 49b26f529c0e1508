"""The notebooks in examples/, executed as Jupyter does: in a kernel with its own event loop."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from forked import Forked
from machine import Machine, Simulator, eventually, simulator

jupyter_client = pytest.importorskip("jupyter_client")
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


CELL = """
import penstock
answers = penstock.run(
    [{{"text": f"t{{number}}"}} for number in range(150)],
    prompt="S: {{text}}", model="sim", base_url={url!r}, workers=1, concurrency=4,
)
print(repr(answers))
"""


@pytest.fixture(autouse=True)
def forked_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jupyter_client.launcher.Popen", Forked)


def has_called(provider: Simulator, times: int) -> bool:
    return bool(provider.stats()["requests"] >= times)


def told_by(client: Any, cell: str) -> str:
    """Wait until a cell that was sent has ended; return what it has put out."""
    told: list[str] = []
    while True:
        message = client.get_iopub_msg(timeout=CELL_S)
        if message["parent_header"].get("msg_id") != cell:
            continue
        content = message["content"]
        told.append(f"{content.get('text', '')}{content.get('evalue', '')}")
        if content.get("execution_state") == "idle":
            return "".join(told)


def test_a_cell_that_is_interrupted_or_whose_kernel_is_killed_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt stops workers and queue in order and says how to go on; kill -9 of the kernel
    ends them, too. The cell, run again, goes on: each row is paid once."""
    monkeypatch.chdir(tmp_path)
    with simulator("--latency-ms", "150") as slow:
        code = CELL.format(url=slow.url)
        for how in ("interrupt", "kill", "leave"):
            kernel = jupyter_client.KernelManager()
            kernel.start_kernel()
            client = kernel.blocking_client()
            client.start_channels()
            client.wait_for_ready(timeout=CELL_S)
            before = slow.stats()["requests"]
            cell = client.execute(code)
            if how != "leave":
                eventually(partial(has_called, slow, before + 8))
            if how == "interrupt":
                kernel.interrupt_kernel()
            if how == "kill":
                os.kill(kernel.provisioner.pid, signal.SIGKILL)
            else:
                told = told_by(client, cell)
                assert ("The same call goes on" if how == "interrupt" else "150 answered") in told
            client.stop_channels()
            kernel.shutdown_kernel(now=True)
            eventually(lambda: not Machine(tmp_path).at_work())
        assert slow.stats()["requests"] == 150
