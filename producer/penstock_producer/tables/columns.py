"""The columns of a job's outcomes as a table, known before the first outcome: from its spec.

Each document has one row. The fields of a `response_schema` are columns of their own; what a column
of a type cannot hold is null there, and whole in `text`.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
from collections.abc import Mapping
from typing import Any, Final

import orjson

from penstock_ledger import storable
from penstock_ledger.lone_surrogates import parse_json
from penstock_ledger.model import DeadLetter, Result
from penstock_ledger.vectors import MAGIC, DamagedVectors, Vectors, unpack
from penstock_producer.dialects.pieces import answer_text
from penstock_producer.job.endpoints import EMBEDDINGS, IMAGE_EDITS, IMAGES, TRANSCRIPTIONS
from penstock_producer.prices import usd_of_outcome
from penstock_producer.rows import Column, Kind

__all__ = [
    "FLOAT32_BYTES",
    "Column",
    "Kind",
    "Row",
    "Table",
    "as_json",
    "from_json",
    "parsed",
    "text_of",
]


FLOAT32_BYTES: Final = 4
_TEXT: Final = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", TRANSCRIPTIONS}
)
_LETTERS: Final = {"float16": "e", "int8": "b", "binary": "b", "ubinary": "B"}


def parsed(body: bytes | str | None) -> Any:
    """Return JSON as a value, None where it is not JSON.

    A table has a row for every document, whatever its answer is.
    """
    if not body:
        return None
    try:
        return parse_json(body)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(body)  # which takes NaN
    except (ValueError, RecursionError):
        return None


def text_of(endpoint: str, body: bytes) -> str | None:
    """Return the answer's text where it has one.

    Endpoints whose answers are something else have all of the body.
    """
    if body.startswith(MAGIC):
        return None
    if endpoint in _TEXT:
        return answer_text(parsed(body))
    if endpoint in (IMAGES, IMAGE_EDITS):
        return "\n".join(_objects(parsed(body)))
    return None if endpoint == "/v1/embeddings" else body.decode("utf-8", "replace")


def _objects(answer: Any) -> list[str]:
    """Return where the images of an answer lie."""
    rows = answer.get("data") if isinstance(answer, dict) else None
    found = [row.get("object") for row in rows if isinstance(row, dict)] if rows else []
    return [one for one in found if isinstance(one, str)]


def vectors_of(body: bytes) -> list[bytes]:
    """Return the vectors of an answer in the order of its inputs, float32 and little-endian.

    There are none where it has no usable ones.
    """
    try:
        if body.startswith(MAGIC):
            return _of_stored(unpack(body))
        return _of_json(parsed(body))
    except (
        DamagedVectors,
        struct.error,
        OverflowError,
        ValueError,
        TypeError,
        LookupError,
        binascii.Error,
    ):
        return []


def _of_stored(vectors: Vectors) -> list[bytes]:
    rows = vectors.rows()
    letter = _LETTERS.get(vectors.dtype)
    if letter is None:
        return rows
    number = f"{vectors.row_bytes // struct.calcsize(letter)}"
    return [struct.pack(f"<{number}f", *struct.unpack(f"<{number}{letter}", row)) for row in rows]


def _of_json(answer: Any) -> list[bytes]:
    listed = sorted(answer["data"], key=lambda one: one["index"])
    return [_numbers(one["embedding"]) for one in listed]


def _numbers(given: Any) -> bytes:
    """Return a vector that is a list of numbers, or OpenAI's base64 of float32."""
    if isinstance(given, str):
        raw = base64.b64decode(given, validate=True)
        if len(raw) % FLOAT32_BYTES:
            raise ValueError("not whole numbers of float32")
        return raw
    return struct.pack(f"<{len(given)}f", *given)


Row = list[Any]  # one value for each column; a vector is its bytes, little-endian float32

SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"
FIELDS_MAX: Final = 500  # columns of a schema; further fields stay in `text`
_INT64: Final = 2**63
_REFERENCES_FOLLOWED: Final = 8  # from one part of a schema to the next
_KINDS: Final[dict[str, Kind]] = {
    "string": "text",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
}
_JSON_TYPES: Final = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}


def as_json(value: Any) -> Any:
    """Return a value of a row as JSON has it: a vector is a list of numbers."""
    if isinstance(value, list):
        return list(map(as_json, value))
    if not isinstance(value, bytes):
        return value
    return list(struct.unpack(f"<{len(value) // FLOAT32_BYTES}f", value))


def from_json(value: Any, kind: Kind) -> Any:
    """Return what ``as_json`` was given; JSON has no NaN, and null in its place."""
    if value is None or kind not in ("vector", "vectors"):
        return value
    if kind == "vectors":
        return [from_json(one, "vector") for one in value]
    return _numbers([math.nan if one is None else one for one in value])


_BEGINNING: Final = (
    Column("id", "text"),
    Column("status", "text"),
    Column("finish_reason", "text"),
    Column("text", "text"),
)
_VECTORS: Final = (Column("embedding", "vector"), Column("more_embeddings", "vectors"))
_END: Final = (
    Column("model", "text"),
    Column("prompt_tokens", "integer"),
    Column("completion_tokens", "integer"),
    Column("cost_usd", "number"),
    Column("latency_ms", "integer"),
    Column("attempts", "integer"),
    Column("generation", "integer"),
    Column("error_code", "text"),
    Column("error_message", "text"),
)


