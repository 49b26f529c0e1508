"""What answers about limits look like, each with an example for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from penstock_ledger import COUNTED

__all__ = ["FailureShown", "QuotaAccount", "QuotaList", "QuotaShown"]

_FAILURE: Final[dict[str, Any]] = {
    "job_id": "job_k3v7q2m4n6p8r2t4w6y2",
    "name": "out_of_money",
    "text": "You exceeded your current quota.",
    "count": 3,
    "since": 1763740900.5,
    "last": 1763740931.4,
}
_ACCOUNT: Final[dict[str, Any]] = {
    "limits_per_s": {"requests": 8.33, "tokens": 3333.3},
    "granted": 1012,
    "throttled": 2,
    "failures": 0,
    "hold": "out_of_money",
    "last_failures": [_FAILURE],
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


class FailureShown(BaseModel):
    """Calls of a job that fail alike. Times are Unix seconds."""

    model_config = _like(_FAILURE)

    job_id: str
    name: str = Field(description="Of the failure, as dead letters have it as their reason.")
    text: str = Field(description="The last message of it, cut.")
    count: int
    since: float
    last: float


class QuotaAccount(BaseModel):
    """How a provider's account is used, for the operator."""

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
    throttled: int = Field(description=f"Calls {COUNTED['throttled']}, likewise.")
    failures: int = Field(
        description=f"Calls that {COUNTED['failures']}: 5xx, overload, timeouts, lost connections."
    )
    hold: str | None = Field(
        description="Why the account is held: `penstock limits --lift` ends that."
    )
    last_failures: list[FailureShown]


class QuotaShown(BaseModel):
    """Whether requests to a provider may start now."""

    model_config = _like(_QUOTA)

    object: Literal["quota"] = "quota"
    id: str = Field(description="The provider's name.")
    state: Literal["open", "held", "failing", "waiting"]
    held_s: float | None = Field(
        description="Since when the account is held, in seconds; null: it is not."
    )
    wait_s: float = Field(description="Seconds for which nothing starts, as far as that is known.")
    account: QuotaAccount | None = Field(description="Null for keys of a tenant.")


class QuotaList(BaseModel):
    model_config = _like({"object": "list", "data": [_QUOTA]})

    object: Literal["list"] = "list"
    data: list[QuotaShown]
