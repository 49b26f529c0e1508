"""Checks answers against the JSON schema that a job asked for, in a child.

Nothing is ever fetched for a schema. It says which rule of the schema an answer breaks, and where,
in words that hold nothing of the answer itself. They go back to the model as a message of the user.
An answer may repeat what a document says, and a document may hold instructions; so names and values
come from the schema, and a name that only the answer has is shown as `*`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from jsonschema.validators import Draft202012Validator, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from penstock_ledger.lone_surrogates import parse_json
from penstock_workers.children.protocol import CallFault, Fine, Mismatch

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
    """Return the fields that a schema names; ``response_schema.py`` bounds its size."""
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
    """Say which rule an answer breaks.

    Of several ways in which it may be right, it is the one that the answer comes closest to."""
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


VALIDATORS_KEPT = 100  # compiled schemas; one per job that has one
WORDS_CHARS = 2_000
ALWAYS_THE_SAME = "it refers to itself without end"
# values that a new schema is tested with before the first call
_SAMPLES: tuple[Any, ...] = (None, {}, [], "", 0)


class SchemaChecks:
    """Compiled validators, one per schema."""

    def __init__(self) -> None:
        self._validators: OrderedDict[bytes, Any] = OrderedDict()

    def check(self, schema: bytes, content: str) -> Fine | Mismatch | CallFault:
        """Return whether the text of an answer fulfils the schema."""
        try:
            value = parse_json(content)
        except orjson.JSONDecodeError as error:
            place = f"line {error.lineno}, column {error.colno}"
            return Mismatch(f"the answer is not JSON: {error}", f"$: it is not JSON ({place})")
        try:
            validator = self._validator(schema)
            fault = next(validator.iter_errors(value), None)
            if fault is None:
                return Fine()
            words = f"{fault.json_path}: {fault.message}"[:WORDS_CHARS]
            return Mismatch(words, rule_of(fault, own_names(validator.schema)))
        except Exception as error:
            return CallFault(_in_words(error))

    def unusable(self, schema: bytes) -> str | None:
        """Return why answers cannot be checked against the schema; None when they can."""
        try:
            validator = self._validator(schema)
            validator.check_schema(validator.schema)
            for sample in _SAMPLES:
                next(validator.iter_errors(sample), None)
        except SchemaError as error:
            return f"{error.json_path}: {error.message}"[:WORDS_CHARS]
        except Exception as error:
            return _in_words(error)
        return None

    def _validator(self, schema: bytes) -> Any:
        validator = self._validators.get(schema)
        if validator is None:
            parsed = parse_json(schema)
            made = validator_for(parsed, default=Draft202012Validator)
            validator = self._validators[schema] = made(parsed, registry=Registry())
            if len(self._validators) > VALIDATORS_KEPT:
                self._validators.popitem(last=False)
        return validator


def _in_words(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return f"the schema cannot be used: {ALWAYS_THE_SAME}"
    if isinstance(error, Unresolvable):
        return (
            f"the schema cannot be used: it refers to {error.ref!r}, which is not in it, and "
            "nothing is fetched for a schema"
        )
    return f"the schema cannot be used: {type(error).__name__}: {error}"[:WORDS_CHARS]
