"""The keyword arguments of a call, sorted and checked before anything is started."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson
from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from penstock.errors import BadCall
from penstock.rows import ID
from penstock_producer import JobSpec, SpecError
from penstock_producer.errors import listed
from penstock_producer.job.options import OPTIONS, RUN_OPTIONS, FlagForm, seconds_of
from penstock_producer.sources import columns_read

__all__ = ["Options", "columns_needed", "options_of"]

COLUMNS_SHOWN: Final = 20
_MACHINE: Final = ("workers", "concurrency", "sample")
# of `penstock run`, and decided by the call itself
_OWN: Final = ("out", "state", "no_progress")
_PROVIDER: Final = tuple(name for name in RUN_OPTIONS if name not in (*_MACHINE, *_OWN))


class Options(NamedTuple):
    """The keyword arguments of a call, sorted by whom they are for."""

    job: Mapping[str, Any]  # a spec's fields
    provider: Mapping[str, Any]
    machine: Mapping[str, Any]
    spec: JobSpec
    model: Callable[[str], Any] | None  # what makes a value of an answer's text


def options_of(given: Mapping[str, Any]) -> Options:
    """Sort and check the keyword arguments of a call. Raises BadCall."""
    said = {name: value for name, value in given.items() if value is not None}
    provider = {name: said.pop(name) for name in _PROVIDER if name in said}
    machine: dict[str, Any] = {name: said.pop(name) for name in _MACHINE if name in said}
    for name in said:
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, [*OPTIONS, *_PROVIDER, *_MACHINE, "job"], 1)
            hint = f"did you mean {near[0]!r}?" if near else "docs/job-options.md lists them"
            raise BadCall(f"{name!r} is no option; {hint}")
    model = _response(said)
    said.setdefault("max_bad_rows", "100%")  # what to do about empty rows is up to the caller
    fields = {name: _as_field(name, value) for name, value in said.items()}
    try:
        spec = JobSpec(**fields)
    except SpecError as error:
        problems = [
            f"{one.pointer.lstrip('/').replace('/', '.')}: {one.message}; {one.fix}"
            for one in error.problems
        ]
        raise BadCall(listed(problems)) from None
    if spec.takes_records and spec.model is None and spec.asks_a_provider:
        raise BadCall("prompt makes requests of rows, and they need a model: model='…'")
    return Options(fields, provider, machine, spec, model)


def columns_needed(
    there: Sequence[str], options: Options, id_field: str | None
) -> Sequence[str] | None:
    """Return the columns that requests are made of, None for all.

    Raises BadCall for one that is not ``there``, unless none is known yet.
    """
    needed = columns_read(options.spec) if options.spec.takes_records else None
    asked = [*(needed or ()), *([] if id_field is None else [id_field])]
    for column in asked if there else ():
        if column != ID and column not in there and column.partition(".")[0] not in there:
            near = difflib.get_close_matches(column, there, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            shown = ", ".join(there[:COLUMNS_SHOWN])
            raise BadCall(f"the rows have no column {column!r}{hint} (columns: {shown})")
    if needed is None:
        return None
    outer = {one.partition(".")[0] for one in needed}
    return [one for one in there if one in needed or one in outer]


def _response(said: dict[str, Any]) -> Callable[[str], Any] | None:
    """Turn `response_format` into the schema that it stands for; return what reads an answer."""
    asked = said.get("response_format")
    if asked is None or isinstance(asked, str):
        return orjson.loads if "response_schema" in said else None
    del said["response_format"]
    if isinstance(asked, Mapping):
        nested = asked.get("json_schema")  # as OpenAI's own requests have it
        said["response_schema"] = nested["schema"] if isinstance(nested, Mapping) else dict(asked)
        return orjson.loads
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(asked)
        said["response_schema"] = adapter.json_schema()
    except (PydanticUserError, TypeError) as error:
        raise BadCall(
            f"response_format={asked!r} is no class that Pydantic describes: {error}; give a "
            "model, or a JSON schema as a dict"
        ) from None
    return adapter.validate_json


def _as_field(name: str, value: Any) -> Any:
    """Return an option as a spec has it: durations may be text, lists may be one value."""
    form = OPTIONS[name].form
    try:
        if form is FlagForm.DURATION and isinstance(value, str):
            return seconds_of(value)
    except ValueError as error:
        raise BadCall(f"{name}={value!r} {error}") from None
    if form is FlagForm.NAMES and isinstance(value, str):
        return [one.strip() for one in value.split(",")]
    if form is FlagForm.LIST and isinstance(value, str):
        return [value]
    return value
