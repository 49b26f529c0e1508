"""Which rows are there for a caller."""

from __future__ import annotations

from penstock_gateway.callers.caller import Caller
from penstock_ledger import Whose

__all__ = ["whose"]


def whose(caller: Caller) -> Whose:
    """Those of its tenant; all of them with the scope `admin`."""
    return Whose(caller.tenant, "admin" in caller.scopes)
