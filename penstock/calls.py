"""The calls: rows and options in, a job or its answers out.

The keyword arguments of a call are sorted and checked before anything is started.
"""

from __future__ import annotations

import asyncio
import difflib
import os
import sys
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, overload

import orjson
from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from penstock import place
from penstock.answers import Answer, Answers
from penstock.child import Child
from penstock.errors import BadCall
from penstock.job import STATE, Given, Job, LocalJob
from penstock.rows import ID, Once, Rows, SpooledRows, rows_of, rows_of_file, spool
from penstock_producer import JobSpec, SpecError
from penstock_producer.errors import listed
from penstock_producer.job.options import OPTIONS, RUN_OPTIONS, FlagForm, seconds_of
from penstock_producer.sources import columns_read

__all__ = ["Calls", "Options", "Prepared", "arun", "columns_needed", "options_of", "run", "stream"]


COLUMNS_SHOWN: Final = 20
_MACHINE: Final = ("workers", "gpus", "concurrency", "sample")
# of `penstock run`, and decided by the call itself
_OWN: Final = ("out", "state", "no_progress", "wait")
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


# What may change without making another job: its limits, and what its answers stand beside.
_MAY_CHANGE: Final = (
    "keep_columns",
    "order",
    "budget_usd",
    "deadline_s",
    "over_budget",
    "max_bad_rows",
    "stop_at_dead",
    "stop_at_usd_per_doc",
)


class Prepared(NamedTuple):
    """A call whose rows and options were read: nothing was started yet."""

    folder: Path  # of the job; its name is the job's key
    named: bool  # by the caller, not by rows and options
    source: str  # what the engine reads
    held: Given
    options: Options


class Place(Protocol):
    """The place where jobs run."""

    def begin(self, call: Prepared) -> Job:
        """Start the job, or find it. Raises BadCall and RunFailed."""
        ...


class Here:
    """This machine."""

    def begin(self, call: Prepared) -> LocalJob:
        key, options = call.folder.name, call.options
        sample = options.machine.get("sample")
        ended = LocalJob(call.folder, key, call.held, None)
        if not call.named and sample is None and ended.has_ended:
            return ended
        request = {
            "source": call.source,
            "options": options.job,
            "provider": options.provider,
            "folder": str(call.folder),
            "state": str(call.folder / STATE),
            "job": key,
            "workers": options.machine.get("workers"),
            "gpus": options.machine.get("gpus"),
            "concurrency": options.machine.get("concurrency"),
            "sample": sample,
        }
        return LocalJob(call.folder, key, call.held, Child(request, call.folder / "run.log"))


class Calls:
    """The calls, for jobs that run in one place."""

    def __init__(self, where: Place) -> None:
        self._where = where

    def start(self, rows: Any, options: Mapping[str, Any]) -> Job:
        return self._where.begin(prepared(rows, options))

    @overload
    def run(
        self, rows: Any, *, progress: bool = True, wait: Literal[True] = True, **options: Any
    ) -> Answers: ...
    @overload
    def run(
        self, rows: Any, *, progress: bool = True, wait: Literal[False], **options: Any
    ) -> Job: ...
    def run(
        self, rows: Any, *, progress: bool = True, wait: bool = True, **options: Any
    ) -> Answers | Job:
        """Do as ``penstock.run`` does."""
        started = self.start(rows, options)
        if not wait:
            return started
        return started.waited_or_left(progress=progress)

    async def arun(self, rows: Any, *, progress: bool = True, **options: Any) -> Answers:
        """Do as ``penstock.arun`` does."""
        started = await asyncio.to_thread(self.start, rows, options)
        try:
            return await started.awaited(progress=progress)
        except asyncio.CancelledError:
            await asyncio.shield(asyncio.to_thread(started.leave))
            raise

    def stream(self, rows: Any, **options: Any) -> Stream:
        """Do as ``penstock.stream`` does."""
        return Stream(self, rows, options)


class Stream:
    """Answers as they come, for ``for`` and for ``async for``."""

    def __init__(self, calls: Calls, rows: Any, options: Mapping[str, Any]) -> None:
        self._calls, self._rows, self._options = calls, rows, options

    def __iter__(self) -> Generator[Answer, None, None]:
        started = self._calls.start(self._rows, self._options)
        try:
            yield from started
        finally:
            started.leave()

    async def __aiter__(self) -> AsyncIterator[Answer]:
        answers = iter(self)
        try:
            while (answer := await asyncio.to_thread(next, answers, None)) is not None:
                yield answer
        finally:
            await asyncio.shield(asyncio.to_thread(answers.close))


