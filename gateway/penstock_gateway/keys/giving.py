"""What one key may give to another: nothing that it has not itself.

Neither scopes, nor another tenant, nor more, nor longer."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TypeVar

from penstock_gateway.callers.caller import Caller
from penstock_gateway.keys.shapes import NewKey
from penstock_gateway.refused import Refused
from penstock_ledger import (
    SCOPES,
    ApiKey,
    KeyLimits,
    LockedKeys,
    NewApiKey,
    Whose,
    is_tenant_of_key,
)

__all__ = ["giver_of", "keys_of_caller", "new_key", "refuse_to_revoke", "tenant_of"]

Number = TypeVar("Number", int, float)


def keys_of_caller(caller: Caller) -> Whose:
    """Of a tenant its own keys, also for its administrators. All keys only for the operator's."""
    return Whose(caller.tenant, every=caller.tenant is None and "admin" in caller.scopes)


def giver_of(keys_now: LockedKeys, caller: Caller) -> ApiKey | None:
    """The caller's key as it is now: one that was revoked a second ago is still let in, and must
    leave no other behind.

    None for the operator of this machine while there is no key. Raises Refused (401).
    """
    found = None if caller.key_id is None else keys_now.get(caller.key_id)
    is_first = caller.key_id is None and not keys_now.any_made()
    if not is_first and (found is None or not found.valid(time.time())):
        raise Refused(401, "Incorrect API key provided.", code="invalid_api_key")
    return found


def new_key(given: NewKey, giver: ApiKey | None, tenants_usd: float | None) -> NewApiKey:
    """The key that is asked for, with the limits and the end of its giver where it names none, the
    budget aside, which stands for all keys of the tenant without being named. ``tenants_usd``: that
    budget as it is. Raises Refused."""
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
    """Whose the key is to be, as far as the request says; ``new_key`` says whether it may."""
    return caller.tenant if given.tenant is None else given.tenant


def refuse_to_revoke(found: ApiKey, giver: ApiKey | None, keys_now: LockedKeys) -> None:
    """Raises Refused (403) where a key may not end another: one that may do more, or by whose end
    its tenant could spend more."""
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
    """Whether a giver has all of these scopes: `admin` is all of them."""
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
    """The newest key of a tenant says what all of them may spend, so that no key of it names more
    than is said now."""
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
