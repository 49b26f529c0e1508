"""From an accepted spec and a surveyed source to the rows of a job, in one transaction.

A job has a key, by which the same submit is known again; that of a tenant's job is `@tenant/key`.
What makes two submits the same job is the spec and the content, not the place of a file or its
time.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import orjson

from penstock_ledger import ApiKeyStore, Database, JobNotFound, JobStore
from penstock_ledger.keys import JOB_ID
from penstock_ledger.model import FeedKind, ItemKey, Job, NewJob, Shard, TakenFiles
from penstock_ledger.texts import Command, Run, Text
from penstock_producer.accepting.acceptance import check_acceptable, check_estimate
from penstock_producer.accepting.prompt_caching import cache_use
from penstock_producer.accepting.quality import (
    check_batches,
    check_prices,
    estimated_usd,
    factors_of,
)
from penstock_producer.accepting.remote_limits import RemoteLimits
from penstock_producer.accepting.survey import Survey
from penstock_producer.errors import Problem, SpecError, seen
from penstock_producer.feed.feeder_plan import plan_feeders
from penstock_producer.feed.tracing import callers_span
from penstock_producer.job.endpoints import IMAGE_EDITS, IMAGES
from penstock_producer.job.fallback import provider_and_model
from penstock_producer.job.spec import JobSpec
from penstock_producer.pins import (
    DOOR,
    ESTIMATE,
    REMOTE,
    SAMPLE_OF,
    STARTED_BY,
    SUBMITTED_BY,
    content_of,
)
from penstock_producer.refusals import refused
from penstock_producer.rows import BadRow
from penstock_producer.settings import ProducerSettings

__all__ = ["tenant_prefix"]

OF_TENANT: Final = "@"


def tenant_prefix(tenant: str) -> str:
    """Return what the stored keys of this tenant's jobs begin with.

    The tenant is quoted, so that a slash in it ends no name.
    """
    return f"{OF_TENANT}{quote(tenant, safe='')}/"


def check_tenant_key(job_key: str, tenant: str | None) -> None:
    """Raise SpecError for the key of another tenant's job."""
    if not job_key.startswith(OF_TENANT) or (
        tenant is not None and job_key.startswith(tenant_prefix(tenant))
    ):
        return
    fix = "choose one that does not begin with @: such keys are made for the jobs of tenants"
    raise SpecError(
        [
            Problem(
                "invalid_value", "/job_key", f"{seen(job_key)} is no key of this job's tenant", fix
            )
        ]
    )


# Of a spec: the options of the first release. A later one counts only where it is not at its
# default: else the jobs of a release would be others after an upgrade.
_FIRST_OPTIONS: Final = frozenset(
    {
        "budget_usd",
        "deadline_s",
        "endpoint",
        "id_field",
        "lane",
        "max_attempts",
        "max_bad_rows",
        "model",
        "on_overflow",
        "params",
        "postprocess",
        "prefix_order",
        "preprocess",
        "priority",
        "prompt",
        "provider",
        "response_schema",
        "system",
        "tenant",
        "timeout_s",
        "weight",
    }
)
# Of a spec: how the source is read, and whether there is a job; nothing of what comes of it.
_BESIDE_CONTENT: Final = frozenset({"feeders", "over_budget"})


def digest_of(spec: JobSpec, pin: Mapping[str, Any]) -> str:
    """Return a digest that is equal for submits of the same job.

    A source without a digest of its bytes is known by its place, too.
    """
    place = {} if "sha256" in pin or "uri" not in pin else {"uri": pin["uri"]}
    parts = [options_of(spec), content_of(pin) | place]
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()


def options_of(spec: JobSpec) -> dict[str, Any]:
    """Return the options that make a job what it is."""
    return {
        name: value
        for name, value in spec.to_json().items()
        if name in _FIRST_OPTIONS or _counts(name, value)
    }


def _counts(name: str, value: object) -> bool:
    """Return whether an option that came after the first release is given.

    Null is said by jobs of a release without it.
    """
    if name in _BESIDE_CONTENT or value is None:
        return False
    return bool(value != _default(name))


