"""Equal requests of a job are sent once, where its options allow it.

Several documents may make the same request. An answer may stand for another where the same request
is answered alike each time. Embeddings and scores are, and transcripts at temperature 0, which is
theirs; a text is at temperature 0, or with a seed where no temperature is given. `always` says that
any answer to the same request will do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from penstock_producer.errors import Problem
from penstock_producer.job.endpoints import (
    CHAT,
    CONVERSE,
    EMBEDDINGS,
    GENERATE,
    MESSAGES,
    SCORING,
    TRANSCRIPTIONS,
)

__all__ = ["CACHE_MAX_S", "answers_alike"]

Dedup = Literal["off", "on", "always"]

CACHE_MIN_S: Final = 60.0
CACHE_MAX_S: Final = 30 * 86_400.0

_TEXTS: Final = frozenset({CHAT, CONVERSE, GENERATE, MESSAGES, "/v1/completions", "/v1/responses"})
_COMPUTED: Final = SCORING | {EMBEDDINGS, "/v1/moderations"}
_NUMBERS: Final = ("n", "best_of", "candidateCount")  # of answers to one request


def answers_alike(endpoint: str, body: Mapping[str, Any]) -> bool:
    """Return whether a request is answered alike each time.

    It is so as far as its endpoint and parameters say.
    """
    if endpoint in _COMPUTED or (endpoint == TRANSCRIPTIONS and not body.get("temperature")):
        return True
    for name in ("generationConfig", "inferenceConfig"):  # where Gemini and Bedrock have them
        config = body.get(name)
        body = {**body, **config} if isinstance(config, Mapping) else body
    if endpoint not in _TEXTS or any(body.get(name) not in (None, 1) for name in _NUMBERS):
        return False
    temperature = body.get("temperature")
    if temperature is None:
        return type(body.get("seed")) is int
    return type(temperature) in (int, float) and temperature == 0


def reuse_problems(
    dedup: Dedup,
    cache_s: float | None,
    *,
    endpoint: str,
    params: Mapping[str, Any] | None,
    preprocess: str | None,
    postprocess: str | None,
) -> Iterator[Problem]:
    """Yield what keeps a job from reusing answers as it asks for.

    ``params`` where the spec alone decides them, else None.
    """
    if dedup == "off" and cache_s is None:
        return
    pointer = "/dedup" if dedup != "off" else "/cache_s"
    if preprocess is not None:
        fix = (
            "leave out preprocess, or dedup and cache; change the requests in the source or the "
            "prompt instead"
        )
        yield Problem(
            "invalid_value",
            pointer,
            "a preprocess hook changes requests, so equal ones are not known",
            fix,
        )
    if dedup == "always":
        return
    if postprocess is not None:
        fix = (
            "leave out postprocess, or say dedup always: documents then share what the hook made "
            "of the first"
        )
        yield Problem(
            "invalid_value", pointer, "a postprocess hook may treat each document differently", fix
        )
    if params is not None and not answers_alike(endpoint, params):
        fix = (
            "set temperature=0 (and n=1), or say dedup always if any answer to the same request "
            "will do"
        )
        yield Problem(
            "invalid_value", pointer, "with these parameters each call gets another answer", fix
        )
