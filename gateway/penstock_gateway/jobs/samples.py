"""A job over a random sample of a source, and what it says of all documents.

The drawn documents are a file of the tenant, as if it had uploaded them; how many they were drawn
from is kept with the job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import Request

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.callers.caller import Caller
from penstock_gateway.files.form import BATCH
from penstock_gateway.files.store import FileStore
from penstock_gateway.jobs.listing import report_of
from penstock_gateway.jobs.names import Reader, find_job, reading, source_of, tenant_of
from penstock_gateway.jobs.schemas import Between, Extrapolation
from penstock_gateway.refused import Refused
from penstock_gateway.routing import Router
from penstock_ledger import EVERYONE, OutcomeStore
from penstock_ledger.model import Job, Spent
from penstock_producer.accepting.sampling import CONFIDENCE, Interval, extrapolated
from penstock_producer.job.lanes import has_own_model
from penstock_producer.job.spec import JobSpec
from penstock_producer.pins import SAMPLE_OF
from penstock_producer.sources import Document, open_source

router = Router(prefix="/v1/jobs", tags=["jobs"])

FILE_LIVES_S: Final = 30 * 86_400.0  # longer while its job has not ended
LOOKED_AT: Final = 20_000  # outcomes; a sample has half as many documents at most

_MICRO: Final = 1e6


def submit_sample(
    backend: Backend,
    caller: Caller,
    named: str,
    options: Mapping[str, Any],
    number: int,
    job_key: str | None,
) -> Job:
    """Draw a sample and submit it as a job. Blocks. Raises as a submit."""
    source = source_of(backend, caller, named)
    timeout_s = backend.settings.doors.submit_timeout_s
    sample = backend.remote.sample(
        source.where, options, number, timeout_s=timeout_s, uploaded=source.uploaded
    )
    tenant = options.get("tenant")
    store = FileStore(backend.settings, backend.database)
    file = store.create_from(
        sample.lines,
        tenant=None if tenant is None else str(tenant),
        filename=f"{sample.name}.jsonl",
        purpose=BATCH,
        lives_s=FILE_LIVES_S,
    )
    assert file is not None, "a sample has a document"
    whole = {"documents": sample.documents, "size": sample.size}
    is_read = False
    try:
        job = backend.remote.submit(
            store.place(file),
            sample.spec,
            job_key=job_key,
            timeout_s=timeout_s,
            uploaded=True,
            sample_of=whole,
        )
        is_read = file.file_id in str(job.source.get("uri"))
    finally:
        if not is_read:  # it was refused, or the same sample was submitted before
            store.delete(file, EVERYONE)
    return job


@router.get("/{job}/extrapolation", operation_id="read_job_extrapolation")
async def extrapolation(request: Request, job: str, caller: Reader) -> Extrapolation:
    """Estimate tokens and cost of all documents from a sample, each with an interval.

    While the sample runs, it tells about the documents that have ended.
    """
    backend = backend_of(request)

    def look() -> Extrapolation:
        return _said(backend, find_job(backend, caller, job))

    async with reading(backend, caller):
        return await backend.run(look)


def _said(backend: Backend, job: Job) -> Extrapolation:
    whole = job.source.get(SAMPLE_OF)
    if whole is None:
        raise Refused(409, "the job is not a sample; submit one with `sample`", code="not_a_sample")
    sizes = _sizes(backend, job)
    spent = OutcomeStore(backend.database).spent(job.job_id, LOOKED_AT)
    some = [one for one in spent if one.doc_id in sizes]
    sums = extrapolated(
        [sizes[one.doc_id] for one in some], _measured(some), whole["documents"], whole["size"]
    )
    is_priced = report_of(backend, job).cost_usd is not None and not has_own_model(job.lane)
    return Extrapolation(
        job=job.job_id,
        tenant=tenant_of(job),
        documents=whole["documents"],
        sampled=len(some),
        dead=sum(one.is_dead for one in some),
        confidence=CONFIDENCE,
        tokens_in=_between(sums.get("in")),
        tokens_out=_between(sums.get("out")),
        cost_usd=_between(sums.get("cost")) if is_priced else None,
    )


def _sizes(backend: Backend, job: Job) -> dict[str, float]:
    """Return the size of the request of each drawn document.

    Raises SourceError where their file is gone.
    """
    opened = open_source(job.source, JobSpec.accepted(job.spec), backend.settings)
    return {
        row.doc_id: float(len(row.body))
        for row in opened.documents({})
        if isinstance(row, Document)
    }


def _measured(some: Sequence[Spent]) -> dict[str, list[float]]:
    return {
        "in": [float(one.prompt_tokens) for one in some],
        "out": [float(one.completion_tokens) for one in some],
        "cost": [one.cost_microusd / _MICRO for one in some],
    }


def _between(found: Interval | None) -> Between | None:
    return None if found is None else Between(low=found.low, middle=found.middle, high=found.high)