@cache
def _default(name: str) -> object:
    """Return what an option is where it is not given.

    Asked anew pydantic reads the signature of what makes it, which leaves classes and code of
    30 kB in circles."""
    return JobSpec.model_fields[name].get_default(call_default_factory=True)


MAX_JOB_KEY_CHARS: Final = 200
_JOB_ID_BYTES: Final = 13  # 100 of their bits make 20 characters: none is guessed or repeated
_JOB_ID_CHARS: Final = 20


class Content(NamedTuple):
    """The content that a job works on, as it was read."""

    pin: Mapping[str, Any]
    total: int | None  # of its documents; None for a job that is open
    refusals: Sequence[tuple[str, BadRow]] = ()  # each by the id that its dead letter has
    shards: tuple[Shard, ...] = ()
    keys: Iterable[bytes] = ()  # of a table's rows
    feed_kind: FeedKind = FeedKind.SOURCE


class Submission(NamedTuple):
    """The way in which a job came here, which decides nothing about what it does."""

    job_key: str | None = None
    started_by: Mapping[str, Any] | None = None  # the schedule, and the planned time
    taken: TakenFiles | None = None  # what the schedule has taken with it
    door: str = REMOTE  # of a remote one, whether it wrote the file itself
    sample_of: Mapping[str, int] | None = None  # what it was drawn from


class NewJobs:
    """Checks specs, and makes the jobs of one door; ``remote_limits`` are those of a remote one."""

    def __init__(
        self,
        database: Database,
        jobs: JobStore,
        settings: ProducerSettings,
        remote_limits: RemoteLimits | None,
    ) -> None:
        self._one_machine = database.is_sqlite
        self._jobs = jobs
        self._settings = settings
        self._remote_limits = remote_limits
        self._keys = ApiKeyStore(database)

    def accepted(self, given: JobSpec | Mapping[str, Any]) -> JobSpec:
        """Return the spec, checked against the provider's paths and the caps of remote clients.

        Raises SpecError.
        """
        spec = given if isinstance(given, JobSpec) else JobSpec.from_json(given)
        self._check_endpoint(spec)
        check_acceptable(spec, self._settings.prices(spec.provider))
        check_prices(spec, self._settings.prices)
        if spec.output_format in ("csv", "parquet") and self._settings.results_url is None:
            fix = Text(
                "set results_url (PENSTOCK_RESULTS_URL) here and for the control processes, or "
                "leave it out: ",
                Run(Command.RESULTS),
                " writes tables at any time",
            )
            why = (
                f"{spec.output_format} is written where results_url says, and that is not set here"
            )
            raise SpecError([Problem("invalid_value", "/output_format", why, fix)])
        if spec.endpoint in (IMAGES, IMAGE_EDITS) and self._settings.images_place is None:
            why = f"answers of {spec.endpoint} are files, and there is no place for them"
            place = "set images_url or results_url, here and for the workers"
            raise SpecError([Problem("invalid_value", "/endpoint", why, place)])
        if self._remote_limits is not None:
            self._remote_limits.check(spec, self._keys.any_made)
        return spec.with_pinned_tokenizer()

    def check_tenant(self, tenant: str | None) -> None:
        """Raise SpecError where the remote clients of this process may not act for the tenant."""
        if self._remote_limits is not None:
            self._remote_limits.check_tenant(tenant, self._keys.any_made)

    def _check_endpoint(self, spec: JobSpec) -> None:
        """Raise SpecError for an endpoint that the provider, or one of a fallback, does not have.

        A fallback at a provider of another kind would be sent what it does not take.
        """
        fallbacks = [
            provider_and_model(name, self._settings.providers)[0] for name in spec.fallback or ()
        ]
        pointers = dict.fromkeys(filter(None, fallbacks), "/fallback") | spec.providers_of_rules
        for provider in dict.fromkeys((spec.provider, *pointers)):
            for lane in spec.permitted_lanes:
                refusal = self._settings.refused_endpoint(provider, spec.endpoint, lane)
                if refusal is not None:
                    pointer = "/endpoint" if provider == spec.provider else pointers[provider]
                    said = refusal if len(spec.permitted_lanes) == 1 else f"lane {lane}: {refusal}"
                    raise SpecError([Problem("invalid_value", pointer, said, "")])

    def known(self, job_key: str | None) -> Job | None:
        """Return the job that has this key already. Raises SpecError for what cannot be a key."""
        if job_key is None:
            return None
        _check_key(job_key)
        try:
            return self._jobs.get(job_key)
        except JobNotFound:
            return None

    def create_surveyed(
        self, spec: JobSpec, found: Survey, came: Submission, keys: Iterable[bytes] = ()
    ) -> Job:
        """Make the job of a source that was read whole; ``keys`` are those of a table's rows.

        Raises SpecError before anything is spent, JobConflict and FilesTaken."""
        facts = self._settings.prices
        check_batches(spec, found, facts)
        use = cache_use(spec, found, facts(spec.provider))
        check_estimate(spec, estimated_usd(spec, found, facts, use))
        plan = plan_feeders(spec, found.total, found.size, found.pin, one_machine=self._one_machine)
        content = Content(
            found.pin
            | _estimate(spec, found, factors_of(spec, found, facts))
            | ({} if use is None else use.kept()),
            found.total,
            [(refusal.doc_id, refusal.row) for refusal in found.refused],
            found.split_points.split(found.total, plan.feeders),
            keys,
        )
        return self.create(spec, content, came)

    def create(self, spec: JobSpec, content: Content, came: Submission) -> Job:
        """Make the job, or return that of its key where it is the same one.

        Raises SpecError, JobConflict and FilesTaken."""
        if came.job_key is not None:
            _check_key(came.job_key)
            check_tenant_key(came.job_key, spec.tenant)
        job_id = _new_job_id()
        new = NewJob(
            job_id=job_id,
            job_key=came.job_key or job_id,
            spec=spec.to_json(),
            source={**content.pin, **self._marks(came)},
            digest=digest_of(spec, content.pin),
            total=content.total,
            feed_kind=content.feed_kind,
            shards=content.shards,
            taken=came.taken,
            lane=spec.first_lane,
        )
        letters = [refused(row, ItemKey(job_id, 1, doc_id)) for doc_id, row in content.refusals]
        job, _ = self._jobs.create(new, letters, content.keys)
        return job

    def _marks(self, came: Submission) -> dict[str, Any]:
        """Return what is kept of how the job came here; the door only where it is a remote one."""
        marks: dict[str, Any] = {} if self._remote_limits is None else {DOOR: came.door}
        span = callers_span()
        if span:
            marks[SUBMITTED_BY] = span
        if came.started_by is not None:
            marks[STARTED_BY] = dict(came.started_by)
        if came.sample_of is not None:
            marks[SAMPLE_OF] = dict(came.sample_of)
        return marks


