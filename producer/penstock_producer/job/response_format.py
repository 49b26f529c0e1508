"""Requests ask for answers of a form where a job has a ``response_schema``.

It is decided before anything is paid. A model that knows nothing of a schema answers in prose, and
each document is then asked again and paid for again. So the job puts a ``response_format`` into
every request that has none of its own. Providers take JSON schemas of objects, and keep to one
strictly where it lies in the subset that OpenAI documents for `strict`; any other schema is sent
without that word.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

from penstock_producer.job.endpoints import CHAT
from penstock_producer.job.lanes import has_own_model

__all__ = ["CONSTRAINTS", "FIELD", "AskedFormat", "ResponseFormat", "format_asked"]

ResponseFormat = Literal["auto", "json_schema", "json_object", "none"]

FIELD: Final = "response_format"
CONSTRAINTS: Final = frozenset(
    {
        FIELD,
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
    }
)
"""Fields of a request that say by themselves what its answer looks like. A server refuses two of
them together."""

# What `strict` allows, by OpenAI's guide to structured outputs. A schema beyond it is refused with
# a 400, or not kept to.
_NOTES: Final = frozenset({"title", "description"})
_KEYWORDS: Final = _NOTES | {
    "type",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "enum",
    "const",
    "anyOf",
    "$ref",
    "$defs",
    "definitions",
    "$schema",
    "pattern",
    "format",
    "multipleOf",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minItems",
    "maxItems",
}
_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)
_SAYS_WHAT_IT_IS: Final = frozenset({"type", "anyOf", "enum", "const", "$ref"})
STRICT_DEPTH_MAX: Final = 10  # objects and lists inside one another
STRICT_FIELDS_MAX: Final = 5_000  # of all objects together
STRICT_VALUES_MAX: Final = 1_000  # of all enums together
STRICT_CHARS_MAX: Final = 120_000  # of the names of fields and the texts of enums together
NAME_CHARS: Final = 64
_NOT_OF_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]+")


class AskedFormat(NamedTuple):
    """The format that requests carry, None for nothing; and why, for people."""

    format: dict[str, Any] | None
    why: str

    @property
    def in_words(self) -> str:
        """For those that look at a job before it starts."""
        if self.format is None:
            return (
                f"requests get no response_format from the job ({self.why}); answers are checked "
                "all the same"
            )
        return f"requests without a response_format get {self.format['type']}: {self.why}"


def format_asked(
    choice: ResponseFormat,
    schema: Mapping[str, Any] | None,
    *,
    endpoint: str,
    lane: str,
    params: Collection[str],
) -> AskedFormat:
    """Return the format that requests ask for, and why.

    ``params`` are the names of those that the job sends in any case: a format among them is the one
    that counts.
    """
    own = sorted(CONSTRAINTS.intersection(params))
    if own:
        return AskedFormat(None, f"the job's own parameter {own[0]} says what answers look like")
    if choice == "json_object":
        return AskedFormat({"type": "json_object"}, "any JSON object is asked for")
    if choice == "none":
        return AskedFormat(None, "response_format is none")
    if schema is None:
        return AskedFormat(None, "the job has no response_schema")
    refusal = None if choice == "json_schema" else _unsendable(schema, endpoint, lane)
    if refusal is not None:
        return AskedFormat(None, refusal)
    loose = next(_beyond_strict(schema), None)
    asked = {"name": _name(schema), "schema": schema, "strict": loose is None}
    why = (
        "strictly kept to where the provider can"
        if loose is None
        else f"without strict, as {loose}"
    )
    return AskedFormat({"type": "json_schema", "json_schema": asked}, why)


def _unsendable(schema: Mapping[str, Any], endpoint: str, lane: str) -> str | None:
    """Return why a schema is not sent unless that is asked for; None where it is."""
    if not endpoint.endswith(CHAT.removeprefix("/v1")):
        return f"requests to {endpoint} have no field for it"
    if not has_own_model(lane) and schema.get("type") != "object":
        return "providers take schemas of objects only (type: object at the top)"
    return None


def _name(schema: Mapping[str, Any]) -> str:
    title = schema.get("title")
    name = _NOT_OF_NAMES.sub("_", title).strip("_") if isinstance(title, str) else ""
    return name[:NAME_CHARS] or "answer"


def _beyond_strict(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield what keeps the schema from being sent as strict, as the end of a sentence."""
    if schema.get("type") != "object" or "anyOf" in schema:
        yield "its top is not a plain object"
    fields = values = chars = 0
    stack: list[tuple[Any, str, int]] = [(schema, "$", 0)]
    while stack:
        part, at, depth = stack.pop()
        if not isinstance(part, Mapping):
            yield f"{at} is no object of rules"
            continue
        yield from _faults(part, at)
        names = _mapping(part.get("properties"))
        listed = _list(part.get("enum"))
        fields, values = fields + len(names), values + len(listed)
        chars += sum(map(len, names)) + sum(
            len(value) for value in listed if isinstance(value, str)
        )
        if (
            depth > STRICT_DEPTH_MAX
            or fields > STRICT_FIELDS_MAX
            or values > STRICT_VALUES_MAX
            or chars > STRICT_CHARS_MAX
        ):
            yield "it is larger or deeper than strict schemas may be"
            return
        stack += [(inner, f"{at}{step}", depth + deeper) for inner, step, deeper in _parts(part)]


def _faults(part: Mapping[str, Any], at: str) -> Iterator[str]:
    unknown = sorted(part.keys() - _KEYWORDS)
    if unknown:
        yield f"{at} has {unknown[0]}"
    if "$ref" in part and len(part) > 1:
        yield f"{at} has more than its $ref"
    if not _SAYS_WHAT_IT_IS & part.keys():
        yield f"{at} does not say its type"
    kinds = part.get("type")
    if "object" in (kinds if isinstance(kinds, list) else [kinds]) or "properties" in part:
        if part.get("additionalProperties") is not False:
            yield f"{at} allows other fields (additionalProperties is not false)"
        optional = [
            name
            for name in _mapping(part.get("properties"))
            if name not in _list(part.get("required"))
        ]
        if optional:
            yield f"{at}.{optional[0]} is not required"
    if "array" in (kinds if isinstance(kinds, list) else [kinds]) and "items" not in part:
        yield f"{at} does not say what its items are"
    if "(?" in str(part.get("pattern", "")):
        yield f"{at} has a pattern with a group of its own kind"
    if part.get("format", "date") not in _FORMATS:
        yield f"{at} has the format {part['format']}"


def _parts(part: Mapping[str, Any]) -> Iterator[tuple[Any, str, int]]:
    """Yield the schemas within one, each with the step to it and whether it is a level deeper."""
    for name, inner in _mapping(part.get("properties")).items():
        yield inner, f".{name}", 1
    if "items" in part:
        yield part["items"], "[]", 1
    for inner in _list(part.get("anyOf")):
        yield inner, "", 0
    for keyword in ("$defs", "definitions"):
        for name, inner in _mapping(part.get(keyword)).items():
            yield inner, f"/{keyword}/{name}", 0


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