class Table:
    """The shape of a job's outcomes as rows."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        """``spec`` is that of the job, as the ledger has it."""
        self._endpoint = str(spec.get("endpoint", ""))
        self._has_vectors = self._endpoint == EMBEDDINGS
        middle = _VECTORS if self._has_vectors else ()
        taken = {column.name.casefold() for column in (*_BEGINNING, *middle, *_END)}
        self._fields = _fields(spec.get("response_schema"), taken)
        columns = [Column(name, kind) for _, name, kind in self._fields]
        # what answers themselves say, beside their text
        self.own = frozenset(
            [column.name for column in columns] + [column.name for column in middle[:1]]
        )
        self.columns: tuple[Column, ...] = (*_BEGINNING, *columns, *middle, *_END)
        self._no_answer: Row = [None] * (len(columns) + len(middle))
        params = spec.get("params")
        asked = params.get("dimensions") if isinstance(params, dict) else None
        # of vectors, where the job says
        self.dimensions: int | None = asked if type(asked) is int and asked > 0 else None
        self.has_half_vectors: bool = spec.get("embedding_dtype") == "float16"

    def row(self, outcome: Result | DeadLetter) -> Row:
        """Return the row of ``outcome`` as stored: embeddings need not become JSON first."""
        tokens = (outcome.prompt_tokens, outcome.completion_tokens)
        figures = (*tokens, usd_of_outcome(outcome), outcome.latency_ms, outcome.attempts)
        key = outcome.key
        if isinstance(outcome, DeadLetter):
            return [
                key.doc_id,
                FAILED,
                None,
                None,
                *self._no_answer,
                None,
                *figures,
                key.generation,
                outcome.reason,
                outcome.last_error,
            ]
        text = storable(text_of(outcome.endpoint or self._endpoint, outcome.body))
        head = (key.doc_id, SUCCEEDED, outcome.finish_reason, text)
        return [
            *head,
            *self._answer(text, outcome.body),
            outcome.model,
            *figures,
            key.generation,
            None,
            None,
        ]

    def _answer(self, text: str | None, body: bytes) -> Row:
        answer = parsed(text) if self._fields else None
        fields = answer if isinstance(answer, dict) else {}
        values = [_value(fields.get(field), kind) for field, _, kind in self._fields]
        if not self._has_vectors:
            return values
        first, *more = vectors_of(body) or (None,)
        return [*values, first, more or None]


def _value(value: Any, kind: Kind) -> Any:
    """Return ``value`` where the column can hold it, else None.

    What is no single value is its JSON in a column of text.
    """
    if value is None:
        return None
    match kind:
        case "boolean":
            return value if isinstance(value, bool) else None
        case "integer":
            return _whole(value)
        case "number":
            return _float(value)
        case _:
            return storable(value if isinstance(value, str) else _json(value))


def _whole(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():  # JSON Schema counts 3.0 among the integers
        value = int(value)
    return value if type(value) is int and -_INT64 <= value < _INT64 else None


def _float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _json(value: Any) -> str | None:
    try:
        return orjson.dumps(value).decode()
    except (TypeError, orjson.JSONEncodeError):
        return None


def _fields(schema: Any, taken: set[str]) -> list[tuple[str, str, Kind]]:
    """Return (field, name of its column, kind) of each property at the top of a schema.

    A column has its field's name, behind `answer_` where that name is another column's, upper and
    lower case alike: tables of databases tell no difference.
    """
    top = _resolved(schema, schema)
    properties = top.get("properties") if isinstance(top, dict) else None
    fields: list[tuple[str, str, Kind]] = []
    for field, part in list(properties.items() if isinstance(properties, dict) else ())[
        :FIELDS_MAX
    ]:
        name = storable(str(field))
        while not name or name.casefold() in taken:
            name = f"answer_{name}"
        taken.add(name.casefold())
        fields.append((field, name, _kind(_resolved(part, schema), schema)))
    return fields


def _kind(part: Any, schema: Any) -> Kind:
    """Return the kind of column for a part of a schema that says one simple type.

    Null may stand beside it. JSON in a text is right for everything else.
    """
    if not isinstance(part, dict):
        return "text"
    stated = part.get("type")
    alternatives = [
        part[name] for name in ("anyOf", "oneOf", "allOf") if isinstance(part.get(name), list)
    ]
    if stated is None and len(alternatives) == 1:
        kinds = set().union(*(_stated(_resolved(one, schema)) for one in alternatives[0]))
    else:
        kinds = _stated(part)
    kinds.discard("null")
    if kinds == {"integer", "number"}:
        return "number"
    return _KINDS.get(kinds.pop(), "text") if len(kinds) == 1 else "text"


def _stated(part: Any) -> set[str]:
    """Return the types that a part names, or those of the values that it allows."""
    if not isinstance(part, dict):
        return {""}
    stated = part.get("type")
    if stated is None and ("const" in part or isinstance(part.get("enum"), list)):
        return {
            _JSON_TYPES.get(type(one), "")
            for one in ([part["const"]] if "const" in part else part["enum"])
        }
    return {str(one) for one in (stated if isinstance(stated, list) else [stated])}


def _resolved(part: Any, schema: Any) -> Any:
    """Return ``part``, or what it refers to by a `$ref` to another part of the schema.

    Pydantic writes such references.
    """
    for _ in range(_REFERENCES_FOLLOWED):
        target = part.get("$ref") if isinstance(part, dict) else None
        if not isinstance(target, str) or not target.startswith("#/"):
            break
        part = schema
        for name in target[2:].split("/"):
            part = part.get(name) if isinstance(part, dict) else None
    return part
