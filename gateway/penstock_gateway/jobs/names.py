"""How jobs are named from outside: by id, or by the key that their submitter gave them.

Keys are stored with the tenant before them, so that those of two tenants never meet; the producer
takes such a key for a job of this tenant only, so that no other door can give it to another job.
"""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Depends

from penstock_gateway.backend import Backend
from penstock_gateway.callers.caller import Caller, caller_with
from penstock_ledger import JobNotFound, JobStore
from penstock_ledger.model import Job
from penstock_producer.accepting.new_jobs import tenant_prefix

__all__ = [
    "Reader",
    "Writer",
    "find_job",
    "shown_key",
    "stored_key",
    "tenant_of",
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
