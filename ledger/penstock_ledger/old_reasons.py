"""A process of an earlier release has written its reason as a sentence alone.

The one place that reads sentences of our own; it goes once no release writes such rows that may
run beside this one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["failure_of_batch", "recognised"]

_BUDGET: Final = re.compile(r"budget_exhausted: (\S+) USD of (\S+) are spent")
_TENANT_BUDGET: Final = re.compile(r"tenant_budget_exhausted: (\S+) USD of the (\S+) that tenant ")
_RESUME: Final = re.compile(r": penstock resume \S+ --budget-usd (\S+)$")
_GIVE: Final = re.compile(r": penstock keys create NAME --tenant \S+ --budget-usd (\S+)$")
_BY: Final[Mapping[str, str]] = {
    "batch_refused": "lane",
    "batch_stuck": "lane",
    "deadline_exceeded": "control",
    "disk_full": "control",
    "prices_missing": "control",
    "results_not_written": "control",
    "too_few_outcomes": "control",
    "too_many_outcomes": "control",
    "source_changed": "source",
    "source_forbidden": "source",
    "source_unavailable": "source",
    "daily_limit": "provider",
    "out_of_credit": "provider",
    "overloaded": "provider",
    "rate_limited": "provider",
    "slow_down": "provider",
    "unauthorized": "provider",
}

_OF_BATCHES: Final = frozenset(
    {
        "batch_cancelled",
        "batch_expired",
        "batch_lost",
        "batch_refused",
        "batch_stuck",
        "lane_left",
    }
)


def failure_of_batch(sentence: str) -> tuple[str, str] | None:
    """Return name and detail of the failure of a provider batch; None where it waits."""
    name, _, detail = sentence.partition(": ")
    return (name, detail) if name in _OF_BATCHES else None


def recognised(sentence: str) -> tuple[str, str, dict[str, Any]]:
    """Return code, by whom and parameters of a sentence; the code `unknown` where it has none."""
    if (found := _BUDGET.match(sentence)) is not None and _are_numbers(*found.groups()):
        return "budget_exhausted", "budget", _budget(sentence, _RESUME, found[1], found[2])
    if (found := _TENANT_BUDGET.match(sentence)) is not None and _are_numbers(*found.groups()):
        params = _budget(sentence, _GIVE, found[1], found[2])
        return "tenant_budget_exhausted", "budget", params
    code, colon, _ = sentence.partition(": ")
    by = _BY.get(code) if colon else None
    code, by = ("unknown", "control") if by is None else (code, by)
    return code, by, {"words": sentence}


def _budget(sentence: str, command: re.Pattern[str], spent: str, budget: str) -> dict[str, Any]:
    """Return the figures of a spent budget, and the sentence without the command at its end."""
    proposed = command.search(sentence)
    params: dict[str, Any] = {"spent_usd": float(spent), "budget_usd": float(budget)}
    if proposed is None or not _are_numbers(proposed[1]):
        return params | {"words": sentence}
    return params | {"words": sentence[: proposed.start()], "enough_usd": float(proposed[1])}


def _are_numbers(*texts: str) -> bool:
    try:
        return all(float(text) >= 0 for text in texts)
    except ValueError:
        return False
