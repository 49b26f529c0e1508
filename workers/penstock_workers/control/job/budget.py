"""How many documents a job's budget still pays for: what is fed is bounded by it, so that a budget is not overshot.

A call that has started is paid for whatever the budget says. So no more documents are fed than the rest of the budget
pays for at the mean cost so far, and before the first costs are known, only a few. The overshoot that
remains is what the last documents cost beyond the mean.
"""

from __future__ import annotations

from collections.abc import Mapping

MICROUSD = 1_000_000
FIRST_DOCUMENTS = 4  # under way at once until the first answers show what a document costs
GROWTH = 2  # at most so many times the finished documents are under way: a mean of few says little


def mean_cost(stats: Mapping[str, int]) -> float | None:
    """USD per document so far; None before any has finished. 0.0 where no price is known."""
    finished = stats.get("succeeded", 0) or stats.get("dead", 0)
    return stats.get("cost_microusd", 0) / MICROUSD / finished if finished else None


def affordable(budget_usd: float, stats: Mapping[str, int], under_way: int) -> int | None:
    """Documents that may be fed beside those under way; None without a bound, as where no price is known."""
    mean = mean_cost(stats)
    if mean is None:
        return max(0, FIRST_DOCUMENTS - under_way)
    if mean == 0:
        return None
    left = budget_usd - stats.get("cost_microusd", 0) / MICROUSD
    known = GROWTH * (stats.get("succeeded", 0) + stats.get("dead", 0))
    return max(0, min(int(left / mean + 1e-9), max(FIRST_DOCUMENTS, known)) - under_way)
