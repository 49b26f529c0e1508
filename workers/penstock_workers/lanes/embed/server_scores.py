"""Scores and classes by an embedding server: what each kind is asked, and the numbers in its
answer.

vLLM has `/score` and `/classify`, text-embeddings-inference `/predict`, which takes texts and
pairs. Rankings are made here of scores, so that they have one order, one `top_n` and one shape
whatever made them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from penstock_workers.item.answer import Answer
from penstock_workers.lanes.embed.server_answers import Unusable
from penstock_workers.lanes.embed.server_model import ServerModel
from penstock_workers.lanes.scoring.asks import Ask

__all__ = ["Scores", "read_scores", "scores_request"]


class Scores(NamedTuple):
    """A row for each text or pair, in their order; a number in it for each class."""

    rows: Sequence[Sequence[float]]
    labels: Sequence[str | None]
    tokens: int


def scores_request(ask: Ask, model: ServerModel, *, trim: bool) -> tuple[str, bytes]:
    """Path and body.

    Without ``trim`` a text that is too long is refused, whatever the server does by itself."""
    if model.is_tei:
        inputs = [[text] if isinstance(text, str) else list(text) for text in ask.texts]
        return "/predict", orjson.dumps(
            {"inputs": inputs, "raw_scores": not ask.activated, "truncate": trim}
        )
    body: dict[str, Any] = {"model": ask.model or model.name}
    if not ask.activated:
        body["use_activation"] = False
    if trim:
        body["truncate_prompt_tokens"] = -1
    if ask.task == "classify":
        return "/classify", orjson.dumps(body | {"input": ask.texts})
    firsts, seconds = zip(*ask.texts, strict=True)
    one = len(set(firsts)) == 1  # a query travels once
    return "/score", orjson.dumps(
        body | {"text_1": firsts[0] if one else firsts, "text_2": seconds}
    )


def read_scores(answer: Answer, ask: Ask, model: ServerModel) -> Scores:
    """Raises Unusable."""
    try:
        said = orjson.loads(answer.body)
        scores = _predicted(said, answer, model) if model.is_tei else _listed(said, ask)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise Unusable(
            f"200 with an answer that holds no scores: {type(error).__name__}: {error}"
        ) from None
    if len(scores.rows) != len(ask.texts) or len({len(row) for row in scores.rows}) != 1:
        raise Unusable(
            f"200 with {len(scores.rows)} rows of scores for {len(ask.texts)} texts, or of unequal "
            "length"
        )
    if not all(row and all(map(math.isfinite, row)) for row in scores.rows):
        raise Unusable("200 with a score that is missing or is not a number")
    return scores


def _listed(said: Any, ask: Ask) -> Scores:
    """vLLM's: by `index`, with the label of the largest number only."""
    entries = sorted(said["data"], key=lambda entry: entry["index"])
    if [entry["index"] for entry in entries] != list(range(len(entries))):
        raise Unusable("200 with scores of no text, or several of one")
    tokens = max(0, int((said.get("usage") or {}).get("prompt_tokens", 0)))
    if ask.task != "classify":
        return Scores([[float(entry["score"])] for entry in entries], (), tokens)
    rows = [[float(number) for number in entry["probs"]] for entry in entries]
    labels: list[str | None] = [None] * max(map(len, rows), default=0)
    for entry, row in zip(entries, rows, strict=True):
        labels[max(range(len(row)), key=row.__getitem__)] = entry["label"]
    return Scores(rows, labels, tokens)


def _predicted(said: Any, answer: Answer, model: ServerModel) -> Scores:
    """text-embeddings-inference's: the classes of each text by falling score.

    Tokens are in a header."""
    labels = model.labels or ()
    tokens = answer.headers.get("x-compute-tokens", "")
    rows = []
    for predictions in said:
        by_label = {each["label"]: float(each["score"]) for each in predictions}
        rows.append([by_label[label] for label in labels] if labels else list(by_label.values()))
    return Scores(rows, labels, int(tokens) if tokens.isdecimal() else 0)
