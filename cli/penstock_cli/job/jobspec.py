"""From flags to a job spec and provider settings.

Whatever is wrong is said in the words of the flags."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from penstock_cli.errors import UsageProblem
from penstock_cli.job.given import GivenJob, parse_pairs
from penstock_cli.job.options import ProviderFlags
from penstock_cli.settings import KEY_VARIABLES, variable_is_set
from penstock_producer.job.endpoints import BASE_URLS
from penstock_producer.job.lanes import LANES, has_own_model
from penstock_producer.job.options import OPTIONS, FlagForm, Option, seconds_of
from penstock_producer.job.response_schema import ModelFault, is_model_path, schema_of_model
from penstock_producer.source_formats import is_database

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from penstock_producer.job.spec import JobSpec
    from penstock_workers.settings import ProviderSettings, WorkerSettings

MAX_SCHEMA_BYTES = 1024 * 1024  # a larger file was named by mistake
MAX_KEY_CHARS = 64  # of a job key that is derived from a file name


def parse_duration(flag: str, text: str) -> float:
    """Return ``90``, ``90s``, ``1h30m`` or ``2d`` in seconds. Raises UsageProblem."""
    try:
        return seconds_of(text)
    except ValueError as error:
        raise UsageProblem(f"{flag} {text!r} {error}") from None


def job_spec(given: GivenJob) -> JobSpec:
    """Build the spec of the job that a command was given.

    Raises UsageProblem, which lists every flag and every field of a file that is unusable.
    """
    from penstock_producer.errors import SpecError
    from penstock_producer.job.spec import JobSpec

    read = {
        field: _read(OPTIONS[field], typed)
        for field, typed in given.flags.items()
        if typed is not None
    }
    fields = {field: value for field, value in read.items() if value is not None}
    usual = _usual_endpoint(fields.get("lane"))
    if "endpoint" not in fields and usual is not None:
        fields["endpoint"] = usual
    try:
        spec = JobSpec(**fields).with_pinned_tokenizer()
    except SpecError as error:
        raise given.refusal(error) from error
    if spec.takes_records and spec.model is None and spec.asks_a_provider:
        flag = "--prompt" if spec.prompt is not None else "--messages-field"
        raise UsageProblem(
            f"{flag} makes requests from plain records, and they need a model: give --model"
        )
    return spec


def _usual_endpoint(lane: Any) -> str | None:
    """Return the endpoint of the lane's jobs that name none; None is the spec's default."""
    return LANES[lane].endpoint if isinstance(lane, str) and lane in LANES else None


def _read(option: Option, typed: Any) -> Any:
    """Turn what was typed into a value of the spec; a value from a file is one already.

    Raises UsageProblem for what cannot be read.
    """
    match option.form, typed:
        case FlagForm.DURATION, str():
            return parse_duration(f"--{option.name}", typed)
        case FlagForm.PAIRS, list():
            return parse_pairs(f"--{option.name}", typed)
        case FlagForm.FILE, Path():
            return _schema_of(typed) if is_model_path(str(typed)) else _schema_file(typed)
        case FlagForm.LIST, []:
            return None  # it was not typed
        case FlagForm.NAMES, str():
            return [name.strip() for name in typed.split(",")]
        case FlagForm.LINES, Path():
            return _lines_file(f"--{option.name}", typed)
        case FlagForm.ROWS, str():
            rows = typed.strip()
            return int(rows) if rows.isdecimal() else rows
    return typed


def _schema_of(model: Path) -> Any:
    """Return the JSON schema of a Pydantic model. Raises UsageProblem where there is none."""
    try:
        return schema_of_model(str(model))
    except ModelFault as fault:
        raise UsageProblem(
            f"--response-schema {model}: {fault}; name a class that Pydantic describes, or a file "
            "with a JSON schema"
        ) from None


def _schema_file(path: Path) -> Any:
    """Return what a file with a JSON schema holds; the spec finds out whether it is a schema.

    Raises UsageProblem for a file that is too large or cannot be read.
    """
    try:
        if path.stat().st_size > MAX_SCHEMA_BYTES:
            raise UsageProblem(
                f"--response-schema {path}: a schema has at most {MAX_SCHEMA_BYTES} bytes; name a "
                "smaller file"
            )
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageProblem(
            f"--response-schema {path}: {error.strerror}; name a file that holds a JSON schema"
        ) from error
    except ValueError as error:
        raise UsageProblem(
            f"--response-schema {path}: not JSON ({error}); write one JSON object"
        ) from error


def _lines_file(flag: str, path: Path) -> list[Any]:
    """Return what a file of JSON Lines holds.

    Raises UsageProblem for a file that cannot be read.
    """
    from penstock_producer.jobfile import FileFault, read_lines, read_text

    try:
        return read_lines(read_text(path))
    except FileFault as fault:
        line = f" line {fault.line}" if fault.line else ""
        raise UsageProblem(f"{flag} {path}{line}: {fault.message}; {fault.fix}") from None


def with_own_model(settings: WorkerSettings, spec: JobSpec) -> WorkerSettings:
    """Return the settings with --model as the model that the lane hosts.

    Where the settings already name a model, the flag is only a label.
    """
    own = settings.of_lane(settings.lane)
    is_asked = settings.lane in spec.permitted_lanes and has_own_model(settings.lane)
    if spec.model is None or own is None or not is_asked:
        return settings
    return settings.model_copy(update={settings.lane: own.hosting(spec.model)})


def with_provider(
    settings: WorkerSettings,
    name: str,
    flags: ProviderFlags,
    fallback: Sequence[str] = (),
    *,
    needs_key: bool = True,
) -> WorkerSettings:
    """Return the settings with the named provider and with those that ``fallback`` names.

    Flags go before the file, and the file before the defaults. Other providers are left out,
    because a worker insists on the API key of each provider that it has. Raises UsageProblem.
    """
    from penstock_producer.job.fallback import provider_and_model
    from penstock_workers.settings import DEFAULT_PROVIDER, ProviderSettings

    given = {
        _FIELDS.get(flag, flag): value for flag, value in asdict(flags).items() if value is not None
    }
    if name not in settings.providers and name != DEFAULT_PROVIDER and flags.base_url is None:
        configured = ", ".join(sorted(settings.providers)) or "none"
        raise UsageProblem(
            f"--provider {name} is not in penstock.toml (configured: {configured}); "
            f"add [providers.{name}] there, or give its --base-url"
        )
    known = settings.providers.get(name, ProviderSettings())
    provider = _validated(_of_its_kind(known.model_dump()) | given)
    if not needs_key:
        return settings.model_copy(update={"providers": {**settings.providers, name: provider}})
    others = {provider_and_model(one, settings.providers)[0] for one in fallback} - {None, name}
    also = {other: _with_key(settings.providers[other]) for other in sorted(filter(None, others))}
    return settings.model_copy(update={"providers": {name: _with_key(provider), **also}})


_FIELDS = {"api": "kind"}  # of a provider's settings, where a flag has another name


def _of_its_kind(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields without the address that their kind has anyway.

    Another kind brings its own address then.
    """
    is_usual = fields.get("base_url") == BASE_URLS.get(fields.get("kind", "openai"))
    return {name: value for name, value in fields.items() if name != "base_url" or not is_usual}


