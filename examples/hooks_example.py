"""A job's own functions around inference: `--preprocess hooks_example:shorten --postprocess
hooks_example:label`."""

from __future__ import annotations

from typing import Any

from penstock_workers.hooks import Invalid, Item

LABELS = ("praise", "complaint", "question")
LONGEST_CHARS = 8_000


def shorten(item: Item) -> Item:
    """Before the call: the end of a very long document adds cost and no meaning."""
    message = item.body["messages"][-1]
    message["content"] = message["content"][:LONGEST_CHARS]
    return item


def label(item: Item, response: dict[str, Any]) -> dict[str, Any] | Invalid:
    """After it: keep one of our labels beside the answer, or have the document tried again."""
    text = response["choices"][0]["message"]["content"].lower()
    found = [one for one in LABELS if one in text]
    if len(found) != 1:
        return Invalid(f"{len(found)} labels in {text[:80]!r}")
    return response | {"label": found[0]}
