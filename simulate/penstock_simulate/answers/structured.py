"""Structured outputs: which `response_format` is taken, and a value that fits its schema."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from penstock_simulate.answers.refusals import Refusal, invalid
from penstock_simulate.choices import Structured

# objects, arrays and references inside one another that are filled; deeper ones are null
DEPTH: Final = 8
ENDING: Final = 4  # from here on what may be null or empty is: schemas may refer to themselves
ITEMS: Final = 1_000  # of one array, whatever it asks for
# for one text in so many it depends on the model, too, which value of an enum is chosen
UNSURE: Final = 4
TEXTS: Final[Mapping[str, str]] = {
    "date-time": "2026-01-01T00:00:00Z",
    "date": "2026-01-01",
    "time": "00:00:00Z",
    "duration": "P1D",
    "email": "anna@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
_NUMBERS: Final = ("integer", "number")


def instance(schema: Any, text: str, model: str = "") -> Any:
    """Make an answer that fits the schema; ``text`` is what its strings say.

    Two models choose the same value of an enum for most texts, not for all."""
    return _Writer(schema, text, model).of(schema, DEPTH)


class _Writer:
    def __init__(self, whole: Any, text: str, model: str) -> None:
        self._whole, self._text, self._model = whole, text, model

    def of(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, dict) or depth == 0:
            return None
        if isinstance(schema.get("$ref"), str):
            return self.of(self._part(schema["$ref"]), depth - 1)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return self._choice(schema["enum"])
        for union in ("anyOf", "oneOf"):
            if schema.get(union):
                return self.of(_chosen(schema[union], depth), depth)
        for part in schema.get("allOf") or ():
            schema = {**schema, **self._resolved(part)}
        kind = schema.get("type")
        return self._value(kind[0] if isinstance(kind, list) and kind else kind, schema, depth)

    def _value(self, kind: Any, schema: dict[str, Any], depth: int) -> Any:
        match kind:
            case "string":
                return self._string(schema)
            case "integer" | "number":
                return _number(kind, schema)
            case "boolean":
                return True
            case "array":
                return self._array(schema, depth)
            case "object" | None if kind or "properties" in schema:
                fields = dict.fromkeys(schema.get("required") or ()) | (
                    schema.get("properties") or {}
                )
                return {name: self.of(part, depth - 1) for name, part in fields.items()}
            case _:
                return None

    def _choice(self, values: Sequence[Any]) -> Any:
        """Return the first one that the text names, else one that follows from the text.

        For some texts it follows from the model, too."""
        words = set(re.findall(r"[\w-]+", self._text.lower()))
        named = next(
            (value for value in values if isinstance(value, str) and value.lower() in words), None
        )
        if named is not None:
            return named
        drawn = _number_of(self._text)
        return values[
            (drawn if drawn % UNSURE else _number_of(self._model + self._text))
            // UNSURE
            % len(values)
        ]

    def _string(self, schema: dict[str, Any]) -> str:
        text = TEXTS.get(schema.get("format", ""), self._text).ljust(
            schema.get("minLength", 0), "."
        )
        return text[: schema.get("maxLength", len(text))]

    def _array(self, schema: dict[str, Any], depth: int) -> list[Any]:
        first = [self.of(part, depth - 1) for part in schema.get("prefixItems") or ()]
        wanted = max(0 if depth <= ENDING else 1, schema.get("minItems", 0))
        least = min(wanted, schema.get("maxItems", ITEMS), ITEMS)
        missing = max(0, least - len(first)) if "items" in schema or not first else 0
        return [*first, *[self.of(schema.get("items"), depth - 1)] * missing]

    def _resolved(self, part: Any) -> dict[str, Any]:
        found = (
            self._part(part["$ref"])
            if isinstance(part, dict) and isinstance(part.get("$ref"), str)
            else part
        )
        return found if isinstance(found, dict) else {}

    def _part(self, reference: str) -> Any:
        """Return the part of the schema that a reference such as #/$defs/Name leads to.

        It is None for one that leads nowhere."""
        found = self._whole
        for name in reference.removeprefix("#").split("/")[1:]:
            found = found.get(name) if isinstance(found, dict) else None
        return found


def _number_of(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def _chosen(alternatives: list[Any], depth: int) -> Any:
    nothing = {"type": "null"}
    return nothing if depth <= ENDING and nothing in alternatives else alternatives[0]


def _number(kind: str, schema: dict[str, Any]) -> float:
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is None and "exclusiveMinimum" in schema:
        least = schema["exclusiveMinimum"] + 1
    if most is None and "exclusiveMaximum" in schema:
        most = schema["exclusiveMaximum"] - 1
    value: float = least if least is not None else 1 if most is None else min(1, most)
    step = schema.get("multipleOf")
    if step:
        value = math.ceil(value / step) * step
    return math.ceil(value) if kind == "integer" else value


_KINDS = ("text", "json_object", "json_schema")


def refused_format(body: Mapping[str, Any], takes: Structured) -> Refusal | None:
    """Say why a request is not answered in the form that it asks for.

    It is None where it is, or where that is ignored."""
    wanted = body.get("response_format")
    if wanted is None or takes is Structured.IGNORED:
        return None
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind not in _KINDS:
        return invalid(
            f"Invalid value: 'response_format.type' must be one of {', '.join(_KINDS)}.",
            "response_format.type",
        )
    if kind != "text" and (
        takes is Structured.NONE or (takes is Structured.JSON_OBJECT and kind == "json_schema")
    ):
        message = (
            f"Invalid parameter: 'response_format' of type '{kind}' is not supported with this "
            "model."
        )
        return invalid(message, "response_format")
    if kind == "json_object" and "json" not in str(body.get("messages")).lower():
        message = (
            "'messages' must contain the word 'json' in some form, to use 'response_format' of "
            "type 'json_object'."
        )
        return invalid(message, "messages")
    return _refused_schema(wanted.get("json_schema")) if kind == "json_schema" else None


def _refused_schema(given: Any) -> Refusal | None:
    name = given.get("name") if isinstance(given, dict) else None
    schema = given.get("schema") if isinstance(given, dict) else None
    if not isinstance(name, str) or not isinstance(schema, dict):
        return invalid(
            "Missing required parameter: 'response_format.json_schema'.",
            "response_format.json_schema",
        )
    why = None
    if schema.get("type") != "object":
        why = (
            "schema must be a JSON Schema of 'type: \"object\"', got 'type: "
            f'"{schema.get("type")}"\'.'
        )
    elif given.get("strict"):
        why = _not_strict(schema)
    if why is None:
        return None
    return invalid(f"Invalid schema for response_format '{name}': {why}", "response_format")


def _not_strict(schema: dict[str, Any]) -> str | None:
    """Say which rule of strict schemas is broken.

    The two that are broken most are known: all fields are required, and there are no others."""
    stack: list[Any] = [schema]
    while stack:
        part = stack.pop()
        if isinstance(part, list):
            stack += part
        if not isinstance(part, dict):
            continue
        if part.get("type") == "object":
            fields = part.get("properties") or {}
            if part.get("additionalProperties") is not False:
                return (
                    "In context=(), 'additionalProperties' is required to be supplied and to be "
                    "false."
                )
            if set(fields) != set(part.get("required") or ()):
                return (
                    "In context=(), 'required' is required to be supplied and to be an array "
                    "including every key in properties."
                )
            stack += fields.values()
        stack += [part[name] for name in ("items", "anyOf") if name in part]
        stack += (part.get("$defs") or {}).values()
    return None
