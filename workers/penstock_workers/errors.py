"""Errors of workers stand in one tree.

WorkerError
├── InvalidFailpoint    the setting `failpoints` does not parse
├── FailpointHit        an armed failpoint with the act `raise`
├── UnknownLane         a job or a worker names a lane that this build does not have
├── JobCannotRun        a worker cannot run a job as it is: the job pauses, and its items wait
│   ├── HookMissing         it names a hook that this worker cannot import, or may not
│   ├── HookStuck           calls of its hooks never return
│   ├── SchemaUnusable      its response_schema cannot be used to check answers
│   ├── ChildBroken         no process can be started for hooks and schemas
│   ├── EndpointRefused     it names a path of its provider that jobs may not ask
│   ├── UnknownProvider     it names a provider that this worker's settings do not have
│   └── PricesMissing       it has a budget, and this worker does not know what its provider charges
├── DoorRefused         a task of a Celery client asks for what cannot be done, or not at this door
├── BadEngineSettings   the settings of an engine that a worker is to host cannot work
│   └── EngineNotStarted    its start failed for a reason that may pass, such as too little memory
├── EngineAway          the server that a gpu worker asks has not loaded its model in time
├── MissingApiKey       a provider's `api_key_env` names a variable that is not set
├── PlainHttp           a provider's key would travel readable over http
├── FilesUnusable       files of a model or of an adapter cannot be had
│   ├── StoreAway           the place where they lie cannot be read now
│   ├── FilesChanged        they were replaced while they were read
│   └── CacheFull           the cache on this machine has no room for them
├── ModelMissing        a setting names no model that is here
├── ModelUnusable       a model is here, and cannot be loaded or not be used as this lane does
├── PackageMissing      a lane's engine is not installed
└── TracingMissing      items are to be traced, and OpenTelemetry is not installed
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar

from penstock_ledger.errors import EXIT_FAILED, EXIT_USAGE, PenstockError
from penstock_ledger.reasons import By, Code, Reason
from penstock_ledger.texts import SetOption, Text
from penstock_producer.errors import ContentError

__all__ = ["MissingApiKey", "PlainHttp"]


class WorkerError(PenstockError):
    """Root of everything that this package raises on purpose."""


class InvalidFailpoint(WorkerError):
    """The setting `failpoints` does not parse."""

    exit_status = EXIT_USAGE

    def __init__(self, text: str, places: Sequence[str], acts: Sequence[str]) -> None:
        super().__init__(
            f"setting failpoints: {text!r} is not '<place>[:<doc_id>]:<act>'; "
            f"places: {', '.join(places)}; acts: {', '.join(acts)}"
        )


class FailpointHit(WorkerError):
    """An armed failpoint with the act `raise`."""


class UnknownLane(WorkerError):
    """A job or a worker names a lane that this build does not have."""

    exit_status = EXIT_USAGE

    def __init__(self, lane: str, known: Collection[str]) -> None:
        super().__init__(
            f"lane {lane!r} is not available in this worker; available: {', '.join(sorted(known))}"
        )


class JobCannotRun(WorkerError):
    """A worker cannot run a job as it is.

    The job pauses with this text as its reason, and its items wait."""

    code: ClassVar[str] = Code.JOB_CANNOT_RUN


class HookMissing(JobCannotRun):
    """A job names a hook that this worker cannot import, or may not."""

    exit_status = EXIT_USAGE


class BadEngineSettings(WorkerError):
    """The settings of an engine that a worker is to host cannot work."""

    exit_status = EXIT_USAGE


class EngineNotStarted(BadEngineSettings):
    """The start of an engine failed for a reason that may pass, such as too little memory."""

    exit_status = EXIT_FAILED


class TooManyNames(WorkerError):
    """A worker would serve its model under more names than it can look for."""

    exit_status = EXIT_USAGE

    def __init__(self, lane: str, number: int, most: int) -> None:
        super().__init__(
            f"lane {lane}: this worker would serve {number} names, adapters included, and each is "
            f"a queue that it looks into; at most {most}: give the rest of them to other workers "
            "of the same model"
        )


class EngineAway(WorkerError):
    """The server that a worker asks has not loaded its model in time."""

    def __init__(self, url: str, wait_s: float, lane: str) -> None:
        super().__init__(
            f"{lane}.upstream_url = {url!r}: no model was loaded there within "
            f"{lane}.upstream_wait_s = {wait_s:g} s; look at that server's log, correct the "
            f"address, or allow more time (PENSTOCK_{lane.upper()}__UPSTREAM_WAIT_S)"
        )


class FilesUnusable(WorkerError):
    """Files of a model or of an adapter cannot be had."""


class StoreAway(FilesUnusable):
    """The place where they lie cannot be read now. What came from there before stays as it is."""


class FilesChanged(FilesUnusable):
    """They were replaced while they were read: what was read so far is thrown away."""


class CacheFull(FilesUnusable):
    """The cache on this machine has no room for them."""


class HookStuck(JobCannotRun):
    """Calls of a job's hooks never return."""


class SchemaUnusable(JobCannotRun):
    """A job's response_schema cannot be used to check answers."""


class ChildBroken(JobCannotRun):
    """No process can be started for hooks and schemas."""


