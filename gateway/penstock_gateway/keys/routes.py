"""`/v1/keys`: make, look at and revoke keys, as `penstock keys` does, within what the caller's own
key may give."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Annotated, Final

from fastapi import Depends, Query, Request
from starlette.responses import Response

from penstock_gateway.backend import backend_of
from penstock_gateway.callers.caller import Caller, caller_with
from penstock_gateway.jobs.cursors import decoded, encoded
from penstock_gateway.keys.giving import (
    giver_of,
    keys_of_caller,
    new_key,
    refuse_to_revoke,
    tenant_of,
)
from penstock_gateway.keys.shapes import KeyList, KeyShown, MadeKey, NewKey, key_fields
from penstock_gateway.refused import Refused, not_found
from penstock_gateway.routing import Router
from penstock_ledger import KEYS_MAX, ApiKey, ApiKeyStore, LockedKeys

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
    """List keys, newest first: those of the caller's tenant, all of them for the operator's
    administrators."""
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
async def retrieve_key(request: Request, key_id: str, caller: Keys) -> KeyShown:
    """Show one key: what it may do, and when it was last used."""
    backend = backend_of(request)

    def look() -> KeyShown:
        store = ApiKeyStore(backend.database)
        return _shown(store, caller, [_found(store, caller, key_id)])[0]

    return await backend.run(look)


@router.delete("/{key_id}", operation_id="revoke_key")
async def revoke_key(request: Request, key_id: str, caller: Keys) -> KeyShown:
    """End a key. Doors refuse it within two seconds. Safe to repeat.

    A key with a scope that the key that asks has not is not revoked by it, nor one without which
    its tenant could spend more.
    """
    backend = backend_of(request)

    def end() -> KeyShown:
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
    """Raises Refused (404), in the same words for a key of another tenant."""
    key = store.get(key_id) if len(key_id) <= ID_MAX and key_id.isprintable() else None
    whose = keys_of_caller(caller)
    if key is None or not (whose.every or key.tenant == whose.tenant):
        raise not_found("key", key_id)
    return key


def _shown(store: ApiKeyStore, caller: Caller, keys: Sequence[ApiKey]) -> list[KeyShown]:
    """Return keys as this caller may see them: of whose key made one it learns within its own
    tenant only."""
    makers = {key.made_by for key in keys if key.made_by is not None}
    whose = keys_of_caller(caller)
    seen = (
        makers
        if whose.every
        else {maker for maker, of in store.tenants_of(makers).items() if of == whose.tenant}
    )
    return [
        KeyShown(**key_fields(key, key.made_by if key.made_by in seen else None)) for key in keys
    ]
