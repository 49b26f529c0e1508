"""docs/notebook.md: the code of the page runs, and its frames have what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import forked
from machine import RUN_TIMEOUT_S, simulator

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
THERE = "http://127.0.0.1:8399/v1"
CHECKS = """
assert ", ".join(frame.columns) == COLUMNS, list(frame.columns)
assert list(frame["status"]) == ["succeeded", "succeeded", "failed"]
assert isinstance(answers[0].value, Ticket)
assert vectors["embedding"].dtype == pl.List(pl.Float32)
assert job.status.state == "completed"
"""


def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    """From the first block to the last in one script, as a reader would paste them."""
    page = (ROOT / "docs/notebook.md").read_text()
    blocks = CODE.findall(page)
    assert len(blocks) >= 5
    columns = re.search(r"^# its columns: (ticket, .+)$", page, re.MULTILINE)
    assert columns is not None
    with simulator() as provider:
        script = "\n".join(blocks).replace(THERE, provider.url)
        assert THERE not in script
        (tmp_path / "page.py").write_text(f"{script}\nCOLUMNS = {columns[1]!r}\n{CHECKS}")
        done = forked.run([], RUN_TIMEOUT_S, program=tmp_path / "page.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "It is late. succeeded" in done.stdout
    assert "<Answers of rows-" in done.stdout
