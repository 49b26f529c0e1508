"""`/v1/keys`: make, look at and revoke keys, as `penstock keys` does, within what the caller may."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

from fastapi import Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, StrictStr
from starlette.responses import Response

from penstock_gateway.backend import backend_of
from penstock_gateway.callers.caller import Caller, Scope, caller_with
from penstock_gateway.jobs.listing import decoded, encoded
from penstock_gateway.refused import Refused, not_found
from penstock_gateway.routing import Router
from penstock_ledger import (
    DEFAULT_SCOPES,
    KEY_NAME_CHARS,
    KEYS_MAX,
    SCOPES,
    ApiKey,
    ApiKeyStore,
    KeyLimits,
    LockedKeys,
    NewApiKey,
    Whose,
    is_tenant_of_key,
)

__all__ = ["new_key", "tenant_of"]

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
        None, description="The tenant of the key; by default that of the key that asks."
    )
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=len(SCOPES))] = Field(
        default_factory=_default_scopes,
        description="What the key may do; no more than the key that asks.",
    )
    expires_in_s: (
        Annotated[StrictFloat | StrictInt, Field(gt=0, le=SPAN_MAX_S, allow_inf_nan=False)] | None
    ) = Field(None, description="Seconds from now until the key expires.")
    requests_per_minute: Annotated[StrictInt, Field(ge=1, le=LIMIT_MAX)] | None = None
    concurrency: Annotated[StrictInt, Field(ge=1, le=LIMIT_MAX)] | None = Field(
        None, description="How many requests of its tenant may be under way at once."
    )
    budget_usd: (
        Annotated[StrictFloat | StrictInt, Field(ge=0, le=1e12, allow_inf_nan=False)] | None
    ) = Field(
        None,
        description="US dollars that all jobs of its tenant together may cost that are accepted in "
        "one calendar month (UTC). It holds for all keys of the tenant from now on; "
        "left out, what holds now stands. A key of a tenant gives no more than that.",
    )


class KeyResponse(BaseModel):
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
    last_used_at: float | None = Field(description="When it was last used, up to a minute late.")
    valid: bool = Field(description="Whether it is neither revoked nor expired.")


class MadeKey(KeyResponse):
    """The same with its secret, which only this answer has."""

    model_config = _like(_KEY | {"last_used_at": None, "secret": "sk-penstock-…"})

    secret: str


class KeyList(BaseModel):
    """Newest first. `next` is the cursor of older keys."""

    model_config = _like({"object": "list", "data": [_KEY], "next": None})

    object: Literal["list"] = "list"
    data: list[KeyResponse]
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


Number = TypeVar("Number", int, float)


def keys_of_caller(caller: Caller) -> Whose:
    """Return whose keys a caller sees.

    A tenant sees its own, also with its administrators' keys. Only the operator's see all.
    """
    return Whose(caller.tenant, every=caller.tenant is None and "admin" in caller.scopes)


def giver_of(keys_now: LockedKeys, caller: Caller) -> ApiKey | None:
    """Return the caller's key as it is now.

    One that was revoked a second ago is still let in, and must leave no other behind.

    None for the operator of this machine while there is no key. Raises Refused (401).
    """
    found = None if caller.key_id is None else keys_now.get(caller.key_id)
    is_first = caller.key_id is None and not keys_now.any_made()
    if not is_first and (found is None or not found.valid(time.time())):
        raise Refused(401, "Incorrect API key provided.", code="invalid_api_key")
    return found


def new_key(given: NewKey, giver: ApiKey | None, tenants_usd: float | None) -> NewApiKey:
    """Return the key that is asked for, with its giver's limits and end where it names none.

    The budget is not taken over: it stands for all keys of the tenant without being named.
    ``tenants_usd`` is that budget as it is. Raises Refused."""
    if not given.name.isprintable():
        raise Refused(400, "name: give printable characters", code="invalid_value", param="name")
    tenant = _tenant(given.tenant, giver)
    scopes = frozenset(given.scopes)
    if not is_within(scopes, giver):
        more = ", ".join(sorted(scopes - (giver.scopes if giver else scopes)))
        raise _beyond("scopes", f"this key has not {more} itself", "leave that out")
    own = KeyLimits() if giver is None else giver.limits
    limits = KeyLimits(
        _limit("requests_per_minute", given.requests_per_minute, own.requests_per_minute),
        _limit("concurrency", given.concurrency, own.concurrency),
        _budget(given.budget_usd, giver, tenants_usd),
    )
    if limits.budget_usd is not None and tenant is None:
        raise Refused(
            400,
            "budget_usd: a budget is a tenant's; give tenant, too",
            code="invalid_value",
            param="budget_usd",
        )
    made_by = None if giver is None else giver.key_id
    counted_as = None if giver is None or giver.tenant is not None else giver.counted_as or made_by
    return NewApiKey(
        given.name, tenant, scopes, _end(given.expires_in_s, giver), limits, made_by, counted_as
    )


def tenant_of(given: NewKey, caller: Caller) -> str | None:
    """Return whose the key is to be, as far as the request says.

    ``new_key`` says whether it may.
    """
    return caller.tenant if given.tenant is None else given.tenant


def refuse_to_revoke(found: ApiKey, giver: ApiKey | None, keys_now: LockedKeys) -> None:
    """Refuse a key that may not end another.

    It may not where the other may do more, or by whose end its tenant could spend more. Raises
    Refused (403)."""
    if not is_within(found.scopes, giver):
        raise Refused(
            403,
            "this key may do more than the one that asks; another one has to revoke it",
            code="not_allowed",
        )
    if giver is None or giver.tenant is None:
        return
    before, after = keys_now.budget_usd(), keys_now.budget_usd(without=found.key_id)
    if before is not None and (after or 0.0) > before:
        raise Refused(
            403,
            f"this key says what its tenant may spend in a month, {before:g} USD; without it that "
            "would be more: only the operator may revoke it",
            code="not_allowed",
        )


def is_within(scopes: Collection[str], giver: ApiKey | None) -> bool:
    """Return whether a giver has all of these scopes: `admin` is all of them."""
    held = set(SCOPES) if giver is None or "admin" in giver.scopes else giver.scopes
    return held >= set(scopes)


def _tenant(asked: str | None, giver: ApiKey | None) -> str | None:
    own = None if giver is None else giver.tenant
    if asked is None or asked == own:
        return own
    if not is_tenant_of_key(asked):
        fix = "give 1 to 64 letters, digits and . : @ _ -; it may not begin with job_"
        raise Refused(
            400,
            f"tenant: {asked!r} cannot be the tenant of a key; {fix}",
            code="invalid_value",
            param="tenant",
        )
    if own is not None or not is_within(SCOPES, giver):
        raise _beyond("tenant", f"{asked!r} is not the tenant of this key", "leave it out")
    return asked


def _budget(asked: float | None, giver: ApiKey | None, tenants_usd: float | None) -> float | None:
    """Return the budget that the new key names.

    The newest key of a tenant says what all of them may spend, so that no key of it names more than
    is said now."""
    if asked is None or giver is None or giver.tenant is None:
        return asked
    if tenants_usd is not None and asked > tenants_usd:
        why = f"{asked:g} is more than the {tenants_usd:g} that this tenant may spend in a month"
        raise _beyond("budget_usd", why, "leave it out: that holds for all keys of the tenant")
    return _limit("budget_usd", asked, giver.limits.budget_usd)


def _limit(name: str, asked: Number | None, own: Number | None) -> Number | None:
    if asked is not None and own is not None and asked > own:
        raise _beyond(
            name, f"{asked:g} is more than the {own:g} of this key", f"give {own:g} at most"
        )
    return own if asked is None else asked


def _end(asked_s: float | None, giver: ApiKey | None) -> float | None:
    own = None if giver is None else giver.expires_at
    end = None if asked_s is None else time.time() + asked_s
    if end is not None and own is not None and end > own:
        left = max(0, int(own - time.time()))
        raise _beyond(
            "expires_in_s",
            "this key ends before that itself",
            f"give {left} at most, or leave it out",
        )
    return own if end is None else end


def _beyond(field: str, why: str, fix: str) -> Refused:
    return Refused(403, f"{field}: {why}; {fix}", code="not_allowed", param=field)


router = Router(prefix="/v1/keys", tags=["keys"])
log = logging.getLogger("penstock.gateway")

Keys = Annotated[Caller, Depends(caller_with("keys"))]

PAGE_MAX: Final = 200  # of one answer
ID_MAX: Final = 64  # characters; an id has 28


@router.post("", operation_id="create_key", status_code=201)
async def create_key(request: Request, response: Response, given: NewKey, caller: Keys) -> MadeKey:
    """Make a key. Its secret is in this answer and in no other.

    Nothing is given that the key that asks has not itself: no further scope, no other tenant, no
    larger limit, no later end, and no larger budget than its tenant has now.
    Sent again, it makes another key.
    """
    backend = backend_of(request)

    def make() -> MadeKey:
        store = ApiKeyStore(backend.database)

        def give(keys_now: LockedKeys) -> tuple[str, str]:
            made = keys_now.create(
                new_key(given, giver_of(keys_now, caller), keys_now.budget_usd())
            )
            if made is None:
                fix = "revoke those that are not needed"
                raise Refused(
                    409,
                    f"this tenant has {KEYS_MAX} valid keys, as many as one may: {fix}",
                    code="too_many_keys",
                )
            return made

        key_id, secret = store.under_lock(give, tenant_of(given, caller))
        log.info("key %s was made by %s", key_id, caller.key_id or "the operator of this machine")
        made = store.get(key_id)
        assert made is not None, "keys are kept when they are revoked, too"
        return MadeKey(**key_fields(made, made.made_by), secret=secret)

    answer = await backend.run(make)
    response.headers["cache-control"] = "no-store"
    response.headers["location"] = f"/v1/keys/{answer.id}"
    return answer


@router.get("", operation_id="list_keys")
async def list_keys(
    request: Request,
    caller: Keys,
    cursor: Annotated[
        str | None, Query(max_length=500, description="`next` of the page before.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 50,
) -> KeyList:
    """List keys, newest first.

    Those of the caller's tenant, or all of them for the operator's administrators."""
    backend = backend_of(request)
    after = None if cursor is None else decoded(cursor, float)

    def look() -> KeyList:
        store = ApiKeyStore(backend.database)
        found = store.page(keys_of_caller(caller), limit=limit + 1, after=after)
        last = found[limit - 1] if len(found) > limit else None
        return KeyList(
            data=_shown(store, caller, found[:limit]),
            next=None if last is None else encoded(last.created_at, last.key_id),
        )

    return await backend.run(look)


@router.get("/{key_id}", operation_id="retrieve_key")
async def retrieve_key(request: Request, key_id: str, caller: Keys) -> KeyResponse:
    """Show one key: what it may do, and when it was last used."""
    backend = backend_of(request)

    def look() -> KeyResponse:
        store = ApiKeyStore(backend.database)
        return _shown(store, caller, [_found(store, caller, key_id)])[0]

    return await backend.run(look)


@router.delete("/{key_id}", operation_id="revoke_key")
async def revoke_key(request: Request, key_id: str, caller: Keys) -> KeyResponse:
    """End a key. Doors refuse it within two seconds. Safe to repeat.

    A key with a scope that the key that asks has not is not revoked by it, nor one without which
    its tenant could spend more.
    """
    backend = backend_of(request)

    def end() -> KeyResponse:
        store = ApiKeyStore(backend.database)
        found = _found(store, caller, key_id)

        def revoke(keys_now: LockedKeys) -> bool:
            refuse_to_revoke(found, giver_of(keys_now, caller), keys_now)
            return keys_now.revoke(key_id)

        if store.under_lock(revoke, found.tenant):
            log.info("key %s was revoked by %s", key_id, caller.key_id)
        return _shown(store, caller, [_found(store, caller, key_id)])[0]

    return await backend.run(end)


def _found(store: ApiKeyStore, caller: Caller, key_id: str) -> ApiKey:
    """Return the key. Raises Refused (404), in the same words for one of another tenant."""
    key = store.get(key_id) if len(key_id) <= ID_MAX and key_id.isprintable() else None
    whose = keys_of_caller(caller)
    if key is None or not (whose.every or key.tenant == whose.tenant):
        raise not_found("key", key_id)
    return key


def _shown(store: ApiKeyStore, caller: Caller, keys: Sequence[ApiKey]) -> list[KeyResponse]:
    """Return keys as this caller may see them.

    It learns whose key made one within its own tenant only."""
    makers = {key.made_by for key in keys if key.made_by is not None}
    whose = keys_of_caller(caller)
    seen = (
        makers
        if whose.every
        else {maker for maker, of in store.tenants_of(makers).items() if of == whose.tenant}
    )
    return [
        KeyResponse(**key_fields(key, key.made_by if key.made_by in seen else None)) for key in keys
    ]