class EndpointRefused(JobCannotRun):
    """A job names a path of its provider that jobs may not ask."""

    exit_status = EXIT_USAGE


class DoorRefused(WorkerError):
    """A task of a Celery client cannot be done.

    Its text goes back to the client and holds nothing of documents."""

    exit_status = EXIT_USAGE


class UnknownProvider(JobCannotRun):
    """A job names a provider that this worker's settings do not have."""

    exit_status = EXIT_USAGE

    def __init__(self, name: str, known: Collection[str]) -> None:
        listed = ", ".join(sorted(known)) or "none"
        super().__init__(
            f"provider {name!r} is not configured (configured: {listed}); "
            f"add [providers.{name}] with base_url to penstock.toml, or submit with one that is"
        )


class PricesMissing(JobCannotRun):
    """A job, or its ``tenant``, has a budget, and the prices of its provider are not known.

    Each answer would count as free."""

    exit_status = EXIT_USAGE
    code = "prices_missing"

    def __init__(
        self,
        provider: str,
        model: str | None,
        budget_usd: float,
        tenant: str | None = None,
        *,
        tier: str | None = None,
    ) -> None:
        whose = "the job's budget" if tenant is None else f"the monthly budget of tenant {tenant!r}"
        super().__init__(
            f"{whose} is {budget_usd:g} USD, and this worker knows no price of "
            f"{'its models' if model is None else f'model {model!r}'} at provider {provider!r}"
            f"{'' if tier is None else f' in the service tier {tier!r}'}; "
            f"set providers.{provider}.usd_per_mtok_in and usd_per_mtok_out (US dollars per "
            "million tokens), restart the workers and resume the job"
        )


class MissingApiKey(WorkerError):
    """A provider's `api_key_env` names a variable that is not set."""

    exit_status = EXIT_USAGE

    def __init__(self, provider: str, variable: str) -> None:
        super().__init__(
            f"providers.{provider}.api_key_env names {variable}, which is not set in this process; "
            f"export {variable}=… or remove api_key_env for a server without keys"
        )


class NoCredentials(WorkerError):
    """A provider's requests are signed, and there is nothing to sign them with."""

    exit_status = EXIT_USAGE

    def __init__(self, provider: str, why: str, fix: str | None = None) -> None:
        fix = fix or (
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, run where a role is "
            "given, or name the variable of a Bedrock API key: api_key_env"
        )
        name = f"providers.{provider}: " if provider else ""
        super().__init__(f"{name}no AWS credentials: {why}; {fix}")


class BatchSettingMissing(WorkerError):
    """A provider's batches need a setting that it has not."""

    exit_status = EXIT_USAGE

    def __init__(self, provider: str, field: str, what: str) -> None:
        super().__init__(f"providers.{provider}.{field} is not set: {what}")


class PlainHttp(WorkerError):
    """A provider's key would cross a network as plain text."""

    exit_status = EXIT_USAGE

    def __init__(self, provider: str, url: str, variable: str) -> None:
        super().__init__(
            f"providers.{provider}.base_url = {url!r} would get the key of {variable} over plain "
            "http, readable on the way; use https://, remove api_key_env for a server without "
            "keys, or, for a private network, set allow_plain_http = true in "
            f"[providers.{provider}]"
        )


class ModelMissing(WorkerError):
    """A setting names no model that is here."""

    exit_status = EXIT_USAGE

    def __init__(self, setting: str, name: str | None) -> None:
        seen = (
            "is not set"
            if name is None
            else f"= {name!r} names neither a model's folder nor a package that carries one"
        )
        super().__init__(
            Text(
                f"setting {setting} {seen}; give the folder that holds its config.json (",
                SetOption("model"),
                f", or {setting} in penstock.toml). Penstock downloads no models",
            )
        )


class ModelUnusable(WorkerError):
    """A model is here, and cannot be loaded or not be used as this lane does."""

    exit_status = EXIT_USAGE

    def __init__(self, folder: str, why: str) -> None:
        super().__init__(f"the model in {folder} cannot be used: {why}")


class PackageMissing(WorkerError):
    """A lane's engine is not installed."""

    exit_status = EXIT_USAGE

    def __init__(self, lane: str, package: str, extra: str) -> None:
        super().__init__(
            f"lane {lane} needs {package}, which is not installed here: pip install "
            f"'penstock[{extra}]'"
        )


class TracingMissing(WorkerError):
    """Items are to be traced, and OpenTelemetry is not installed."""

    exit_status = EXIT_USAGE

    def __init__(self, share: float, module: str | None) -> None:
        super().__init__(
            f"setting trace_share = {share:g} needs OpenTelemetry, and {module or 'a part of it'} "
            "is not installed here: pip install 'penstock[otel]', or set trace_share "
            "(PENSTOCK_TRACE_SHARE) to 0"
        )


def stop_reason(error: Exception) -> Reason:
    """Return why a job pauses, or fails, for an error that is no failure of a call."""
    if isinstance(error, ContentError):
        return Reason(error.code, By.SOURCE, {"detail": error.message})
    code = error.code if isinstance(error, JobCannotRun) else Code.JOB_CANNOT_RUN
    return Reason(code, By.CONTROL, {"detail": str(error)})
