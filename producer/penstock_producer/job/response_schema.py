"""Checks at submit whether answers can be checked against a ``response_schema``, before anything is
paid.

Nothing is ever fetched for a schema: it may refer to its own parts only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, islice
from typing import Any
from urllib.parse import unquote

import orjson

from penstock_producer.errors import Problem, seen

SCHEMA_BYTES_MAX = (
    256 * 1024
)  # it travels with the job and lies in every worker; what providers take is far smaller
SCHEMA_DEPTH_MAX = (
    64  # objects and lists inside one another; checking goes down all of them, once per answer
)
SCHEMA_VALUES_MAX = 10_000  # names and values: a schema is not a place for data
# of enum, required and the like; checking that they differ may take time to the square of this
SCHEMA_LIST_MAX = 1_000
PROBLEMS_MAX = 20  # in one error
SCHEMAS_KEPT = 32  # whose problems are remembered: a service submits many jobs with the same one
_AT = "/response_schema"
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def schema_problems(schema: dict[str, Any]) -> tuple[Problem, ...]:
    """What makes the schema unusable, at most ``PROBLEMS_MAX`` problems.

    Each names the place by its JSON pointer."""
    too_much = _too_much(schema)
    if too_much is not None:
        return (too_much,)
    try:
        dumped = orjson.dumps(schema)
    except TypeError as error:
        return (
            Problem("invalid_type", _AT, f"the schema is not JSON: {error}", "give a JSON schema"),
        )
    if len(dumped) > SCHEMA_BYTES_MAX:
        fix = f"at most {SCHEMA_BYTES_MAX} are allowed; leave out descriptions and examples"
        return (Problem("invalid_value", _AT, f"the schema has {len(dumped)} bytes", fix),)
    return _problems_of(dumped)


@lru_cache(maxsize=SCHEMAS_KEPT)
def _problems_of(dumped: bytes) -> tuple[Problem, ...]:
    schema = orjson.loads(dumped)
    return tuple(islice(chain(_walk(schema), _against_its_rules(schema)), PROBLEMS_MAX))


def _too_much(schema: dict[str, Any]) -> Problem | None:
    """Without recursion: how deep it is, is not known yet."""
    stack: list[tuple[Any, str, int]] = [(schema, _AT, 1)]
    values = 0
    while stack:
        value, at, depth = stack.pop()
        values += 1
        if depth > SCHEMA_DEPTH_MAX:
            fix = (
                f"at most {SCHEMA_DEPTH_MAX} levels are allowed; name parts under $defs and refer "
                "to them"
            )
            return Problem(
                "invalid_value", at[:200], "objects and lists lie too deep inside one another", fix
            )
        if values > SCHEMA_VALUES_MAX or (isinstance(value, list) and len(value) > SCHEMA_LIST_MAX):
            fix = (
                f"at most {SCHEMA_VALUES_MAX} names and values, and {SCHEMA_LIST_MAX} in one list, "
                "are allowed"
            )
            return Problem("invalid_value", at[:200], "the schema holds too many values", fix)
        stack += [(inner, f"{at}/{name}", depth + 1) for name, inner in _inside(value)]
    return None


def _walk(schema: dict[str, Any]) -> Iterator[Problem]:
    """References that lead out of the schema or nowhere, and patterns that are not regular
    expressions."""
    stack: list[tuple[Any, str]] = [(schema, _AT)]
    own_names = _names(schema)
    while stack:
        value, at = stack.pop()
        if isinstance(value, dict):
            for name in _REFERENCES:
                if isinstance(value.get(name), str):
                    yield from _reference_problems(schema, value[name], f"{at}/{name}", own_names)
            pattern = value.get("pattern")
            if isinstance(pattern, str):
                yield from _pattern_problems(pattern, f"{at}/pattern")
            inner = value.get("patternProperties")
            for pattern in inner if isinstance(inner, dict) else ():
                yield from _pattern_problems(pattern, f"{at}/patternProperties")
        stack += [(part, f"{at}/{name}") for name, part in _inside(value)]


def _inside(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(str(name), part) for name, part in value.items()]
    return (
        [(str(index), part) for index, part in enumerate(value)] if isinstance(value, list) else []
    )


def _names(schema: dict[str, Any]) -> set[str]:
    """Anchors of the schema, and "$id" when a part of it has a name of its own: pointers then start
    at that part."""
    names: set[str] = set()
    stack: list[Any] = [schema]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            names |= {
                value[name]
                for name in ("$anchor", "$dynamicAnchor")
                if isinstance(value.get(name), str)
            }
            if value is not schema and isinstance(value.get("$id"), str):
                names.add("$id")
        stack += [part for _, part in _inside(value)]
    return names


def _reference_problems(
    schema: dict[str, Any], ref: str, at: str, own_names: set[str]
) -> Iterator[Problem]:
    if not ref.startswith("#"):
        fix = (
            "only parts of the schema itself, as in #/$defs/name, can be referred to: nothing is "
            "fetched for a schema"
        )
        yield Problem("invalid_value", at, f"{seen(ref)} is somewhere else", fix)
        return
    if "$id" in own_names:
        return  # workers try the whole schema before anything is paid
    target = ref[1:]
    if target and not (
        target in own_names or (target.startswith("/") and _leads_somewhere(schema, target))
    ):
        yield Problem(
            "invalid_value", at, f"{seen(ref)} is not in the schema", "name a part that is there"
        )


def _leads_somewhere(schema: Any, pointer: str) -> bool:
    value = schema
    for part in unquote(pointer).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return False
    return True


def _pattern_problems(pattern: str, at: str) -> Iterator[Problem]:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        yield Problem(
            "invalid_value", at, f"{seen(pattern)} is not a regular expression", str(error)
        )


def _against_its_rules(schema: dict[str, Any]) -> Iterator[Problem]:
    """What the schema's own dialect says against it.

    Imported here: it takes 0.1 s, and few jobs have a schema."""
    from jsonschema.validators import Draft202012Validator, validator_for

    if not isinstance(schema.get("$schema", ""), str):
        yield Problem(
            "invalid_type",
            f"{_AT}/$schema",
            f"{seen(schema['$schema'])} is refused",
            "give a string",
        )
        return
    rules = validator_for(schema, default=Draft202012Validator)
    for fault in rules(rules.META_SCHEMA).iter_errors(schema):
        at = "".join(f"/{part}" for part in fault.absolute_path)
        yield Problem(
            "invalid_value", _AT + at, f"{seen(fault.instance)} is refused", fault.message[:300]
        )
