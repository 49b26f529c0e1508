"""Vectors as other numbers, and the bodies of `/v1/embeddings`.

A vector may have fewer dimensions, and half, a quarter or a thirty-second of the bytes;
docs/embed.md has the prices.

int8 is ``round(127 * x)`` of the vector at length 1. Nothing is calibrated: ranges taken from the
first texts would differ between workers and between a job and the queries put to it, and these have
nothing to be calibrated with. So each vector is the same wherever it was made, and dot products
order neighbours as cosines do. On real texts this finds more of the true neighbours than ranges of
1,000 vectors do (benchmarks/RESULTS.md).

Of the bodies: what a request asks for, the answer, and the refusals in the words of OpenAI's API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

import orjson

from penstock_ledger.vectors import Form, Vectors, VectorType, pack
from penstock_workers.item.answer import Answer
from penstock_workers.lanes.embed.buckets import TokenIds, Vector

INT8_MOST: Final = 127
PER_BYTE: Final[Mapping[VectorType, int]] = {"binary": 8, "ubinary": 8}  # dimensions


class NotRepresentable(Exception):
    """A number of the vector is too large for the type that the request asks for."""


def as_bytes(vector: Vector, dtype: VectorType, dimensions: int) -> bytes:
    """Return the vector's numbers as bytes, little-endian.

    A vector that is cut has length 1 afterwards, as OpenAI's have. Raises NotRepresentable."""
    import numpy  # not before it is needed: with a server upstream it seldom is

    numbers = numpy.asarray(vector, numpy.float32)
    if dimensions < len(numbers):
        numbers = _of_length_1(numbers[:dimensions])
    return bytes(_as(dtype, numbers).data)


def _as(dtype: VectorType, numbers: Any) -> Any:
    import numpy

    match dtype:
        case "float32":
            return numpy.ascontiguousarray(numbers, "<f4")
        case "float16":
            return _halves(numbers)
        case "int8":
            return numpy.rint(_of_length_1(numbers) * INT8_MOST).astype(numpy.int8)
        case "ubinary":
            return numpy.packbits(numbers > 0)
        # the same bits, less 128, as sentence-transformers, Voyage and Cohere have it
        case "binary":
            return numpy.packbits(numbers > 0) ^ 0x80


def _of_length_1(numbers: Any) -> Any:
    import numpy

    return numbers / (float(numpy.linalg.norm(numbers)) or 1.0)


def _halves(numbers: Any) -> Any:
    import numpy

    with numpy.errstate(over="ignore"):
        halves = numbers.astype("<f2")
    if not numpy.isfinite(halves).all():
        raise NotRepresentable(
            "a number of the vector is above 65,504, the most of float16; ask for float32"
        )
    return halves


ENDPOINT: Final = "/embeddings"
MAX_INPUTS = 2_048  # texts of one request, as at OpenAI; a request with more is several documents
# As Voyage and Mistral say it; `float` is their word for float32.
DTYPES: Final[Mapping[object, VectorType]] = {
    None: "float32",
    "float": "float32",
    "float32": "float32",
    "float16": "float16",
    "int8": "int8",
    "binary": "binary",
    "ubinary": "ubinary",
}


class BadBody(Exception):
    """A request that can never be inferred. ``code`` is what OpenAI's API would say."""

    def __init__(
        self, message: str, *, param: str = "input", code: str | None = None, status: int = 400
    ) -> None:
        super().__init__(message)
        self.param, self.code, self.status = param, code, status

    def answer(self) -> Answer:
        error = {
            "message": str(self),
            "type": "invalid_request_error",
            "param": self.param,
            "code": self.code,
        }
        return Answer(self.status, {}, orjson.dumps({"error": error}), 0)