@overload
def run(
    rows: Any,
    *,
    prompt: str | None = None,
    model: str | None = None,
    response_format: Any = None,
    base_url: str | None = None,
    api_key_env: str | None = None,
    id_field: str | None = None,
    job: str | None = None,
    state: str | os.PathLike[str] | None = None,
    progress: bool = True,
    wait: Literal[True] = True,
    **options: Any,
) -> Answers: ...
@overload
def run(rows: Any, *, wait: Literal[False], **options: Any) -> Job: ...
def run(rows: Any, *, progress: bool = True, wait: bool = True, **options: Any) -> Answers | Job:
    """Ask a model about each row, and return the rows with their answers.

    ``rows`` are a frame of pandas or polars, an Arrow table, a dataset of Hugging Face, a list of
    dicts or texts, an iterator of them (read to its end and kept on disk before the first call), or
    a path or URL as `penstock run` takes it. ``prompt`` names columns in braces;
    ``response_format`` is a class that Pydantic can describe, or a JSON schema, whose fields become
    columns. ``id_field`` is a column that names rows where their number is no name. All options of
    a job (docs/job-options.md) and of `penstock run` go by their names.

    The job is kept in ``state`` (`.penstock` in the working folder), under a name that rows and
    options give it: the same call goes on with it and pays nothing twice; another prompt is another
    job. ``job`` gives it a name of your own. With ``wait=False`` the job is returned at once.

    Raises BadCall before anything is paid, RunStopped for a job that a person has to decide about,
    and RunFailed. KeyboardInterrupt stops the workers in an orderly way first.
    """
    here = Calls(Here())
    if wait:
        answers: Answers = here.run(rows, progress=progress, **options)
        return answers
    return here.run(rows, wait=False, **options)


async def arun(rows: Any, *, progress: bool = True, **options: Any) -> Answers:
    """Do as ``run`` does, and let other coroutines go on meanwhile.

    Cancelled, it stops the workers in an orderly way first.
    """
    return await Calls(Here()).arun(rows, progress=progress, **options)


def stream(rows: Any, **options: Any) -> Stream:
    """Start as ``run`` does, and yield each answer as it comes, in no promised order.

    What was answered by an earlier call comes first. Leaving the loop stops the job, and the same
    call goes on. ``async for`` works as well.
    """
    return Calls(Here()).stream(rows, **options)


def prepared(rows: Any, given: Mapping[str, Any]) -> Prepared:
    """Read the rows and options of a call. Raises BadCall."""
    options = dict(given)
    name, state = options.pop("job", None), options.pop("state", None)
    base = place.base_folder(state)
    id_field = options.get("id_field")
    read = options_of(options)
    found = _found(rows, read)
    if found is None:
        source, content = _elsewhere(rows)
        folder = _folder(base, name, Path(source).name.split(".")[0], content, read)
        keep = None if read.spec.order == "done" else read.spec.keep_columns
        held = Given(None, None, read.model, keep)
        return Prepared(folder, name is not None, source, held, read)
    if read.spec.takes_records:
        read = options_of({**options, "id_field": ID})
    columns = columns_needed(found.columns, read, id_field)
    whole = isinstance(found, Once)
    spooled = spool(found, base, columns=None if whole else columns, id_field=id_field, say=_say)
    folder = _folder(base, name, "rows", spooled.digest, read)
    path = spooled.moved(folder)
    kept: Rows = SpooledRows(path) if isinstance(found, Once) else found
    held = Given(kept, spooled.ids, read.model)
    return Prepared(folder, name is not None, str(path), held, read)


def _folder(base: Path, name: str | None, stem: str, content: str, read: Options) -> Path:
    """Return the folder of the job that these rows and options are, made where there is none."""
    identity = {
        "rows": content,
        "options": {key: value for key, value in read.job.items() if key not in _MAY_CHANGE},
        "provider": {key: read.provider.get(key) for key in ("api", "base_url")},
    }
    key = place.job_name(stem, identity) if name is None else place.safe_name(name)
    folder = base / key
    folder.mkdir(exist_ok=True, mode=place.PRIVATE)
    return folder


def _found(rows: Any, read: Options) -> Rows | Once | None:
    found = rows_of(rows)
    if found is None and read.spec.takes_records and "://" not in str(rows):
        return rows_of_file(Path(rows))
    return found


def _elsewhere(rows: Any) -> tuple[str, str]:
    """Return what the engine reads itself, and what tells its content."""
    named = os.fspath(rows)
    if "://" in named or "*" in named:
        return named, named
    whole = str(Path(named).absolute()) + ("/" if named.endswith("/") else "")
    return whole, place.fingerprint(Path(whole))


def _say(text: str) -> None:
    sys.stderr.write(f"penstock: {text}\n")
