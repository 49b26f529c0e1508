"""Reads the answers and refusals of embedding servers: vLLM's, and text-embeddings-inference's.

Also what such a server says of the model that it has loaded, what it is asked for scores and
classes, and the numbers in its answer. vLLM has `/score` and `/classify`, text-embeddings-inference
`/predict`, which takes texts and pairs. Rankings are made here of scores, so that they have one
order, one `top_n` and one shape whatever made them.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from penstock_workers.item.answer import Answer, NoAnswer, Tried
from penstock_workers.lanes.embed.bodies import MAX_INPUTS, BadBody
from penstock_workers.lanes.embed.buckets import Vector
from penstock_workers.lanes.scoring import TASKS, Ask, wrong_model

__all__ = [
    "Scores",
    "ServerModel",
    "Unusable",
    "message",
    "model_of",
    "read_scores",
    "read_vectors",
    "refused",
    "scores_request",
]


@dataclass(frozen=True, slots=True)
class ServerModel:
    """The model that a server has loaded.

    ``labels`` are its classes in their order, none where it embeds; None where the server does not
    say.
    """

    name: str
    context: int | None = None  # tokens of one text or pair
    is_tei: bool = False  # text-embeddings-inference, else vLLM
    labels: tuple[str, ...] | None = None

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that the model can do; none where the server does not say."""
        if self.labels is None:
            return ()
        able = tuple(task for task in TASKS if wrong_model(task, len(self.labels or ())) is None)
        return able or ("embed",)


def model_of(said: object) -> ServerModel | None:
    """Read the model from vLLM's `/v1/models` or text-embeddings-inference's `/info`.

    None of anything else."""
    match said:
        case {"data": [{"id": str(name), **more}, *_]}:
            return ServerModel(name, _count(more.get("max_model_len")))
        case {"model_id": str(name), **more}:
            return ServerModel(
                name, _count(more.get("max_input_length")), True, _labels(more.get("model_type"))
            )
    return None


def _labels(kind: object) -> tuple[str, ...] | None:
    """Read the labels of a model.

    `model_type` is one of {"embedding": …}, {"classifier": …} and {"reranker": …}."""
    match kind:
        case {"embedding": _}:
            return ()
        case {"classifier": {"id2label": dict(names)}} | {"reranker": {"id2label": dict(names)}}:
            numbered = sorted(
                (int(place), str(name)) for place, name in names.items() if str(place).isdecimal()
            )
            return tuple(name for _, name in numbered) or None
    return None


def _count(given: Any) -> int | None:
    return given if type(given) is int and given > 0 else None


# How text-embeddings-inference says it (core/src/tokenization.rs, router/src/http/server.rs), with
# 413 up to 1.8, 422 since 1.9.
TOO_LONG: Final = "`inputs` must have less than"
TOO_MANY: Final = "maximum allowed batch size"
NO_PATH: Final = "Not Found"
"""How vLLM says that it has no path for what its model cannot do. (A model that it does not know
has other words.)"""
SHOWN_CHARS: Final = 500
"""Of a server's own words."""


class Unusable(Exception):
    """A 200 that does not hold what was asked for."""


class VectorAnswer(NamedTuple):
    """The vectors of an answer, in the order of the inputs."""

    vectors: Sequence[Vector]
    model: str | None
    tokens: int


def read_vectors(body: bytes, inputs: int) -> VectorAnswer:
    """Read the vectors in a server's answer, which must be ``inputs``.

    Raises Unusable."""
    import numpy

    try:
        answer = orjson.loads(body)
        entries = sorted(answer["data"], key=lambda entry: entry["index"])
        vectors = [_vector(entry["embedding"], numpy) for entry in entries]
        tokens = int((answer.get("usage") or {}).get("prompt_tokens", 0))
    except (ValueError, TypeError, LookupError, AttributeError, binascii.Error) as error:
        raise Unusable(
            f"200 with an answer that holds no vectors: {type(error).__name__}: {error}"
        ) from None
    if (
        len(vectors) != inputs
        or inputs > MAX_INPUTS
        or len({len(vector) for vector in vectors}) != 1
    ):
        raise Unusable(f"200 with {len(vectors)} vectors for {inputs} inputs, or of unequal length")
    if not all(len(vector) and numpy.isfinite(vector).all() for vector in vectors):
        raise Unusable("200 with a vector that is empty or holds what is not a number")
    model = answer.get("model")
    return VectorAnswer(vectors, model if isinstance(model, str) else None, max(0, tokens))


def _vector(embedding: Any, numpy: Any) -> Vector:
    if isinstance(embedding, str):
        return numpy.frombuffer(base64.b64decode(embedding, validate=True), "<f4")
    return numpy.array(embedding, "<f4")


def refused(answer: Answer, does: str) -> Tried:
    """Say what these servers mean by statuses that mean something else elsewhere.

    All other statuses speak for themselves. ``does`` is what was asked of the model, such as
    "rerank".
    """
    words = message(answer.body)
    match answer.status:
        case 413 | 422 if TOO_LONG in words:
            fix = (
                "shorten it, or let the server cut it (--auto-truncate; for scores on_overflow = "
                "trim does)"
            )
            return BadBody(f"{words}; {fix}", code="context_length_exceeded").answer()
        case 413 | 422 if TOO_MANY in words:
            fix = (
                "give fewer in one request, or start the server with a larger "
                "--max-client-batch-size"
            )
            return BadBody(f"{words}; {fix}", status=413).answer()
        case 404 | 501 if words == NO_PATH or answer.status == 501:
            return BadBody(
                f"the server's model does not {does}: {words} (HTTP {answer.status})", param="url"
            ).answer()
        case 424:
            return NoAnswer(
                "engine_failed", f"the server's model failed: {words}", answer.latency_ms
            )
        case 429:
            return NoAnswer(
                "engine_busy", f"the server's queue is full: {words}", answer.latency_ms
            )
    return answer


def message(body: bytes) -> str:
    """Return the message of an error body, cut.

    The body may have any of their forms: OpenAI's, text-embeddings-inference's two, or vLLM's of a
    path.
    """
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        said = None
    if isinstance(said, dict) and isinstance(said.get("error"), dict):
        said = said["error"]
    names = ("message", "error", "detail")
    words = (
        next((said[name] for name in names if name in said), None)
        if isinstance(said, dict)
        else None
    )
    return str(words if isinstance(words, str) else body[:SHOWN_CHARS].decode("utf-8", "replace"))[
        :SHOWN_CHARS
    ]


class Scores(NamedTuple):
    """A row for each text or pair, in their order; a number in it for each class."""

    rows: Sequence[Sequence[float]]
    labels: Sequence[str | None]
    tokens: int


def scores_request(ask: Ask, model: ServerModel, *, trim: bool) -> tuple[str, bytes]:
    """Return path and body of a request for scores.

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
    """Read the scores in a server's answer.

    Raises Unusable."""
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
    """Read vLLM's scores, which are by `index`, with the label of the largest number only."""
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
    """Read the scores of text-embeddings-inference: the classes of each text by falling score.

    Tokens are in a header."""
    labels = model.labels or ()
    tokens = answer.headers.get("x-compute-tokens", "")
    rows = []
    for predictions in said:
        by_label = {each["label"]: float(each["score"]) for each in predictions}
        rows.append([by_label[label] for label in labels] if labels else list(by_label.values()))
    return Scores(rows, labels, int(tokens) if tokens.isdecimal() else 0)
