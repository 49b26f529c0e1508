"""A job's ``response_schema``, or the Pydantic model that it comes from, checked at submit.

Whether answers can be checked against it is found out before anything is paid. Nothing is ever
fetched for a schema: it may refer to its own parts only.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, islice
from typing import IO, Any, Final
from urllib.parse import unquote

import orjson

from penstock_producer.errors import Problem, seen

__all__ = ["ModelFault", "is_model_path", "schema_of_model"]

# it travels with the job and lies in every worker; what providers take is far smaller
SCHEMA_BYTES_MAX = 256 * 1024
# objects and lists inside one another; checking goes down all of them, once per answer
SCHEMA_DEPTH_MAX = 64
SCHEMA_VALUES_MAX = 10_000  # names and values: a schema is not a place for data
# of enum, required and the like; checking that they differ may take time to the square of this
SCHEMA_LIST_MAX = 1_000
PROBLEMS_MAX = 20  # in one error
SCHEMAS_KEPT = 32  # whose problems are remembered: a service submits many jobs with the same one
_AT = "/response_schema"
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def schema_problems(schema: dict[str, Any]) -> tuple[Problem, ...]:
    """Return what makes the schema unusable, at most ``PROBLEMS_MAX`` problems.

    Each names the place by its JSON pointer.
    """
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
    """Return a problem for a schema that is too deep or too large.

    Without recursion: how deep it is, is not known yet.
    """
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
    """Yield references that lead out of the schema or nowhere, and patterns that do not compile."""
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
    """Return the anchors of the schema, and "$id" when a part of it has a name of its own.

    Pointers then start at that part.
    """
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
    """Yield what the schema's own dialect says against it.

    Imported here: it takes 0.1 s, and few jobs have a schema.
    """
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


TIMEOUT_S: Final = 60.0  # as long as a hook may take to be imported
WORDS_CHARS: Final = 500  # of what the import said
_PATH: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class ModelFault(ValueError):
    """The model cannot be had. Its text says why."""


def is_model_path(text: str) -> bool:
    """Return whether a name is `package.module:Model` and no file."""
    return _PATH.fullmatch(text) is not None and not os.path.exists(text)


def schema_of_model(path: str) -> dict[str, Any]:
    """Return the JSON schema of a Pydantic model. Raises ModelFault where there is none."""
    command = [sys.executable, "-m", "penstock_producer.job.response_schema", path]
    try:
        done = subprocess.run(  # noqa: S603  # our own module, and a path whose form was checked
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ModelFault(f"importing it takes longer than {TIMEOUT_S:g} s") from None
    try:
        said = json.loads(done.stdout)
    except ValueError:  # os._exit, or a crash in an extension
        raise ModelFault(f"importing it ended the process with status {done.returncode}") from None
    if "fault" in said:
        raise ModelFault(str(said["fault"]))
    schema: dict[str, Any] = said["schema"]
    return schema


def _main() -> None:
    """Answer in the child process. Only what this writes reaches the parent.

    A module may print as it likes. Modules of the working folder count last, as in workers.
    """
    with os.fdopen(os.dup(1), "wb") as answer, open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 1)
        if "" in sys.path:
            sys.path.remove("")
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        _answer(answer, sys.argv[1])


def _answer(answer: IO[bytes], path: str) -> None:
    try:
        said = json.dumps({"schema": _schema(path)}).encode()
    except (Exception, SystemExit) as error:
        fault = str(error) if isinstance(error, ModelFault) else f"{type(error).__name__}: {error}"
        said = json.dumps({"fault": fault[:WORDS_CHARS]}).encode()
    if len(said) > SCHEMA_BYTES_MAX:
        said = json.dumps({"fault": f"its schema has more than {SCHEMA_BYTES_MAX} bytes"}).encode()
    answer.write(said)


def _schema(path: str) -> dict[str, Any]:
    from pydantic import TypeAdapter

    name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ModelFault(f"{name} cannot be imported ({type(error).__name__}: {error})") from error
    found = getattr(module, attribute, None)
    if found is None:
        raise ModelFault(f"{attribute} is not in {name}")
    if not isinstance(found, type):
        raise ModelFault(f"{attribute} is {type(found).__name__}, not a class")
    try:
        return TypeAdapter(found).json_schema()
    except Exception as error:
        raise ModelFault(
            f"{attribute} has no JSON schema ({type(error).__name__}: {error})"
        ) from error


if __name__ == "__main__":
    _main()
