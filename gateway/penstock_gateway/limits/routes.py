"""`GET /v1/limits`: what `penstock limits` shows, as far as its caller may know it.

A quota is a provider's account, which all tenants share. A key of a tenant learns whether requests
may start now, and how long not, of the providers that its jobs may name. How the account is used,
the provider's words about it and the failures of other tenants' jobs are for the operator: a key
without a tenant, or with the scope `admin`.
"""

from __future__ import annotations

from collections.abc import Sequence

import redis
from fastapi import Request

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.callers.caller import Caller
from penstock_gateway.jobs.names import Reader
from penstock_gateway.limits.shapes import FailureShown, QuotaAccount, QuotaList, QuotaShown
from penstock_gateway.refused import Refused
from penstock_gateway.routing import Router
from penstock_ledger import Cause, QuotaSeen, quotas_seen

router = Router(tags=["limits"])


@router.get("/v1/limits", operation_id="list_limits")
async def list_limits(request: Request, caller: Reader) -> QuotaList:
    """Show what keeps requests to the providers from starting, and how their quotas are used.

    Each quota appears with its first request. `account` is there for the operator only.
    """
    backend = backend_of(request)
    return await backend.run(_seen, backend, caller)


def _seen(backend: Backend, caller: Caller) -> QuotaList:
    allowed = None if caller.is_operator else backend.settings.doors.providers
    try:
        found = [
            one
            for one in quotas_seen(backend.blocking_redis)
            if allowed is None or one.quota_id in allowed
        ]
        causes = (
            {one.quota_id: backend.fleet.failing.of(one.quota_id) for one in found}
            if caller.is_operator
            else {}
        )
    except redis.RedisError:
        raise Refused(
            503,
            "Redis, which has the quotas, does not answer; try again",
            code="service_unavailable",
            headers={"retry-after": "5"},
        ) from None
    return QuotaList(
        data=[
            _shown(one, causes.get(one.quota_id) if caller.is_operator else None) for one in found
        ]
    )


def _shown(one: QuotaSeen, causes: Sequence[Cause] | None) -> QuotaShown:
    return QuotaShown(
        id=one.quota_id,
        state=one.state,
        held_s=one.held_s if one.hold else None,
        wait_s=max(one.pause_left_s, one.open_left_s),
        account=None if causes is None else _account(one, causes),
    )


def _account(one: QuotaSeen, causes: Sequence[Cause]) -> QuotaAccount:
    return QuotaAccount(
        limits_per_s=dict(one.limits),
        granted=one.granted,
        throttled=one.throttled,
        failures=one.failures,
        hold=one.hold or None,
        last_failures=[
            FailureShown(**{name: getattr(cause, name) for name in FailureShown.model_fields})
            for cause in causes
        ],
    )
