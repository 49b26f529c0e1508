"""Each query of the doors sees the rows of one tenant: a condition, so that none forgets it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, true

__all__ = ["EVERYONE", "Whose"]


@dataclass(frozen=True, slots=True)
class Whose:
    """The rows of one tenant, or of all of them.

    ``tenant`` None is the operator's own, which has no tenant."""

    tenant: str | None
    every: bool = False

    def holds(self, column: Any) -> ColumnElement[bool]:
        """Return the condition on the column that names the tenant."""
        if self.every:
            return true()
        owned: ColumnElement[bool] = (
            column.is_(None) if self.tenant is None else column == self.tenant
        )
        return owned


EVERYONE = Whose(None, every=True)
