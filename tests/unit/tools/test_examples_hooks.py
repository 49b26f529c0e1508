"""The example of hooks, as a worker would call it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock_workers.children.protocol import RunningCalls, new_file
from penstock_workers.hooks import Invalid, Item
from penstock_workers.in_child.hook_imports import HookImports


async def test_the_example_shortens_and_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be named in a job, changes the request, and refuses an answer without one label."""
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "examples")
    imports = HookImports(RunningCalls(new_file()), None)
    shorten, label = (
        await imports.get(1, "hooks_example:shorten"),
        await imports.get(1, "hooks_example:label"),
    )
    item = Item(
        "job",
        1,
        "doc",
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "x" * 9_000}]},
    )
    assert len(shorten(item).body["messages"][0]["content"]) == 8_000

    def answer(text: str) -> dict[str, object]:
        return {"choices": [{"message": {"content": text}}]}

    assert label(item, answer("A Complaint."))["label"] == "complaint"
    assert isinstance(label(item, answer("praise, or a question?")), Invalid)
    sys.modules.pop("hooks_example")
