"""Why a job pauses whose budget is spent, its own or its tenant's: figures, and what is enough."""

from __future__ import annotations

import math
from typing import Any, Final

from penstock_ledger.reasons import By, Code, Reason

__all__ = [
    "is_budget_spent",
    "next_budget",
    "next_month",
    "spent_budget",
    "spent_tenant_budget",
]

MARGIN: Final = 1.1  # on top of what all documents are expected to cost


def spent_budget(
    *,
    budget_usd: float,
    spent_usd: float,
    left: int | None,
    mean_usd: float | None,
    next_usd: float = 0.0,
    batch_documents: int | None = None,
) -> Reason:
    """Return why a job pauses, and what finishing it costs.

    ``left``: documents without an outcome, None where their number is not known yet; ``mean_usd``:
    of a document so far, None before any has finished; ``next_usd``: what the next call may cost,
    or the next batch of so many documents."""
    figures = _figures(budget_usd, spent_usd, left, mean_usd, next_usd, batch_documents)
    return Reason(Code.BUDGET_EXHAUSTED, By.BUDGET, figures)


def spent_tenant_budget(
    tenant: str,
    month: str,
    *,
    budget_usd: float,
    spent_usd: float,
    left: int | None,
    mean_usd: float | None,
    next_usd: float = 0.0,
    batch_documents: int | None = None,
) -> Reason:
    """Return why a job pauses whose tenant may not spend more, and what lets it go on.

    ``month``: in which it was accepted, as 2026-11; the others as in ``spent_budget``."""
    figures = _figures(budget_usd, spent_usd, left, mean_usd, next_usd, batch_documents)
    whose = {"tenant": tenant, "month": month, "next_month": next_month(month)}
    return Reason(Code.TENANT_BUDGET_EXHAUSTED, By.BUDGET, whose | figures)


def is_budget_spent(reason: Reason | None) -> bool:
    """Return whether a budget has no room for the job's next call: its own, or its tenant's."""
    return reason is not None and reason.code in (
        Code.BUDGET_EXHAUSTED,
        Code.TENANT_BUDGET_EXHAUSTED,
    )


def next_month(month: str) -> str:
    """Return the first day of the month after ``month`` (as 2026-11): 2026-12-01."""
    year, number = map(int, month.split("-"))
    return f"{year + number // 12}-{number % 12 + 1:02}-01"


def next_budget(wanted_usd: float) -> str:
    """Return a sum in two significant digits, rounded upwards."""
    step = 10.0 ** (math.floor(math.log10(wanted_usd)) - 1) if wanted_usd > 0 else 0.01
    return f"{math.ceil(wanted_usd / step - 1e-9) * step:.10f}".rstrip("0").rstrip(".")


def _figures(
    budget_usd: float,
    spent_usd: float,
    left: int | None,
    mean_usd: float | None,
    next_usd: float,
    batch_documents: int | None,
) -> dict[str, Any]:
    """Return the parameters of the reason.

    ``enough_usd`` is a budget with which the job goes on: with less its next call may find no room.
    """
    figures: dict[str, Any] = {
        "budget_usd": budget_usd,
        "spent_usd": spent_usd,
        "left": left,
        "next_usd": next_usd,
        "batch_documents": batch_documents,
    }
    if left is None:
        return figures | {"enough_usd": float(next_budget(2 * budget_usd))}
    each_usd = next_usd / (batch_documents or 1) if mean_usd is None else mean_usd
    more_usd = max(next_usd, left * each_usd)
    enough = float(next_budget(max(budget_usd, spent_usd + more_usd) * MARGIN))
    return figures | {"more_usd": more_usd, "is_bound": mean_usd is None, "enough_usd": enough}
