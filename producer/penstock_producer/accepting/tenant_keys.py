"""Keys of jobs that belong to a tenant: `@tenant/key`.

One that begins with @ and names no or another tenant is refused."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from penstock_producer.errors import Problem, SpecError, seen

__all__ = ["check_tenant_key", "tenant_prefix"]

OF_TENANT: Final = "@"


def tenant_prefix(tenant: str) -> str:
    """What the stored keys of this tenant's jobs begin with.

    The tenant is quoted, so that a slash in it ends no name."""
    return f"{OF_TENANT}{quote(tenant, safe='')}/"


def check_tenant_key(job_key: str, tenant: str | None) -> None:
    """Raises SpecError for the key of another tenant's job."""
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
