"""`GET /v1/limits`: what `penstock limits` shows, as far as its caller may know it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import redis
from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field

from penstock_gateway.backend import Backend, backend_of
from penstock_gateway.callers.caller import Caller
from penstock_gateway.jobs.names import Reader
from penstock_gateway.refused import Refused
from penstock_gateway.routing import Router
from penstock_ledger import COUNTED, Cause, QuotaSeen, YieldsSeen, quotas_seen
from penstock_producer.reporting.reasons import yields_line

_FAILURE: Final[dict[str, Any]] = {
    "job_id": "job_k3v7q2m4n6p8r2t4w6y2",
    "name": "out_of_money",
    "text": "You exceeded your current quota.",
    "count": 3,
    "since": 1763740900.5,
    "last": 1763740931.4,
}
_INTERACTIVE: Final[dict[str, Any]] = {
    "code": "over",
    "calls": 8.0,
    "target_s": 0.5,
    "ttft_s": 0.74,
    "why": "",
    "text": "held back for interactive traffic: TTFT p95 0.74 s over 0.5 s, 8 calls at most",
}
_ACCOUNT: Final[dict[str, Any]] = {
    "limits_per_s": {"requests": 8.33, "tokens": 3333.3},
    "granted": 1012,
    "throttled": 2,
    "failures": 0,
    "hold": "out_of_money",
    "last_failures": [_FAILURE],
    "interactive": _INTERACTIVE,
}
_QUOTA: Final[dict[str, Any]] = {
    "object": "quota",
    "id": "openai",
    "state": "held",
    "held_s": 72.5,
    "wait_s": 0.0,
    "account": _ACCOUNT,
}


def _like(example: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [example]})


class FailureResponse(BaseModel):
    """Calls of a job that fail alike. Times are Unix seconds."""

    model_config = _like(_FAILURE)

    job_id: str
    name: str = Field(description="The name of the failure, which is the reason of dead letters.")
    text: str = Field(description="Its last message, cut.")
    count: int
    since: float
    last: float


class InteractiveHold(BaseModel):
    """A limit to the calls of the whole fleet, for the sake of others at their server."""

    model_config = _like(_INTERACTIVE)

    code: str = Field(description="Why the limit is where it is; docs/interactive.md has them.")
    calls: float = Field(description="How many calls the fleet may have in flight.")
    target_s: float = Field(description="Under which the time to the first token is kept.")
    ttft_s: float | None = Field(description="Its 95th percentile of late; null: not known.")
    why: str = Field(description="Why the server's figures could not be read; else empty.")
    text: str | None = Field(
        description="The sentence for people; null while it holds nothing back."
    )


class QuotaAccount(BaseModel):
    """The use of a provider's account, for the operator."""

    model_config = _like(_ACCOUNT)

    limits_per_s: dict[str, float] = Field(
        description="What the provider allows, in units per second."
    )
    granted: int = Field(
        description=(
            f"{COUNTED['granted'].capitalize()}, repeats included, since Redis has known the "
            "provider."
        )
    )
    throttled: int = Field(
        description=f"Calls {COUNTED['throttled']}, since Redis has known the provider."
    )
    failures: int = Field(
        description=f"Calls that {COUNTED['failures']}: 5xx, overload, timeouts, lost connections."
    )
    hold: str | None = Field(
        description="Why the account is held, until an operator ends the hold."
    )
    last_failures: list[FailureResponse]
    interactive: InteractiveHold | None = Field(
        None,
        description="What holds calls back for interactive traffic at the server; null: nothing "
        "watches for that.",
    )


class QuotaResponse(BaseModel):
    """A provider's quota, and whether requests may start now."""

    model_config = _like(_QUOTA)

    object: Literal["quota"] = "quota"
    id: str = Field(description="The provider's name.")
    state: Literal["open", "held", "failing", "waiting"]
    held_s: float | None = Field(
        description="For how many seconds the account has been held; null where it is not."
    )
    wait_s: float = Field(description="Seconds for which nothing starts, as far as that is known.")
    account: QuotaAccount | None = Field(description="Null for keys of a tenant.")


class QuotaList(BaseModel):
    model_config = _like({"object": "list", "data": [_QUOTA]})

    object: Literal["list"] = "list"
    data: list[QuotaResponse]


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


def _shown(one: QuotaSeen, causes: Sequence[Cause] | None) -> QuotaResponse:
    return QuotaResponse(
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
            FailureResponse(**{name: getattr(cause, name) for name in FailureResponse.model_fields})
            for cause in causes
        ],
        interactive=None if one.yields is None else _interactive(one.yields),
    )


def _interactive(yields: YieldsSeen) -> InteractiveHold:
    return InteractiveHold(
        code=yields.code,
        calls=yields.ceiling,
        target_s=yields.target_s,
        ttft_s=yields.ttft_s,
        why=yields.why,
        text=yields_line(yields),
    )
