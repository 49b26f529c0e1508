"""The calls: rows and options in, a job or its answers out."""

from __future__ import annotations

import asyncio
import difflib
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, overload

from penstock import place
from penstock.answers import Answer, Answers
from penstock.child import Child
from penstock.errors import BadCall
from penstock.job import STATE, Given, Job, LocalJob
from penstock.place import forget
from penstock.rows import ID, Once, SpooledRows, rows_of, rows_of_file, spool
from penstock_producer import JobSpec, SpecError
from penstock_producer.errors import listed
from penstock_producer.job.options import OPTIONS, RUN_OPTIONS, STOP_FIELDS, FlagForm, seconds_of
from penstock_producer.reporting.surfaces import in_python
from penstock_producer.sources import columns_read

__all__ = ["arun", "connect", "forget", "run", "stream"]

# of this machine and of its provider, beside the options of a job
_PROVIDER: Final = (
    "api",
    "base_url",
    "api_key_env",
    "profile",
    "rpm",
    "tpm",
    "itpm",
    "otpm",
    "usd_per_mtok_in",
    "usd_per_mtok_out",
)
_MACHINE: Final = ("workers", "concurrency")
# What may change without making another job.
_LIMITS: Final = ("budget_usd", "deadline_s", "over_budget", "max_bad_rows", *STOP_FIELDS)


class Options(NamedTuple):
    """The keyword arguments of a call, sorted by whom they are for."""

    job: Mapping[str, Any]  # a spec's fields
    provider: Mapping[str, Any]
    machine: Mapping[str, Any]
    spec: JobSpec
    model: Callable[[str], Any] | None


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
    wait: Literal[False],
    **options: Any,
) -> Job: ...
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
    started = _start(rows, options)
    if not wait:
        return started
    try:
        return started.wait(progress=progress)
    except KeyboardInterrupt:
        _stop(started)
        raise KeyboardInterrupt(started.interrupted()) from None


async def arun(rows: Any, *, progress: bool = True, **options: Any) -> Answers:
    """Do as ``run`` does, and let other coroutines go on meanwhile.

    Cancelled, it stops the workers in an orderly way first.
    """
    started = await asyncio.to_thread(_start, rows, options)
    try:
        return await started._awaited(progress=progress)
    except asyncio.CancelledError:
        await asyncio.shield(asyncio.to_thread(_stop, started))
        raise


def stream(rows: Any, **options: Any) -> Stream:
    """Start as ``run`` does, and yield each answer as it comes, in no promised order.

    What was answered by an earlier call comes first. Leaving the loop stops the job, and the same
    call goes on. ``async for`` works as well.
    """
    return Stream(rows, options)


class Stream:
    """Answers as they come, for ``for`` and for ``async for``."""

    def __init__(self, rows: Any, options: Mapping[str, Any]) -> None:
        self._rows, self._options = rows, options

    def __iter__(self) -> Iterator[Answer]:
        started = _start(self._rows, self._options)
        try:
            yield from started
        finally:
            _stop(started)

    async def __aiter__(self) -> AsyncIterator[Answer]:
        answers = iter(self)
        try:
            while (answer := await asyncio.to_thread(next, answers, None)) is not None:
                yield answer
        finally:
            await asyncio.shield(asyncio.to_thread(answers.close))  # type: ignore[attr-defined]


def _stop(job: LocalJob) -> None:
    """Stop a job and wait until its processes are gone; another interrupt makes it hurry."""
    while job.process is not None and job.process.status is None:
        try:
            job.stop()
            while not job.process.wait(1.0):
                pass
        except KeyboardInterrupt:
            continue


def _start(rows: Any, given: Mapping[str, Any]) -> LocalJob:
    """Read the rows, and start the job or find it ended. Raises BadCall."""
    options = dict(given)
    name, state = options.pop("job", None), options.pop("state", None)
    base = place.base_folder(state)
    id_field = options.get("id_field")
    read = options_of(options)
    found = _found(rows, read)
    if found is None:
        source, content = _elsewhere(rows)
        folder = _folder(base, name, Path(source).name.split(".")[0], content, read)
        return _local(folder, source, Given(None, None, read.model), read, named=name is not None)
    if read.spec.takes_records:
        read = options_of({**options, "id_field": ID})
    columns = _columns(found, read, id_field)
    spooled = spool(found, base, columns=columns, id_field=id_field, say=_say)
    folder = _folder(base, name, "rows", spooled.digest, read)
    source = spooled.moved(folder)
    if isinstance(found, Once):
        found = SpooledRows(source)
    held = Given(found, spooled.ids, read.model)
    return _local(folder, str(source), held, read, named=name is not None)