def _estimate(spec: JobSpec, found: Survey, factors: Mapping[str, float]) -> dict[str, Any]:
    """Return the estimate that is kept with the source.

    Lanes are compared by it, and a deadline checked, until there are answers.
    """
    if len(spec.permitted_lanes) == 1 and spec.deadline_s is None:
        return {}
    documents = found.total - len(found.refused)
    guess = found.estimate._replace(factors=factors)
    return {ESTIMATE: {**guess._asdict(), "documents": documents}}


def _new_job_id() -> str:
    return (
        JOB_ID
        + base64.b32encode(secrets.token_bytes(_JOB_ID_BYTES)).decode()[:_JOB_ID_CHARS].lower()
    )


def _check_key(job_key: object) -> None:
    if (
        not isinstance(job_key, str)
        or not 0 < len(job_key) <= MAX_JOB_KEY_CHARS
        or not job_key.isprintable()
    ):
        fix = f"give 1 to {MAX_JOB_KEY_CHARS} printable characters"
        raise SpecError([Problem("invalid_value", "/job_key", f"{seen(job_key)} is refused", fix)])
    if job_key.startswith(JOB_ID):
        fix = "choose a key of your own: ids of jobs start like that"
        raise SpecError(
            [Problem("invalid_value", "/job_key", f"{seen(job_key)} looks like a job id", fix)]
        )
