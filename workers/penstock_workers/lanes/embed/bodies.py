"""The bodies of `/v1/embeddings`: what a request asks for, the answer, and the refusals in the words of OpenAI's API."""

from __future__ import annotations

import base64
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

import orjson

from penstock_workers.item.answer import Answer
from penstock_workers.lanes.embed.buckets import TokenIds, Vector

MAX_INPUTS = 2_048  # texts of one request, as at OpenAI; a request with more is several documents
Encoding = Literal["float", "base64"]


class BadBody(Exception):
    """A request that can never be inferred. ``code`` is what OpenAI's API would say."""

    def __init__(self, message: str, *, param: str = "input", code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param, self.code, self.status = param, code, status

    def answer(self) -> Answer:
        error = {"message": str(self), "type": "invalid_request_error", "param": self.param, "code": self.code}
        return Answer(self.status, {}, orjson.dumps({"error": error}), 0)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, read: it brings texts, or token ids in their place."""

    texts: Sequence[str]
    ids: Sequence[TokenIds]
    model: str | None
    encoding: Encoding
    dimensions: int | None


def read_body(body: bytes) -> Ask:
    """Raises BadBody. Fields that no encoder needs, such as `user`, are let pass."""
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadBody(f"the body is not JSON: {error}", param="body") from None
    if not isinstance(asked, dict):
        raise BadBody("the body is not an object", param="body")
    model = asked.get("model")
    texts, ids = _inputs(asked.get("input"))
    return Ask(texts, ids, model if isinstance(model, str) else None, _encoding(asked), _size(asked))


def _inputs(given: object) -> tuple[list[str], list[TokenIds]]:
    if isinstance(given, str) or _is_ids(given):
        given = [given]
    if not isinstance(given, list) or not given:
        raise BadBody("'input' is a text, a list of texts, a list of token ids, or a list of such lists; not empty")
    if len(given) > MAX_INPUTS:
        raise BadBody(f"'input' has {len(given)} entries; at most {MAX_INPUTS} are allowed")
    if not all(given):
        raise BadBody("an entry of 'input' is empty")
    texts = [each for each in given if isinstance(each, str)]
    ids: list[TokenIds] = [each for each in given if _is_ids(each)]
    if len(given) in (len(texts), len(ids)):
        return texts, ids
    raise BadBody("'input' mixes texts with something else, or holds what is neither text nor token ids")


def _is_ids(given: object) -> TypeGuard[list[int]]:
    return isinstance(given, list) and bool(given) and all(type(each) is int for each in given)


def _encoding(asked: Mapping[str, Any]) -> Encoding:
    match asked.get("encoding_format"):
        case None | "float":
            return "float"
        case "base64":
            return "base64"
    raise BadBody("'encoding_format' is float or base64", param="encoding_format")


def _size(asked: Mapping[str, Any]) -> int | None:
    size = asked.get("dimensions")
    if size is None or (type(size) is int and size > 0):
        return size
    raise BadBody("'dimensions' is a positive integer", param="dimensions")


def check_dimensions(asked: int | None, has: int, matryoshka: bool) -> None:
    """Raises BadBody for a size that the model does not give: half a vector is noise unless it was trained for that."""
    if asked is None or asked == has:
        return
    if asked > has:
        raise BadBody(f"the model has {has} dimensions, not {asked}", param="dimensions")
    if not matryoshka:
        fix = f"leave 'dimensions' out (the answer has {has}), or set embed.matryoshka if its makers say that it may be shortened"
        raise BadBody(f"the model was not trained for shorter vectors: {fix}", param="dimensions")


def check_ids(rows: Sequence[TokenIds], vocabulary: int) -> None:
    """Raises BadBody: an id beyond the vocabulary reads foreign memory on a GPU, and ends the process."""
    for ids in rows:
        if min(ids) < 0 or max(ids) >= vocabulary:
            raise BadBody(f"token ids are from 0 to {vocabulary - 1}")


def too_long(tokens: int, limit: int) -> BadBody:
    return BadBody(
        f"this model's maximum context length is {limit} tokens, but the text has {tokens}; "
        "shorten it, or submit with on_overflow = trim",
        code="context_length_exceeded",
    )


def answer_body(ask: Ask, vectors: Sequence[Vector], *, model: str, tokens: int) -> bytes:
    """OpenAI's embeddings object."""
    if ask.dimensions is not None:
        vectors = [_shortened(vector, ask.dimensions) for vector in vectors]
    data = [
        {"object": "embedding", "index": at, "embedding": _base64(vector) if ask.encoding == "base64" else vector}
        for at, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    whole = {"object": "list", "data": data, "model": model, "usage": usage}
    return orjson.dumps(whole, option=orjson.OPT_SERIALIZE_NUMPY)


def _base64(vector: Vector) -> str:
    return base64.b64encode(array("f", vector).tobytes()).decode()


def _shortened(vector: Vector, dimensions: int) -> Vector:
    """The first dimensions, of length 1 again."""
    if len(vector) == dimensions:
        return vector
    part = [float(value) for value in vector[:dimensions]]
    length = math.sqrt(math.fsum(value * value for value in part)) or 1.0
    return [value / length for value in part]