@dataclass(frozen=True, slots=True)
class ShortVectors:
    """The sizes that a model gives, as far as its files or the operator say."""

    dimensions: int
    # so that the first part of a vector is a vector, too; None = nothing is said
    trained: bool | None = None
    sizes: frozenset[int] = frozenset()  # for which; none = for all


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, read: it brings texts, or token ids in their place.

    ``messages`` bring images; they are one input, for a server that embeds chats."""

    texts: Sequence[str]
    ids: Sequence[TokenIds]
    model: str | None
    form: Form
    dtype: VectorType
    dimensions: int | None
    messages: Sequence[Any] = ()

    @property
    def inputs(self) -> int:
        """Return how many vectors it asks for."""
        return 1 if self.messages else len(self.texts or self.ids)


def check_endpoint(endpoint: str) -> None:
    """Check that the lane embeds at this endpoint. Raises BadBody."""
    if not endpoint.endswith(ENDPOINT):
        words = (
            f"the embed lane answers /v1{ENDPOINT}, /v1/rerank, /v1/score and /classify, not "
            f"{endpoint}"
        )
        raise BadBody(words, param="url", code="not_found", status=404)


def read_body(body: bytes) -> Ask:
    """Read what a request asks for.

    Fields that no encoder needs, such as `user`, are let pass. Raises BadBody."""
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadBody(f"the body is not JSON: {error}", param="body") from None
    if not isinstance(asked, dict):
        raise BadBody("the body is not an object", param="body")
    model, messages = asked.get("model"), asked.get("messages")
    texts, ids = ([], []) if messages is not None else _inputs(asked.get("input"))
    return Ask(
        texts,
        ids,
        model if isinstance(model, str) else None,
        _form(asked),
        _dtype(asked),
        _size(asked),
        () if messages is None else _chat(messages),
    )


def _chat(given: object) -> list[Any]:
    """Return messages whose images lie in them.

    A server of one's own is not made to ask its network for what a document names."""
    if not isinstance(given, list) or not given or not all(isinstance(m, dict) for m in given):
        raise BadBody("'messages' is a list of messages, not empty", param="messages")
    for content in (message.get("content") for message in given):
        for part in content if isinstance(content, list) else ():
            named = part.get("image_url") if isinstance(part, dict) else None
            url = named.get("url") if isinstance(named, dict) else named
            if url is not None and not (isinstance(url, str) and url.startswith("data:")):
                raise BadBody(
                    "an image lies in the request, data:image/png;base64,…: its address is not "
                    "fetched here; name a file beside the source, or an object of S3",
                    param="messages",
                )
    return given


def _inputs(given: object) -> tuple[list[str], list[TokenIds]]:
    if isinstance(given, str) or _is_ids(given):
        given = [given]
    if not isinstance(given, list) or not given:
        raise BadBody(
            "'input' is a text, a list of texts, a list of token ids, or a list of such lists; not "
            "empty"
        )
    if len(given) > MAX_INPUTS:
        raise BadBody(f"'input' has {len(given)} entries; at most {MAX_INPUTS} are allowed")
    if not all(given):
        raise BadBody("an entry of 'input' is empty")
    texts = [each for each in given if isinstance(each, str)]
    ids: list[TokenIds] = [each for each in given if _is_ids(each)]
    if len(given) in (len(texts), len(ids)):
        return texts, ids
    raise BadBody(
        "'input' mixes texts with something else, or holds what is neither text nor token ids"
    )


def _is_ids(given: object) -> TypeGuard[list[int]]:
    return isinstance(given, list) and bool(given) and all(type(each) is int for each in given)


def _form(asked: Mapping[str, Any]) -> Form:
    match asked.get("encoding_format"):
        case None | "float":
            return "float"
        case "base64":
            return "base64"
    raise BadBody("'encoding_format' is float or base64", param="encoding_format")


def _dtype(asked: Mapping[str, Any]) -> VectorType:
    wanted = asked.get("output_dtype")
    if isinstance(wanted, str | None) and wanted in DTYPES:
        return DTYPES[wanted]
    raise BadBody(
        "'output_dtype' is float, float32, float16, int8, binary or ubinary", param="output_dtype"
    )


def _size(asked: Mapping[str, Any]) -> int | None:
    size = asked.get("dimensions")
    if size is None or (type(size) is int and size > 0):
        return size
    raise BadBody("'dimensions' is a positive integer", param="dimensions")


def check_dimensions(ask: Ask, model: ShortVectors) -> None:
    """Check that the model gives vectors of the size that is asked for.

    Raises BadBody for a size that the model does not have, or for which its files say that it was
    not trained.
    """
    asked, dtype = ask.dimensions, ask.dtype
    if dtype in PER_BYTE and (asked or model.dimensions) % PER_BYTE[dtype]:
        raise BadBody(
            f"{dtype} packs eight dimensions into a byte: ask for a multiple of eight",
            param="dimensions",
        )
    if asked is None or asked == model.dimensions:
        return
    if asked > model.dimensions:
        raise BadBody(
            f"the model has {model.dimensions} dimensions, not {asked}", param="dimensions"
        )
    if model.trained is False:
        fix = (
            f"leave 'dimensions' out (the answer has {model.dimensions}), or set embed.matryoshka "
            "where that is wrong"
        )
        raise BadBody(
            f"the model's files say that it was not trained for shorter vectors: {fix}",
            param="dimensions",
        )
    if model.sizes and asked not in model.sizes:
        sizes = ", ".join(map(str, sorted(model.sizes)))
        raise BadBody(
            f"the model was trained for vectors of {sizes} dimensions, not {asked}",
            param="dimensions",
        )


def check_ids(rows: Sequence[TokenIds], vocabulary: int) -> None:
    """Check that the model has these token ids.

    An id beyond the vocabulary would read foreign memory on a GPU, and end the process. Raises
    BadBody.
    """
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
    """Pack the answer as it is stored; those who read it get OpenAI's embeddings object."""
    dimensions = ask.dimensions or len(vectors[0])
    data = b"".join([as_bytes(vector, ask.dtype, dimensions) for vector in vectors])
    return pack(Vectors(data, ask.dtype, dimensions, ask.form, model, tokens))
