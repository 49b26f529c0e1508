"""What is said where a job's budget is spent, and how it is read back.

The reason of a pause is text.
"""

from __future__ import annotations

import math
import re
from typing import Final

__all__ = [
    "BUDGET_EXHAUSTED",
    "TENANT_BUDGET_EXHAUSTED",
    "budget_of",
    "is_budget_spent",
    "next_budget",
    "next_month",
    "proposed_budget",
    "spent_budget",
    "spent_tenant_budget",
    "tenant_budget_of",
    "tenant_fix",
    "without_command",
]

BUDGET_EXHAUSTED: Final = "budget_exhausted"
TENANT_BUDGET_EXHAUSTED: Final = "tenant_budget_exhausted"
MARGIN: Final = 1.1  # on top of what all documents are expected to cost
_RESUME: Final = ": penstock resume "
_GIVE: Final = ": penstock keys create "
_BUDGET: Final = re.compile(r"^budget_exhausted: \S+ USD of (\S+) are spent")
_TENANT_BUDGET: Final = re.compile(r"^tenant_budget_exhausted: \S+ USD of the (\S+) ")


def spent_budget(
    job_key: str,
    *,
    budget_usd: float,
    spent_usd: float,
    left: int | None,
    mean_usd: float | None,
    next_usd: float = 0.0,
    next_is: str = "the next call",
    next_documents: int = 1,
) -> str:
    """Return why a job pauses, and what finishing it costs.

    ``left``: documents without an outcome, None where their number is not known yet; ``mean_usd``:
    of a document so far, None before any has finished; ``next_usd``: what ``next_is`` may cost,
    which has ``next_documents``."""
    more = (
        None
        if left is None
        else max(next_usd, left * (next_usd / next_documents if mean_usd is None else mean_usd))
    )
    said = f"{BUDGET_EXHAUSTED}: {_usd(spent_usd)} USD of {budget_usd:g} are spent"
    if next_usd:
        said += f", and {next_is} may cost {_usd(next_usd)}"
    if more is None:
        command = f"{_RESUME}{job_key} --budget-usd {next_budget(2 * budget_usd)}"
        return f"{said}; how many documents are left is not known yet{command}"
    most = "at most about" if mean_usd is None else "about"
    named = "the document left costs" if left == 1 else f"the {left:,} documents left cost"
    wanted = max(budget_usd, spent_usd + more)
    return (
        f"{said}; {named} {most} {_usd(more)} USD more{_RESUME}{job_key} --budget-usd "
        f"{next_budget(wanted * MARGIN)}"
    )


def spent_tenant_budget(
    tenant: str,
    month: str,
    *,
    budget_usd: float,
    spent_usd: float,
    left: int | None,
    mean_usd: float | None,
    next_usd: float = 0.0,
    next_is: str = "the next call",
    next_documents: int = 1,
) -> str:
    """Return why a job pauses whose tenant may not spend more, and what lets it go on.

    ``month``: in which it was accepted, as 2026-11; the others as in ``spent_budget``."""
    whose = f"that tenant {tenant!r} may spend on jobs of {month}"
    said = (
        f"{TENANT_BUDGET_EXHAUSTED}: {_usd(spent_usd)} USD of the {budget_usd!r} {whose} are spent"
    )
    if next_usd:
        said += f", and {next_is} may cost {_usd(next_usd)}"
    wanted = 2 * budget_usd
    if left is not None:
        more = max(next_usd, left * (next_usd / next_documents if mean_usd is None else mean_usd))
        most = "at most about" if mean_usd is None else "about"
        said += f"; what is left of this job costs {most} {_usd(more)} USD more"
        wanted = max(budget_usd, spent_usd + more) * MARGIN
    said += (
        f". This job counts in {month} until it ends; new jobs have the next month's budget, from "
        f"{next_month(month)} (UTC)"
    )
    fix = f"{_GIVE}NAME --tenant {tenant} --budget-usd {next_budget(wanted)}"
    return (
        f"{said}. The job goes on by itself once the newest key of the tenant names a larger "
        f"budget{fix}"
    )


def next_month(month: str) -> str:
    """Return the first day of the month after ``month``: 2026-12-01 for 2026-11."""
    year, number = map(int, month.split("-"))
    return f"{year + number // 12}-{number % 12 + 1:02}-01"


def tenant_fix(reason: str | None) -> str | None:
    """Return the command that lets a job go on that its tenant's budget has paused."""
    _, found, rest = (reason or "").partition(_GIVE)
    return (
        f"{_GIVE.removeprefix(': ')}{rest}"
        if found and tenant_budget_of(reason) is not None
        else None
    )


def proposed_budget(reason: str | None) -> float:
    """Return US dollars with which a job goes on that its own budget has paused.

    With less its next call may find no room. 0 where the reason names none.
    """
    found = re.search(rf"{_RESUME}\S+ --budget-usd (\S+)$", reason or "")
    return 0.0 if found is None or budget_of(reason) is None else float(found[1])


def is_budget_spent(reason: str | None) -> bool:
    """Return whether a job was paused since a budget has no room for its next call.

    The budget is its own, or its tenant's.
    """
    return budget_of(reason) is not None or tenant_budget_of(reason) is not None


def tenant_budget_of(reason: str | None) -> float | None:
    """Return the tenant's budget with which a job was paused for this reason.

    None where it was paused for another.
    """
    return _number_in(_TENANT_BUDGET, reason)


def budget_of(reason: str | None) -> float | None:
    """Return the budget with which a job was paused for this reason.

    None where it was paused for another.
    """
    return _number_in(_BUDGET, reason)


def _number_in(pattern: re.Pattern[str], reason: str | None) -> float | None:
    found = pattern.match(reason or "")
    try:
        return None if found is None else float(found[1])
    except ValueError:
        return None


def without_command(reason: str) -> str:
    return reason.partition(_RESUME)[0]


def next_budget(wanted_usd: float) -> str:
    """Return a budget in two significant digits, rounded up."""
    step = 10.0 ** (math.floor(math.log10(wanted_usd)) - 1) if wanted_usd > 0 else 0.01
    return f"{math.ceil(wanted_usd / step - 1e-9) * step:.10f}".rstrip("0").rstrip(".")


def _usd(value: float) -> str:
    """Write dollars with cents, and a small amount with two digits that say something."""
    if value >= 1 or value == 0:
        return f"{value:.2f}"
    return f"{value:.{min(8, 1 - math.floor(math.log10(value)))}f}"