def _validated(fields: dict[str, Any]) -> ProviderSettings:
    from pydantic import ValidationError

    from penstock_workers.settings import ProviderSettings

    try:
        return ProviderSettings.model_validate(fields)
    except ValidationError as error:
        raise UsageProblem(
            "\n".join(_refusal(detail) for detail in error.errors(include_url=False))
        ) from error


def _refusal(detail: ErrorDetails) -> str:
    """Write one fault in the words of the flags.

    A fault of several flags together names none of them.
    """
    if not detail["loc"]:
        return detail["msg"].removeprefix("Value error, ")
    from penstock_ledger.redaction import redact

    field = str(detail["loc"][0])
    flag = {field: flag for flag, field in _FIELDS.items()}.get(field, field).replace("_", "-")
    return redact(
        f"--{flag} {detail['input']!r} is refused: {detail['msg'].removeprefix('Value error, ')}"
    )


def _with_key(provider: ProviderSettings) -> ProviderSettings:
    """Return the provider with the variable of its API key, which is checked.

    Where none is named, the vendor's own server takes the variable that the vendor's own tools
    read.
    """
    variable = provider.api_key_env
    if variable is None and provider.base_url == BASE_URLS.get(provider.kind):
        variable = KEY_VARIABLES[provider.kind]
    if variable is not None and not variable_is_set(variable):
        raise UsageProblem(
            f"the API key for {provider.base_url} is read from the variable {variable}, which is "
            f"not set: export {variable}=…, name another with --api-key-env, or give the "
            "--base-url of a server without keys"
        )
    return provider.model_copy(update={"api_key_env": variable})


def default_job_key(source: str, table: str | None = None) -> str:
    """Derive a job key from the file's name without its ending, in safe characters.

    Running the same file again thus resumes the same job. A database gives the name of the table.
    """
    if is_database(source) and (table is not None or "@" in source.rpartition("/")[2]):
        return _safe(table or "") or "job"
    name = PurePosixPath(source.split("?")[0]).name if "://" in source else Path(source).name
    stem = name.split(".")[0] if not name.startswith(".") else name.strip(".")
    if "*" in stem:  # a pattern, as data/*.csv: its folder says more
        stem = PurePosixPath(source).parent.name
    return _safe(stem) or "job"


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:MAX_KEY_CHARS]