def _folder(base: Path, name: str | None, stem: str, content: str, read: Options) -> Path:
    """Return the folder of the job that these rows and options are, made where there is none."""
    identity = {
        "rows": content,
        "options": {key: value for key, value in read.job.items() if key not in _LIMITS},
        "provider": {key: read.provider.get(key) for key in ("api", "base_url")},
    }
    key = place.job_name(stem, identity) if name is None else place.safe_name(name)
    folder = base / key
    folder.mkdir(exist_ok=True, mode=place.PRIVATE)
    return folder


def _local(folder: Path, source: str, held: Given, read: Options, *, named: bool) -> LocalJob:
    """Start the job; one of a derived name that has ended is only read."""
    ended = LocalJob(folder, folder.name, held, None)
    if not named and ended.has_ended:
        return ended
    request = {
        "source": source,
        "options": read.job,
        "provider": read.provider,
        "folder": str(folder),
        "state": str(folder / STATE),
        "job": folder.name,
        "workers": read.machine.get("workers"),
        "concurrency": read.machine.get("concurrency"),
    }
    return LocalJob(folder, folder.name, held, Child(request, folder / "run.log"))


def _found(rows: Any, read: Options) -> Any:
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


def _columns(found: Any, read: Options, id_field: str | None) -> list[str] | None:
    """Return the columns that the engine needs; None for all. Raises BadCall for one that is not
    there."""
    needed = columns_read(read.spec) if read.spec.takes_records else None
    known = list(found.columns)
    for column in [*(needed or ()), *([] if id_field is None else [id_field])]:
        if known and column != ID and column not in known and column.partition(".")[0] not in known:
            near = difflib.get_close_matches(column, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise BadCall(
                f"the rows have no column {column!r}{hint} (columns: {', '.join(known[:20])})"
            )
    if needed is None or isinstance(found, Once):
        return None
    return [one for one in known if one in needed or one in {it.partition(".")[0] for it in needed}]


def options_of(given: Mapping[str, Any]) -> Options:
    """Sort and check the keyword arguments of a call. Raises BadCall."""
    provider = {name: given[name] for name in _PROVIDER if given.get(name) is not None}
    machine = {name: given[name] for name in _MACHINE if given.get(name) is not None}
    fields = {
        name: value
        for name, value in given.items()
        if name not in _PROVIDER and name not in _MACHINE and value is not None
    }
    unknown = [name for name in fields if name not in OPTIONS]
    if unknown:
        near = difflib.get_close_matches(unknown[0], [*OPTIONS, *RUN_OPTIONS, "job", "state"], 1)
        hint = f"did you mean {near[0]!r}?" if near else "docs/job-options.md lists them"
        raise BadCall(f"{unknown[0]!r} is no option; {hint}")
    answer = _response(fields)
    fields.setdefault("max_bad_rows", "100%")
    fields = {name: _as_field(name, value) for name, value in fields.items()}
    try:
        spec = JobSpec(**fields)
    except SpecError as error:
        problems = [
            f"{one.pointer.lstrip('/').replace('/', '.')}: {one.message}; {one.fix}"
            for one in error.problems
        ]
        raise BadCall(in_python(listed(problems))) from None
    if spec.takes_records and spec.model is None and spec.asks_a_provider:
        raise BadCall("prompt makes requests of rows, and they need a model: model='…'")
    return Options(fields, provider, machine, spec, answer)


def _response(fields: dict[str, Any]) -> Callable[[str], Any] | None:
    """Turn `response_format` into the schema that it stands for; returns what reads an answer."""
    asked = fields.get("response_format")
    if asked is None or isinstance(asked, str):
        return _json_value if "response_schema" in fields else None
    del fields["response_format"]
    if isinstance(asked, Mapping):
        nested = asked.get("json_schema")  # as OpenAI's own requests have it
        fields["response_schema"] = nested["schema"] if isinstance(nested, Mapping) else dict(asked)
        return _json_value
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(asked)
        fields["response_schema"] = adapter.json_schema()
    except (PydanticUserError, TypeError) as error:
        raise BadCall(
            f"response_format={asked!r} is no class that Pydantic describes: {error}; give a "
            "model, or a JSON schema as a dict"
        ) from None
    return adapter.validate_json


def _json_value(text: str) -> Any:
    import orjson

    return orjson.loads(text)


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


def _say(text: str) -> None:
    import sys

    sys.stderr.write(f"penstock: {text}\n")


def connect(url: str) -> Any:
    raise NotImplementedError
