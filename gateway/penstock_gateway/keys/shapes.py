"""What requests and answers about keys look like, each with an example for the OpenAPI document."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, StrictStr

from penstock_gateway.callers.caller import Scope
from penstock_ledger import DEFAULT_SCOPES, KEY_NAME_CHARS, SCOPES, ApiKey

__all__ = ["KeyList", "KeyShown", "MadeKey", "NewKey", "key_fields"]

LIMIT_MAX: Final = 2**31 - 1
SPAN_MAX_S: Final = 100 * 366 * 86_400.0  # from now to the end of a key

_KEY: Final[dict[str, Any]] = {
    "object": "api_key",
    "id": "key_5f0c2a9be7d14c3388f1a06b",
    "name": "nightly import",
    "tenant": "shop",
    "made_by": "key_0d1e5b66c0a94e2f8f3b7a10",
    "scopes": ["infer", "read", "write"],
    "requests_per_minute": 600,
    "concurrency": None,
    "budget_usd": 50.0,
    "created_at": 1763740800.2,
    "expires_at": None,
    "revoked_at": None,
    "last_used_at": 1763741012.8,
    "valid": True,
}


def _like(example: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [example]})


def _default_scopes() -> list[Scope]:
    return [*DEFAULT_SCOPES]


class NewKey(BaseModel):
    """A key.

    What is left out is as the key has it that asks, where that is less than everything, the budget
    aside."""

    model_config = _like(
        {
            "name": "nightly import",
            "scopes": ["read", "write"],
            "expires_in_s": 7776000,
            "budget_usd": 50,
        }
    )

    name: Annotated[StrictStr, Field(min_length=1, max_length=KEY_NAME_CHARS)]
    tenant: Annotated[StrictStr, Field(min_length=1, max_length=64)] | None = Field(
        None, description="Whose key it is; left out, that of the key that asks."
    )
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=len(SCOPES))] = Field(
        default_factory=_default_scopes, description="None that the key that asks has not."
    )
    expires_in_s: (
        Annotated[StrictFloat | StrictInt, Field(gt=0, le=SPAN_MAX_S, allow_inf_nan=False)] | None
    ) = Field(None, description="Seconds from now to its end.")
    requests_per_minute: Annotated[StrictInt, Field(ge=1, le=LIMIT_MAX)] | None = None
    concurrency: Annotated[StrictInt, Field(ge=1, le=LIMIT_MAX)] | None = Field(
        None, description="Requests of its tenant at once."
    )
    budget_usd: (
        Annotated[StrictFloat | StrictInt, Field(ge=0, le=1e12, allow_inf_nan=False)] | None
    ) = Field(
        None,
        description="US dollars that all jobs of its tenant together may cost that are accepted in "
        "one calendar month (UTC). It holds for all keys of the tenant from now on; "
        "left out, what holds now stands. A key of a tenant gives no more than that.",
    )


class KeyShown(BaseModel):
    """A key, without its secret, which is nowhere kept. Times are Unix seconds."""

    model_config = _like(_KEY)

    object: Literal["api_key"] = "api_key"
    id: str
    name: str
    made_by: str | None = Field(
        description="The id of the key of the same tenant that made it; null where the operator or "
        "the command line did. The operator sees its own, too."
    )
    tenant: str | None
    scopes: list[str]
    requests_per_minute: int | None
    concurrency: int | None
    budget_usd: float | None
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    last_used_at: float | None = Field(description="A minute old at most.")
    valid: bool = Field(description="Whether it is neither revoked nor expired.")


class MadeKey(KeyShown):
    """The same with its secret, which only this answer has."""

    model_config = _like(_KEY | {"last_used_at": None, "secret": "sk-penstock-…"})

    secret: str


class KeyList(BaseModel):
    """Newest first. `next` is the cursor of older keys."""

    model_config = _like({"object": "list", "data": [_KEY], "next": None})

    object: Literal["list"] = "list"
    data: list[KeyShown]
    next: str | None


def key_fields(key: ApiKey, made_by: str | None) -> dict[str, Any]:
    """Return what is shown of a key. ``made_by``: as far as the caller may know it."""
    return {
        "id": key.key_id,
        "name": key.name,
        "made_by": made_by,
        "tenant": key.tenant,
        "scopes": sorted(key.scopes),
        "requests_per_minute": key.limits.requests_per_minute,
        "concurrency": key.limits.concurrency,
        "budget_usd": key.limits.budget_usd,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
        "last_used_at": key.last_used_at,
        "valid": key.valid(time.time()),
    }
