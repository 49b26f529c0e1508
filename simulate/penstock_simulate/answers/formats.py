"""The `response_format` of a chat, taken, refused or ignored as providers do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock_simulate.answers.refusals import Refusal, invalid
from penstock_simulate.choices import Structured

_KINDS = ("text", "json_object", "json_schema")


def refused_format(body: Mapping[str, Any], takes: Structured) -> Refusal | None:
    """Why a request is not answered in the form that it asks for; None where it is, or where that
    is ignored."""
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
    """The two rules of strict schemas that are broken most: all fields are required, and there are
    no others."""
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
