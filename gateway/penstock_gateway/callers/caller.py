"""A caller, and the dependency by which a route names the right that it needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal

from starlette.requests import Request

from penstock_gateway.refused import Refused
from penstock_ledger import SCOPES, Whose

__all__ = ["KNOWN", "OPERATOR", "STATE", "Caller", "Scope", "caller_with", "whose"]

Scope = Literal["read", "write", "infer", "keys", "admin"]
STATE: Final = "penstock_caller"  # where the gate leaves the caller of a request
# where a connection leaves what the gate calls once it has found the caller
KNOWN: Final = "penstock_known"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks.

    Without a tenant it is the operator: by a key that has none, or on loopback while there are no
    keys."""

    tenant: str | None
    key_id: str | None
    scopes: frozenset[str]
    # where it has no tenant: the key whose requests count with its own
    counted_as: str | None = None

    @property
    def is_operator(self) -> bool:
        """By a key without a tenant, or with the scope `admin`."""
        return self.tenant is None or "admin" in self.scopes

    def may_see(self, tenant: str | None) -> bool:
        """Return whether what belongs to ``tenant`` is there for this caller."""
        return "admin" in self.scopes or self.tenant == tenant


OPERATOR: Final = Caller(None, None, frozenset(SCOPES))


def caller_with(scope: Scope) -> Callable[[Request], Awaitable[Caller]]:
    """Return the dependency of a route: ``Annotated[Caller, Depends(caller_with("read"))]``."""

    async def caller(request: Request) -> Caller:
        found = request.scope.get("state", {}).get(STATE)
        if not isinstance(found, Caller):  # the gate is shut for paths without one
            raise Refused(401, "You didn't provide an API key.", code="invalid_api_key")
        if scope not in found.scopes and "admin" not in found.scopes:
            raise Refused(
                403, f"This key may not do that: it has no scope {scope!r}.", code="missing_scope"
            )
        return found

    return caller


def whose(caller: Caller) -> Whose:
    """Return whose objects the caller sees: its tenant's, or all with the scope `admin`."""
    return Whose(caller.tenant, "admin" in caller.scopes)
