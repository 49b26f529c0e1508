"""The answers to requests for scores and classes, in the shapes of vLLM's server."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import orjson

from penstock_workers.lanes.scoring.asks import Ask

__all__ = ["answer_body"]


def answer_body(
    ask: Ask,
    rows: Sequence[Sequence[float]],
    *,
    labels: Sequence[str | None],
    tag: str,
    model: str,
    tokens: int,
) -> bytes:
    """``rows``: the numbers of each text, one for each class.

    ``tag`` names the item, as request ids do."""
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    if ask.task == "rerank":
        return orjson.dumps(
            {"id": f"rerank-{tag}", "model": model, "usage": usage, "results": _ranking(ask, rows)}
        )
    data = (
        [_class(place, row, labels) for place, row in enumerate(rows)]
        if ask.task == "classify"
        else _scores(rows)
    )
    head = {
        "id": f"{ask.task}-{tag}",
        "object": "list",
        "created": int(time.time()),
        "model": model,
    }
    return orjson.dumps(head | {"data": data, "usage": usage})


def _ranking(ask: Ask, rows: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    """The best first; of equal ones, the one that came first."""
    order = sorted(range(len(rows)), key=lambda place: -rows[place][0])
    documents = [
        {"document": {"text": text[1]}} if ask.with_documents else {} for text in ask.texts
    ]
    return [
        {"index": place, **documents[place], "relevance_score": rows[place][0]}
        for place in order[: ask.top_n]
    ]


def _scores(rows: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    return [{"index": place, "object": "score", "score": row[0]} for place, row in enumerate(rows)]


def _class(place: int, row: Sequence[float], labels: Sequence[str | None]) -> dict[str, Any]:
    best = max(range(len(row)), key=row.__getitem__)
    label = labels[best] if best < len(labels) else None
    return {"index": place, "label": label, "probs": row, "num_classes": len(row)}
