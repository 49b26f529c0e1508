"""What the answers of an embedding server hold, and what its refusals mean: vLLM's, and
text-embeddings-inference's."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import orjson

from penstock_workers.item.answer import Answer, NoAnswer, Tried
from penstock_workers.lanes.embed.encoding.buckets import Vector
from penstock_workers.lanes.embed.requests.bodies import MAX_INPUTS, BadBody

__all__ = ["Unusable", "VectorAnswer", "message", "read_vectors", "refused"]

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
    """In the order of the inputs."""

    vectors: Sequence[Vector]
    model: str | None
    tokens: int


def read_vectors(body: bytes, inputs: int) -> VectorAnswer:
    """Raises Unusable."""
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
    """What these servers mean by statuses that mean something else elsewhere; all others speak for
    themselves.

    ``does``: what was asked of the model, such as "rerank".
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
    """Of any of their error bodies: OpenAI's form, text-embeddings-inference's two, or vLLM's of a
    path; cut."""
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
