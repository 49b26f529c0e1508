"""Decides how many documents of a job with a budget are fed.

They are those that the rest of the budget pays for at the mean cost so far. That the budget holds
is not decided here: workers reserve what each call may cost before they send it. What is fed beyond
the budget would only wait. Before the first costs are known only a few are fed, since a document
may then be estimated badly.
"""

from __future__ import annotations

from collections.abc import Mapping

MICROUSD = 1_000_000
FIRST_DOCUMENTS = 4  # under way at once until the first answers show what a document costs
GROWTH = 2  # at most so many times the finished documents are under way: a mean of few says little


def mean_cost(stats: Mapping[str, int]) -> float | None:
    """Return the USD per document so far; None before any has finished."""
    finished = stats.get("succeeded", 0) or stats.get("dead", 0)
    return stats.get("cost_microusd", 0) / MICROUSD / finished if finished else None


def affordable(left_usd: float, stats: Mapping[str, int], under_way: int) -> int:
    """Return how many documents may be fed beside those under way.

    ``left_usd`` is the budget without what is spent."""
    mean = mean_cost(stats)
    known = max(FIRST_DOCUMENTS, GROWTH * (stats.get("succeeded", 0) + stats.get("dead", 0)))
    # requests that are refused cost nothing, and say nothing
    paid_for = int(left_usd / mean + 1e-9) if mean else known
    return max(0, min(paid_for, known) - under_way)
