"""A caller names a job, by its id or by the key that its submitter gave, and a source.

Keys are stored with the tenant before them, so that those of two tenants never meet; the producer
takes such a key for a job of this tenant only, so that no other door can give it to another job.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final, NamedTuple

from fastapi import Depends

from penstock_gateway.backend import Backend
from penstock_gateway.callers.admission import Shares
from penstock_gateway.callers.caller import Caller, caller_with
from penstock_gateway.files.store import FileStore
from penstock_gateway.jobs.schemas import NewJob
from penstock_gateway.middleware import is_id
from penstock_gateway.refused import Refused, not_found
from penstock_ledger import JobNotFound, JobStore, Whose
from penstock_ledger.model import Job
from penstock_producer import SpecError
from penstock_producer.accepting.new_jobs import tenant_prefix
from penstock_producer.errors import Problem, pointer_to, seen
from penstock_producer.job.lanes import DEFAULT_LANE
from penstock_producer.job.params import Suggestions, too_many_unknown
from penstock_producer.job.spec import JobSpec

__all__ = [
    "Reader",
    "Source",
    "Writer",
    "find_job",
    "options_of",
    "reading",
    "shown_key",
    "source_of",
    "stored_key",
    "tenant_of",
    "with_lane",
    "with_tenant",
]

_FILE: Final = "file-"


class ReadingPlaces:
    """Places of sources that are read at once, while they are submitted: half of the threads."""

    def __init__(self, backend: Backend) -> None:
        self.free = asyncio.Semaphore(max(1, backend.settings.gateway.threads // 2))


@asynccontextmanager
async def reading(backend: Backend, caller: Caller) -> AsyncIterator[None]:
    """Hold a place among the long pieces of work.

    They have half of the threads, so that status is shown while large sources are read, and one
    tenant has no more than its share of them. Raises Refused (429, 503).
    """
    places = backend.part(ReadingPlaces).free
    if places.locked():
        raise Refused(
            503,
            "as many jobs are being read or purged now as may be at once; try again",
            code="overloaded",
            headers={"retry-after": "5"},
        )
    with backend.part(Shares).held("reads", caller.tenant):
        async with places:
            yield


class Source(NamedTuple):
    where: str
    uploaded: bool  # a file of these doors; else a place that has to lie inside source_roots


def source_of(backend: Backend, caller: Caller, named: str) -> Source:
    """Return the source that a caller names. Blocks.

    Raises Refused (404) for a file that is not there for this caller.
    """
    if not named.startswith(_FILE):
        return Source(named, uploaded=False)
    store = FileStore(backend.settings, backend.database)
    whose = Whose(caller.tenant, every="admin" in caller.scopes)
    file = store.get(named, whose) if is_id("file", named) else None
    if file is None:
        raise not_found("file", named)
    return Source(store.place(file), uploaded=True)


def options_of(given: NewJob, caller: Caller, backend: Backend) -> dict[str, Any]:
    """Return the job options, with the tenant whose job it is, and the lane. Raises SpecError."""
    named = with_tenant(
        given.options, caller, own=given.__class__.model_fields, problems=_sources(given)
    )
    return with_lane(named, backend)


def with_lane(options: dict[str, Any], backend: Backend) -> dict[str, Any]:
    """Return job options with the lane of batches where they name none.

    There may be workers of that lane alone.
    """
    usual = backend.settings.gateway.batches.lane
    told = options.get("lane") is not None or options.get("lanes")
    return options if told or usual == DEFAULT_LANE else options | {"lane": usual}


def with_tenant(
    options: dict[str, Any],
    caller: Caller,
    *,
    own: Collection[str],
    problems: Sequence[Problem] = (),
) -> dict[str, Any]:
    """Return job options with the tenant whose job it is.

    ``own`` are the other names that the request may have. Raises SpecError, also for the
    ``problems`` that its caller has found.
    """
    found = [*_near_misses(options, own), *problems, *_tenant_problems(options, caller)]
    if found:
        raise SpecError(found)
    return options if options.get("tenant") is not None else options | {"tenant": caller.tenant}


def _near_misses(options: Mapping[str, Any], own: Collection[str]) -> list[Problem]:
    """Return a problem for each name that resembles a field of this request more than an option.

    About the other names the spec says more.
    """
    unknown = [name for name in options if name not in JobSpec.model_fields]
    bulk = too_many_unknown(unknown)
    if bulk is not None:
        return [bulk]
    found, suggestions = [], Suggestions()
    for name in unknown:
        close = suggestions.close_to(name, [*own, *JobSpec.model_fields])
        if close is not None and close in own:
            found.append(
                Problem(
                    "unknown_field",
                    pointer_to(name),
                    f"there is no field {seen(name)}",
                    f"did you mean {close!r}?",
                )
            )
    return found


def _sources(given: NewJob) -> list[Problem]:
    named = [name for name in ("source", "from_job", "open") if getattr(given, name)]
    if len(named) == 1:
        alone = named != ["source"] and given.sample is not None
        why, fix = "only of a source a sample is drawn", "leave it out, or give source"
        return [Problem("invalid_value", "/sample", why, fix)] if alone else []
    if named:
        return [
            Problem(
                "invalid_value",
                f"/{named[1]}",
                f"{' and '.join(named)} are given",
                "give one of them",
            )
        ]
    fix = "give source, the id of an uploaded file or an s3:// URI, or from_job, or open: true"
    return [Problem("missing_field", "/source", "there are no documents", fix)]


def _tenant_problems(options: Mapping[str, Any], caller: Caller) -> list[Problem]:
    tenant = options.get("tenant")
    if tenant is None or tenant == caller.tenant or "admin" in caller.scopes:
        return []
    return [
        Problem(
            "not_allowed",
            "/tenant",
            f"{seen(tenant)} is not the tenant of this key",
            "leave it out",
        )
    ]


Reader = Annotated[Caller, Depends(caller_with("read"))]
Writer = Annotated[Caller, Depends(caller_with("write"))]

_NAME_MAX: Final = 400  # characters; a stored key has 200
_ID: Final = "job_"


def tenant_of(job: Job) -> str | None:
    tenant = job.spec.get("tenant")
    return None if tenant is None else str(tenant)


def stored_key(tenant: str | None, key: str) -> str:
    return key if tenant is None else f"{tenant_prefix(tenant)}{key}"


def shown_key(job: Job) -> str | None:
    """Return the key as the job's submitter gave it; None for a job without one."""
    return (
        None
        if job.job_key == job.job_id
        else job.job_key.removeprefix(stored_key(tenant_of(job), ""))
    )


def find_job(backend: Backend, caller: Caller, name: str) -> Job:
    """Return a job. Blocks.

    Raises JobNotFound, in the same words for a job of another tenant.
    """
    if not name.isprintable() or len(name) > _NAME_MAX:
        raise JobNotFound(name)
    wanted = name if name.startswith(_ID) else stored_key(caller.tenant, name)
    try:
        job = JobStore(backend.database).get(wanted)
    except JobNotFound:
        raise JobNotFound(name) from None
    if not caller.may_see(tenant_of(job)):
        raise JobNotFound(name)
    return job
