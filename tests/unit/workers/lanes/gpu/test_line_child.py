"""A process that answers lines, on the event loop that workers run on: its death is an end of file,
whenever it comes."""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock_workers.lanes.gpu.children.line_child import LineChild

PROGRAM = """
import os
from penstock_workers.lanes.gpu.children.line_child import serve
serve(lambda facts: lambda asked: os._exit(3) if asked == "end" else [facts, asked, os.getpid()])
"""


def loops() -> list[Any]:
    uvloop = pytest.importorskip("uvloop")
    return [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.mark.parametrize("new_loop", loops(), ids=["asyncio", "uvloop"])
def test_a_process_that_died_between_two_questions_is_told_as_an_end_of_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Then its owner starts another one, and the answer that was to be parsed is not made again
    (A1)."""
    (tmp_path / "line_program_of_test.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    async def main() -> None:
        child = await LineChild.start("line_program_of_test", pickle.dumps("facts"))
        facts, asked, _ = await child.ask(b'"first"', 30)
        assert (facts, asked) == ("facts", "first")
        with pytest.raises((EOFError, OSError)):
            await child.ask(b'"end"', 30)
        await child.gone()
        for _ in range(2):
            with pytest.raises((EOFError, OSError)):
                await child.ask(b'"second"', 30)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
