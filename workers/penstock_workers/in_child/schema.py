"""In a child: check answers against the JSON schema that a job asked for.

Nothing is ever fetched for a schema."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import orjson
from jsonschema.exceptions import SchemaError
from jsonschema.validators import Draft202012Validator, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from penstock_ledger.lone_surrogates import parse_json
from penstock_workers.children.protocol import CallFault, Fine, Mismatch
from penstock_workers.in_child.rules import own_names, rule_of

VALIDATORS_KEPT = 100  # compiled schemas; one per job that has one
WORDS_CHARS = 2_000
ALWAYS_THE_SAME = "it refers to itself without end"
_SAMPLES: tuple[Any, ...] = (
    None,
    {},
    [],
    "",
    0,
)  # values that a new schema is tested with before the first call


class SchemaChecks:
    """Compiled validators, one per schema."""

    def __init__(self) -> None:
        self._validators: OrderedDict[bytes, Any] = OrderedDict()

    def check(self, schema: bytes, content: str) -> Fine | Mismatch | CallFault:
        """Whether the text of an answer fulfils the schema."""
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
        """Why answers cannot be checked against the schema; None when they can."""
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
