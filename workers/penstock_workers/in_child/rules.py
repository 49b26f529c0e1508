"""In a child: which rule of the schema an answer breaks, and where, in words that hold nothing of
the answer itself.

They go back to the model as a message of the user. An answer may repeat what a document says, and a
document may hold instructions; so names and values come from the schema, and a name that only the
answer has is shown as `*`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from jsonschema.exceptions import ValidationError, best_match

PATH_CHARS: Final = 300
VALUE_CHARS: Final = 300  # of what the schema demands, a list of a thousand allowed words above all
MISSING_SHOWN: Final = 10
_TYPES: Final[Mapping[type, str]] = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "a boolean",
    int: "a whole number",
    float: "a number",
    type(None): "null",
}


def own_names(schema: Any) -> frozenset[str]:
    """The fields that a schema names. It is no larger than ``response_schema.py`` allows."""
    found: set[str] = set()
    stack = [schema]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            fields = value.get("properties")
            found.update(fields if isinstance(fields, dict) else ())
            stack += value.values()
        elif isinstance(value, list):
            stack += value
    return frozenset(found)


def rule_of(fault: ValidationError, names: frozenset[str]) -> str:
    """Of several ways in which an answer may be right, the one that it comes closest to."""
    nearest: Any = best_match(iter([fault])) or fault
    return f"{_path(nearest.absolute_path, names)}: {_demand(nearest)}"


def _path(parts: Any, names: frozenset[str]) -> str:
    shown = "$"
    for part in parts:
        if isinstance(part, int):
            shown += f"[{part}]"
        elif part not in names:
            shown += ".*"
        else:
            shown += f".{part}" if part.isidentifier() else f"[{_json(part)}]"
    return shown if len(shown) <= PATH_CHARS else f"{shown[:PATH_CHARS]}…"


def _demand(fault: ValidationError) -> str:
    wanted: Any = fault.validator_value
    match fault.validator:
        case "required" if isinstance(wanted, list) and isinstance(fault.instance, dict):
            missing = [name for name in wanted if name not in fault.instance]
            return f"these fields are missing: {_json(missing[:MISSING_SHOWN])}"
        case "additionalProperties" | "unevaluatedProperties" if wanted is False:
            fields = fault.schema.get("properties") if isinstance(fault.schema, dict) else None
            return f"there are fields that are not allowed; allowed are {_json(list(fields or ()))}"
        case "type":
            is_of = _TYPES.get(type(fault.instance), "something else")
            return f"it must be of type {_json(wanted)} and is {is_of}"
        case "enum":
            return f"it must be one of {_json(wanted)}"
        case _:
            return f"it breaks the rule {_json({str(fault.validator): wanted})}"


def _json(value: Mapping[str, Any] | Sequence[Any]) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= VALUE_CHARS else f"{text[:VALUE_CHARS]}…"
